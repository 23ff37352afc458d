"""Reads and writes the binary format of cases and results that the host programs of kernels use.

Numbers are little-endian.

    case       text op, u64 wanted (bit i: output i), u32 count, tensors (the inputs), attributes
    result     text error; if that is empty: u32 count, tensors (the outputs), f64 milliseconds, u64 bytes
    tensor     u8 0 (absent), or u8 1, u8 dtype, u32 rank, i64 dims..., the elements; those of `str` are texts

packed_attributes.py says how attributes and texts are packed. A dtype is its index in the C++ enum DType.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import IO, Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.op_table import Op
from opgate.ops_build.packed_attributes import attribute_bytes, text_bytes

_NAMES = {dtype.numpy: name for name, dtype in DTYPES.items()}
_CODES = {name: code for code, name in enumerate(DTYPES)}


@dataclass(frozen=True, slots=True)
class Result:
    """The outputs of a case in the order of the signature, None for one that the case didn't ask for. A program that
    measures gives no outputs but the time of a call, and the bytes of its inputs and outputs."""

    outputs: tuple[Array | None, ...]
    milliseconds: float
    bytes: int


class CaseFailed(RuntimeError):
    """The op refused the case, or its kernel broke a rule that the runner checks."""


def case_bytes(op: Op, case: Case, outputs: Iterable[str]) -> bytes:
    """Returns the bytes of a case that asks for the named `outputs`. Raises ValueError for a tensor of a type that no
    signature has."""
    asked = set(outputs)
    wanted = sum(1 << index for index, output in enumerate(op.outputs) if output.name in asked)
    inputs: list[Array | None] = []
    for tensor in op.inputs:
        case_input = case.inputs.get(tensor.name)
        inputs += case_input if isinstance(case_input, Sequence) else [case_input]
    declared = {attribute.name: attribute for attribute in op.attributes}
    parts = [text_bytes(op.name), struct.pack("<QI", wanted, len(inputs)), *map(_tensor, inputs)]
    return b"".join([*parts, attribute_bytes(declared, case.attributes)])


def read_result(file: IO[bytes]) -> Result:
    """Reads one result. Raises CaseFailed with the message of the runner, and EOFError if the file ends too early."""
    (length,) = _read(file, "<I")
    if length:
        raise CaseFailed(_exactly(file, length).decode(errors="replace"))
    (count,) = _read(file, "<I")
    outputs = tuple(_read_tensor(file) for _ in range(count))
    return Result(outputs, *_read(file, "<dQ"))


def _tensor(array: Array | None) -> bytes:
    if array is None:
        return b"\0"
    name = "str" if array.dtype.kind in "OU" else _NAMES.get(array.dtype)
    if name is None:
        raise ValueError(f"no signature has a tensor of {array.dtype}")
    head = struct.pack(f"<BBI{array.ndim}q", 1, _CODES[name], array.ndim, *array.shape)
    if name == "str":
        return head + b"".join(text_bytes(str(text)) for text in array.flat)
    return head + np.ascontiguousarray(array).tobytes()


def _read_tensor(file: IO[bytes]) -> Array | None:
    if not _read(file, "<B")[0]:
        return None
    code, rank = _read(file, "<BI")
    dims = _read(file, f"<{rank}q")
    dtype = list(DTYPES.values())[code].numpy
    if dtype.kind == "O":
        texts = [_exactly(file, *_read(file, "<I")).decode() for _ in range(prod(dims))]
        return np.array(texts, object).reshape(dims)
    return np.frombuffer(_exactly(file, prod(dims) * dtype.itemsize), dtype).reshape(dims)


def _read(file: IO[bytes], layout: str) -> tuple[Any, ...]:
    return struct.unpack(layout, _exactly(file, struct.calcsize(layout)))


def _exactly(file: IO[bytes], count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise EOFError("the results end in the middle")
    return data
