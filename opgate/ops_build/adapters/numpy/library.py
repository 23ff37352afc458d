"""Loads op libraries for calls on NumPy arrays."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opgate import folders
from opgate.cpu import usable_cores
from opgate.ops_build.op_table import Op, loaded_table
from opgate.ops_build.packed_attributes import attribute_bytes, text_bytes
from opgate.ops_build.signature_walk import SignatureMismatch


class LoadError(ImportError):
    """A library can't be loaded. The message says why, and what to do."""


@dataclass(slots=True)
class Threads:
    """How many threads a call may use, the caller's own among them."""

    count: int


#: The threads of all calls in this process.
THREADS = Threads(usable_cores())

#: Creates the array of an output for C: what Python gave to the call, index, dtype's code, rank, dims.
ALLOCATE = ctypes.CFUNCTYPE(
    ctypes.c_void_p,
    ctypes.py_object,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_int64),
)


@dataclass(frozen=True, slots=True)
class OpLibrary:
    """A loaded library: its ops, why some of its ops can't be called, and three functions of run.cpp."""

    path: Path
    ops: tuple[Op, ...]
    left_out: Mapping[str, str]
    run: Callable[[bytes, bytes, int, Any, Any], int]
    check: Callable[[bytes, bytes, int], int] | None
    message: Callable[[], bytes]

    def check_node(self, op: Op, attributes: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        """Raises SignatureMismatch for attributes and known sizes with which no call of an op can work."""
        if self.check is None:
            return
        node = attribute_bytes({attribute.name: attribute for attribute in op.attributes}, attributes)
        node += struct.pack("<I", len(sizes))
        node += b"".join(text_bytes(name) + struct.pack("<q", size) for name, size in sizes.items())
        if self.check(op.name.encode(), node, len(node)):
            message = self.message().decode(errors="replace")
            raise SignatureMismatch(message.removeprefix(f"{op.domain}::{op.name}: "))


def load(path: Path | str) -> OpLibrary:
    """Loads an op library of any engine that has kernels for the CPU. Raises LoadError."""
    path = Path(path).resolve()
    if not path.is_file():
        raise LoadError(f"{path} is not there: run opgate build")
    try:
        folders.load_shipped_dependencies()
        table = loaded_table(path)
        loaded = ctypes.CDLL(str(path))
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} is no op library: {error}") from error
    try:
        run, message, running_op = loaded.opgate_run, loaded.opgate_run_message, loaded.opgate_running_op
    except AttributeError:
        raise LoadError(
            f"{path} can't be called: it has no kernels for the CPU, or an older opgate built it. Run opgate build"
        ) from None
    run.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ALLOCATE, ctypes.py_object]
    check = getattr(loaded, "opgate_check", None)  # an older library has none
    if check is not None:
        check.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    message.restype = ctypes.c_char_p
    _tell_op(running_op)
    left_out = {op.name: "it has no kernel for the CPU" for op in table if "cpu" not in op.devices}
    return OpLibrary(path, tuple(op for op in table if op.name not in left_out), left_out, run, check, message)


def _tell_op(running_op: Any) -> None:
    """In a worker process of the gateway: lets the error of a crash name the op that was running."""
    process = sys.modules.get("opgate.service.native.process")
    address = ctypes.cast(running_op, ctypes.c_void_p).value
    if process is not None and address is not None:
        process.ask_for_op(address)
