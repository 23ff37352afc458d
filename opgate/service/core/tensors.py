"""Converts tensors to and from raw bytes: little-endian, row-major."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from opgate.service.core.checks import Limits
from opgate.service.core.datatypes import DataType
from opgate.service.core.errors import Kind, ServingError, invalid
from opgate.service.core.request import Array
from opgate.service.native import json_tensors as native

# The types that can hold a body: bytes as they came, or the aligned buffer that a large body was read into.
Bytes = bytes | bytearray | memoryview | np.ndarray[Any, Any]
#: Buffers that follow each other in a body or a message.
Parts = list[bytes | memoryview]
#: Bytes of a request or an answer that is small. rpc/connection.h has the same number.
SMALL = 1 << 16


def view(body: Bytes) -> memoryview:
    """Returns the bytes of a body as a memoryview, without a copy."""
    return memoryview(body)  # type: ignore[arg-type]  # NumPy's stubs hide that arrays are buffers


def aligned_buffer(length: int, tensors_at: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns uninitialised memory of `length` bytes. The address of byte `tensors_at` is a multiple of 64."""
    raw = np.empty(length + _ALIGNMENT, np.uint8)
    start = -(native.misaligned(raw) + tensors_at) % _ALIGNMENT
    return raw[start : start + length]


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Returns an uninitialised tensor. If it has numbers, its address is a multiple of 64."""
    if dtype.hasobject:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, aligned_buffer(math.prod(shape) * dtype.itemsize))


def aligned(array: Array) -> Array:
    """Returns a tensor whose address is a multiple of 64: the array itself, or a C-contiguous copy.

    Vectorized sums begin where their vectors are aligned, so a run on other addresses rounds in another order.
    """
    if not native.misaligned(array):
        return array
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def join_rows(arrays: Sequence[Array]) -> Array:
    """Returns the rows of several tensors of one type and of equal rows as one tensor. If it has numbers, its address
    is a multiple of 64."""
    first = arrays[0]
    out = empty((sum([len(array) for array in arrays]), *first.shape[1:]), first.dtype)
    return np.concatenate(arrays, out=out)


_ALIGNMENT = 64  # bytes of the longest vectors
_LENGTH = struct.Struct("<I")
_FEW_STRINGS = 8192
# To copy so many bytes costs no more than to find out whether they must be copied.
_FEW_BYTES = 16384


def from_raw(
    data: Bytes, offset: int, size: int, datatype: DataType, shape: tuple[int, ...], name: str, limits: Limits
) -> Array:
    """Returns `size` bytes at `offset` as an array: a view, or a copy if they are few, misaligned or of type BYTES.

    Raises ServingError: INVALID if the size doesn't fit the shape or the type doesn't have such a value, TOO_LARGE if a
    string is over the limit.
    """
    count = math.prod(shape)
    if datatype.name == "BYTES":
        return _strings(view(data)[offset : offset + size], count, name, limits).reshape(shape)
    if size != count * datatype.itemsize:
        raise wrong_size(size, datatype, shape, name)
    array: Array
    if size > _FEW_BYTES:
        array = np.ndarray(shape, datatype.dtype, data, offset)
        if not array.flags.aligned:
            array = aligned(array)
    else:
        array = np.ndarray(shape, datatype.dtype, *native.aligned_copy(data, offset, size))
    return as_bool(array) if datatype.name == "BOOL" else array


def wrong_size(size: int, datatype: DataType, shape: tuple[int, ...], name: str) -> ServingError:
    """Returns the error for an input of this shape that has another number of bytes."""
    expected = math.prod(shape) * datatype.itemsize
    return invalid(f"input '{name}': expected {expected} bytes for shape {list(shape)} of {datatype.name}, got {size}")


def as_bool(array: Array) -> Array:
    """Returns a BOOL tensor in which each byte other than 0 is 1. Some clients send others, and Triton takes them."""
    bits = array.view(np.uint8)
    return bits != 0 if bits.size and bits.max() > 1 else array


def _strings(data: memoryview, count: int, name: str, limits: Limits) -> Array:
    """Returns BYTES elements, each as `element` does. On the wire, each is its length in 4 little-endian bytes and then
    its bytes."""
    end = len(data)
    if count * _LENGTH.size > end:
        raise invalid(f"input '{name}': expected {count} BYTES elements, {end} bytes can't hold their lengths")
    array = np.empty(count, np.object_)
    try:
        native.unpack_strings(data, 0, end, array, limits.max_string_bytes)
    except native.Refused as refused:
        raise _refusal(data, count, name, limits, *refused.args) from None
    return array


def _refusal(
    data: memoryview, count: int, name: str, limits: Limits, problem: str, index: int, at: int
) -> ServingError:
    if problem == "count":
        return invalid(f"input '{name}': expected {count} BYTES elements, the data ends in element {index}")
    if problem == "rest":
        return invalid(f"input '{name}': {len(data) - at} bytes are left over after {count} BYTES elements")
    (length,) = _LENGTH.unpack_from(data, at)
    if problem == "end":
        left = len(data) - at - _LENGTH.size
        return invalid(f"input '{name}': element {index} says {length} bytes, {left} are left")
    text = f"input '{name}': element {index} has {length} bytes, the limit is {limits.max_string_bytes}"
    return ServingError(Kind.TOO_LARGE, text)


def element(data: bytes) -> str | bytes:
    """Returns an element of a BYTES tensor: text if it is UTF-8, otherwise the bytes as they are."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def to_raw(array: Array, datatype: DataType) -> bytes | memoryview:
    """Returns the bytes of an output. For a large contiguous array they are a view of its memory, otherwise a copy."""
    if datatype.name == "BYTES":
        return native.pack_strings(np.ascontiguousarray(array, np.object_))
    return elements(array)


def text_length(array: Array) -> int:
    """Returns the characters or bytes of all strings in an array, 0 for numbers.

    It is 0 for many strings too: to look at each takes long, and their number alone makes them costly.
    """
    return sum(map(len, array.reshape(-1))) if array.dtype == object and array.size < _FEW_STRINGS else 0


def elements(array: Array) -> bytes | memoryview:
    """Returns the bytes of an array whose elements have one size, as `to_raw` does."""
    if not array.size:
        return b""
    if array.nbytes <= _FEW_BYTES:
        return array.tobytes()
    return view(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
