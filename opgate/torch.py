"""The ops in PyTorch, as functions and modules.

    import torch, opgate.torch

    opgate.torch.mish(torch.randn(4))        # also torch.ops.opgate.mish
    torch.nn.Sequential(torch.nn.Linear(8, 8), opgate.torch.Mish())

Importing it loads the library that `opgate build` has made. The functions work under torch.compile(fullgraph=True) and
torch.export, on CPU tensors and, where an op has a CUDA kernel, on CUDA tensors. Tensors are arguments by place or by
name, attributes by name. All outputs are computed, also those that a signature calls optional. Inputs that are not
contiguous are copied. A size that only the kernel knows is a symbol in a trace; torch.compile without fullgraph breaks
the graph there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ops_build.adapters.torch.functions import public_names
from ops_build.adapters.torch.registration import load as _load
from ops_build.building.options import BuildOptions
from ops_build.table import Op, snake_case

_BUILT = BuildOptions().library("torch")
_LIBRARY = _load(_BUILT) if _BUILT.is_file() else None
_NAMES = public_names(_LIBRARY) if _LIBRARY else {}
globals().update(_NAMES)

__all__ = ["load", "onnx_translation_table", "ops", "register_onnx_symbolics"]
__all__ += list(_NAMES)


def load(path: Path | str) -> SimpleNamespace:
    """The functions and modules of a library of your own ops, `opgate build FOLDER`'s lib<domain>_torch.so. They are
    torch.ops.<domain>.<name in snake_case> too. Raises ImportError where torch can't take the library."""
    return SimpleNamespace(**public_names(_load(path)))


def ops(library: Path | str | None = None) -> list[Op]:
    """The ops of opgate's own library, or of one of your own, that torch has. Raises ImportError without it."""
    return list(_load(library or _BUILT).ops)


def onnx_translation_table(library: Path | str | None = None) -> dict[Any, Callable[..., Any]]:
    """For `torch.onnx.export(..., dynamo=True, custom_translation_table=...)`: each call of an op becomes a node of its
    own. Needs onnxscript. Registers the ops' schemas with onnx."""
    from ops_build.adapters.torch.onnx_export import translation_table

    return translation_table(ops(library))


def register_onnx_symbolics(library: Path | str | None = None) -> None:
    """The same for the older exporter, `torch.onnx.export(..., dynamo=False)`."""
    from ops_build.adapters.torch.onnx_export import register_symbolics

    register_symbolics(ops(library))


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if _LIBRARY is None and not name.startswith("__"):
        raise ImportError(f"{_BUILT} is not there: run opgate build")
    left_out = {snake_case(op): reason for op, reason in _LIBRARY.left_out.items()} if _LIBRARY else {}
    raise AttributeError(f"{__name__} has no '{name}'" + (f": {left_out[name]}" if name in left_out else ""))
