"""The ops in PyTorch, as functions and modules.

    import torch, opgate.torch

    opgate.torch.mish(torch.randn(4))        # also torch.ops.opgate.mish
    torch.nn.Sequential(torch.nn.Linear(8, 8), opgate.torch.Mish())

Importing this module loads the library that `opgate build` wrote. The functions work under
torch.compile(fullgraph=True) and torch.export. They take CPU tensors and, if the op has a CUDA kernel, CUDA tensors.
Pass tensors by position or by name, and attributes by name. A function computes all outputs, even those that the
signature calls optional. An op with optional outputs has a second function, such as rms_norm_required, which computes
only the others. The functions copy inputs that are not contiguous. A size that only the kernel knows is a symbol in a
trace; torch.compile without fullgraph breaks the graph there. docs/signatures.md says what works under torch.func,
torch.vmap, torch.autocast and torch.jit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from opgate.ops_build.adapters.torch.functions import public_names
from opgate.ops_build.adapters.torch.registration import load as _load
from opgate.ops_build.building.options import BuildOptions
from opgate.ops_build.op_table import Op, snake_case

_BUILT = BuildOptions().library("torch")
_LIBRARY = _load(_BUILT) if _BUILT.is_file() else None
_NAMES = public_names(_LIBRARY) if _LIBRARY else {}
globals().update(_NAMES)

__all__ = ["load", "onnx_translation_table", "ops", "register_onnx_symbolics"]
__all__ += list(_NAMES)


def load(path: Path | str) -> SimpleNamespace:
    """Returns the functions and modules of your op library, the lib<domain>_torch.so that `opgate build FOLDER` wrote.

    The functions are also torch.ops.<domain>.<name in snake_case>. Raises ImportError if torch can't load the library.
    """
    return SimpleNamespace(**public_names(_load(path)))


def ops(library: Path | str | None = None) -> list[Op]:
    """Returns the ops of opgate's library, or of `library`. Raises ImportError if torch can't load the library."""
    return list(_load(library or _BUILT).ops)


def onnx_translation_table(library: Path | str | None = None) -> dict[Any, Callable[..., Any]]:
    """Returns the table for `torch.onnx.export(..., dynamo=True, custom_translation_table=...)`.

    With it each call of an op becomes one node. Needs onnxscript. Registers the schemas of the ops with onnx.
    """
    from opgate.ops_build.adapters.torch.onnx_export import translation_table

    return translation_table(ops(library))


def register_onnx_symbolics(library: Path | str | None = None) -> None:
    """Makes each call of an op one node in the older exporter, `torch.onnx.export(..., dynamo=False)`."""
    from opgate.ops_build.adapters.torch.onnx_export import register_symbolics

    register_symbolics(ops(library))


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if _LIBRARY is None:  # no ImportError: pickle asks every module for any name
        raise AttributeError(f"{__name__} has no '{name}': {_BUILT} is not there: run opgate build")
    left_out = {snake_case(op): reason for op, reason in _LIBRARY.left_out.items()} if _LIBRARY else {}
    raise AttributeError(f"{__name__} has no '{name}'" + (f": {left_out[name]}" if name in left_out else ""))
