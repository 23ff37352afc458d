"""Loads op libraries into PyTorch.

The C entry point of a library registers its kernels. This module registers what torch needs beside them: the fake
kernels, the gradients, and what the ops do under torch.vmap, torch.autocast and torch.jit.trace.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opgate.ops_build.adapters.torch.autocast import register_autocast
from opgate.ops_build.adapters.torch.batching import register_batching
from opgate.ops_build.adapters.torch.fake import fake_kernel
from opgate.ops_build.adapters.torch.gradients import register_gradient
from opgate.ops_build.adapters.torch.limits import why_left_out
from opgate.ops_build.adapters.torch.names import namespace_of, overload
from opgate.ops_build.adapters.torch.tracing import register_tracing
from opgate.ops_build.op_functions import functions_of
from opgate.ops_build.op_table import Op, read_table


class LoadError(ImportError):
    """Torch can't load a library. The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class OpLibrary:
    """A library that torch has loaded.

    Its ops are torch.ops.<namespace>.<name in snake_case>. `left_out` maps the names of ops that torch can't have to
    the reasons. `held` keeps what was registered beside the kernels.
    """

    path: Path
    namespace: str
    ops: tuple[Op, ...]
    left_out: Mapping[str, str]
    held: torch.library.Library

    def overload(self, op: Op) -> Any:
        """Returns the function of an op that returns all outputs, a torch._ops.OpOverload."""
        return overload(op)


#: The loaded libraries by namespace. Torch keeps an op until the process ends.
_LOADED: dict[str, OpLibrary] = {}


def load(path: Path | str) -> OpLibrary:
    """Registers the ops of a library that was built for torch. Raises LoadError.

    A second call with the same library registers nothing and returns the result of the first call.
    """
    path = Path(path).resolve()
    if not path.is_file():
        raise LoadError(f"{path} is not there: run opgate build")
    try:
        table = read_table(path)
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} is no op library: {error}") from error
    if not table:
        raise LoadError(f"{path} holds no op")
    namespace = namespace_of(table[0].domain)
    if known := _LOADED.get(namespace):
        if known.path == path:
            return known
        raise LoadError(
            f"{path}: torch has the ops of domain '{table[0].domain}' from {known.path} already, and keeps them until "
            "the process ends: build a changed op with another domain, or start the process again"
        )
    _register_kernels(path)
    left_out = {op.name: reason for op in table if (reason := why_left_out(op))}
    ops = {op.name: op for op in table if op.name not in left_out}
    held = torch.library.Library(namespace, "FRAGMENT")
    for op in ops.values():
        for name, function in functions_of(op):
            torch.library.register_fake(f"{namespace}::{name}", fake_kernel(function), lib=held)
            register_batching(function, overload(op, name), held)
            register_autocast(function, overload(op, name), held)
            register_tracing(function, overload(op, name), held)
        register_gradient(op, ops, held)
    _LOADED[namespace] = OpLibrary(path, namespace, tuple(ops.values()), left_out, held)
    return _LOADED[namespace]


def _register_kernels(path: Path) -> None:
    try:
        register = ctypes.CDLL(str(path)).opgate_torch_register
    except (OSError, AttributeError) as error:
        raise LoadError(f"{path} is no op library for torch: {error}") from error
    register.restype = ctypes.c_char_p
    if (error_text := register()) is not None:
        raise LoadError(f"{path}: {error_text.decode(errors='replace')}")
