"""The ops as functions of NumPy arrays, without a graph and without an engine.

    import numpy, opgate.numpy

    opgate.numpy.mish(numpy.ones(4, numpy.float32))

Importing this module loads the library that `opgate build` wrote, or that the wheel brought. Pass arrays by position or
by name, and attributes by name. `help(opgate.numpy.knn_query)` tells shapes, dtypes and attributes; docs/numpy.md tells
the rest. A function reads its inputs where they lie. It copies one only if it isn't in C order, isn't aligned or
has the other byte order. It converts no array: a wrong dtype is a TypeError. A Python number or list takes the dtype
that the signature or another array gives to it. The outputs are new arrays. Calls release the interpreter's lock, so
threads can make them at the same time.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from opgate.ops_build.adapters.numpy.functions import public_names
from opgate.ops_build.adapters.numpy.library import THREADS as _THREADS
from opgate.ops_build.adapters.numpy.library import load as _load
from opgate.ops_build.building.options import BuildOptions
from opgate.ops_build.op_table import Op, snake_case

_BUILT = BuildOptions().library()
_LIBRARY = _load(_BUILT) if _BUILT.is_file() else None
_NAMES = public_names(_LIBRARY) if _LIBRARY else {}
globals().update(_NAMES)

__all__ = ["get_num_threads", "load", "ops", "set_num_threads"]
__all__ += list(_NAMES)


def load(path: Path | str) -> SimpleNamespace:
    """Returns the functions of your op library, a file lib<domain>_<engine>.so that `opgate build FOLDER` wrote.

    The library of any engine that has kernels for the CPU will do. Raises ImportError if it can't be loaded.
    """
    return SimpleNamespace(**public_names(_load(path)))


def ops(library: Path | str | None = None) -> list[Op]:
    """Returns the ops of opgate's library, or of `library`. Raises ImportError if it can't be loaded."""
    return list(_load(library or _BUILT).ops)


def set_num_threads(count: int) -> None:
    """Sets how many threads a call may use, the caller's own among them. It holds for all calls of this process that
    begin later. Raises ValueError if there would be none.

    The default is the number of processors that this process may use. The threads are shared: while they work for one
    call, another call uses its own thread alone.
    """
    if count < 1:
        raise ValueError(f"expected at least one thread, got {count}")
    _THREADS.count = count


def get_num_threads() -> int:
    """Returns how many threads a call may use."""
    return _THREADS.count


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if _LIBRARY is None:  # no ImportError: pickle asks every module for any name
        raise AttributeError(f"{__name__} has no '{name}': {_BUILT} is not there: run opgate build")
    left_out = {snake_case(op): reason for op, reason in _LIBRARY.left_out.items()} if _LIBRARY else {}
    raise AttributeError(f"{__name__} has no '{name}'" + (f": {left_out[name]}" if name in left_out else ""))
