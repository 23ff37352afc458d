"""The ops in JAX.

    import jax, jax.numpy as jnp, opgate.jax

    jax.jit(opgate.jax.mish)(jnp.ones(4))
    jax.grad(lambda x: opgate.jax.mish(x).sum())(jnp.ones(4))

Importing this module loads the library that `opgate build` wrote, or that the wheel brought. The functions work in
jax.jit, jax.vmap and shard_map, and in jax.grad where the table has a gradient. Pass arrays by position or by name, and
attributes by name. They run on the CPU. docs/jax.md tells the rest.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

try:
    from opgate.ops_build.adapters.jax.functions import JaxOps as _JaxOps
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("jax", "jaxlib"):
        raise
    raise ImportError("opgate.jax needs JAX: pip install jax") from error

from opgate.ops_build.adapters.numpy.library import load as _load
from opgate.ops_build.building.options import BuildOptions
from opgate.ops_build.op_table import Op, snake_case

_BUILT = BuildOptions().library()
_OPS = _JaxOps(_load(_BUILT)) if _BUILT.is_file() else None
_NAMES = _OPS.functions if _OPS else {}
globals().update(_NAMES)

__all__ = ["left_out", "load", "ops"]
__all__ += list(_NAMES)


def load(path: Path | str) -> SimpleNamespace:
    """Returns the functions of your op library, a file lib<domain>_<engine>.so that `opgate build FOLDER` wrote.

    The library of any engine that has kernels for the CPU will do. Raises ImportError if it can't be loaded.
    """
    return SimpleNamespace(**_JaxOps(_load(path)).functions)


def ops(library: Path | str | None = None) -> list[Op]:
    """Returns the ops of opgate's library, or of `library`, that JAX has. Raises ImportError if it can't be loaded."""
    found = _OPS if library is None and _OPS else _JaxOps(_load(library or _BUILT))
    return list(found.ops.values())


def left_out() -> dict[str, str]:
    """Returns why JAX has no function for some ops of opgate's library, by their names."""
    return dict(_OPS.left_out) if _OPS else {}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if _OPS is None:  # no ImportError: pickle asks every module for any name
        raise AttributeError(f"{__name__} has no '{name}': {_BUILT} is not there: run opgate build")
    reason = next((text for op, text in _OPS.left_out.items() if name in (op, snake_case(op))), "")
    raise AttributeError(f"{__name__} has no '{name}'" + (f": {reason}" if reason else ""))
