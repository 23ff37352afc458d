"""How tensors lie in shared memory. Both the gateway and its worker processes use this module.

A tensor is described by its name, its dtype as NumPy writes it, its shape, and the offset and number of its bytes.
Strings have the dtype `|O`, and each is its length in 4 little-endian bytes and then its bytes. BF16 has the dtype
`|V2` on the way to and from a model in Python, which must know it from UINT16.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from opgate.service.isolation.memory import Array

try:
    from opgate.service.native.json_tensors import pack_strings, unpack_strings
except ImportError:  # a worker in an environment of another version of Python
    pack_strings = unpack_strings = None  # type: ignore[assignment]

Entry = list[Any]  # name, dtype, shape, offset, bytes

STRINGS = "|O"
#: What stands for BF16 between the gateway and a model in Python.
BF16 = np.dtype("V2")
#: The dtypes of tensors, as `numpy.dtype.str` has them.
DTYPES = {
    np.dtype(kind).str: np.dtype(kind)
    for kind in ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "O", "V2")
}
# Tensors begin at multiples of this many bytes, so that kernels can read whole vector registers.
_ALIGNMENT = 64
# NumPy's arrays have no more dims.
_MOST_DIMS = 32
_LENGTH = struct.Struct("<I")
_MOST_STRING_BYTES = (1 << 32) - 1


class Layout:
    """Where arrays will lie in shared memory: from `begin` to `end`, where the next one may begin."""

    __slots__ = ("end", "entries", "parts")

    def __init__(self, names: Sequence[str], arrays: Sequence[Array], begin: int = 0) -> None:
        """Raises TypeError for a dtype that no tensor has."""
        self.entries: list[Entry] = []
        self.parts: list[Array | bytes] = []
        at = begin
        for name, array in zip(names, arrays, strict=True):
            dtype = array.dtype.str
            if dtype not in DTYPES:
                raise TypeError(f"tensor '{name}' has the dtype {array.dtype}, which no tensor has")
            part: Array | bytes = _packed(array) if dtype == STRINGS else array
            size = len(part) if isinstance(part, bytes) else part.nbytes
            self.entries.append([name, dtype, array.shape, at, size])
            self.parts.append(part)
            at = (at + size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        self.end = at

    def write(self, memory: Any) -> None:
        """Copies the arrays to their places."""
        for (_, dtype, shape, at, size), part in zip(self.entries, self.parts, strict=True):
            if isinstance(part, bytes):
                memory[at : at + size] = part
            elif size:
                np.ndarray(shape, dtype, memory, at)[...] = part


def view(entry: Entry, memory: Any, limit: int) -> tuple[str, Array]:
    """Returns the name and the elements of a tensor: a view of `memory`, which has `limit` bytes, or new strings.

    Raises ValueError if the entry isn't one of a tensor that lies in the memory: whoever wrote it may have crashed, or
    may lie.
    """
    name, dtype, shape, at, size = _checked(entry, limit)
    if dtype.kind == "O":
        return name, _strings(memory, at, size, shape)
    return name, np.ndarray(shape, dtype, memory, at) if size else np.empty(shape, dtype)


def copy(entry: Entry, memory: Any, limit: int) -> tuple[str, Array]:
    """Returns the name and the elements of a tensor as `view` does, and nobody can change them later."""
    name, dtype, shape, at, size = _checked(entry, limit)
    if dtype.kind == "O":
        return name, _strings(memory, at, size, shape)
    return name, np.ndarray(shape, dtype, memory, at).copy() if size else np.empty(shape, dtype)


def _strings(memory: Any, at: int, size: int, shape: tuple[int, ...]) -> Array:
    count = math.prod(shape)
    array = np.empty(count, np.object_)
    # The lengths in front of the strings must stay as they are while they are read.
    _unpack(memoryview(bytes(memory[at : at + size])), array)
    return array.reshape(shape)


def _checked(entry: Entry, limit: int) -> tuple[str, np.dtype[Any], tuple[int, ...], int, int]:
    """Returns the parts of an entry. Raises ValueError if it is not one of a tensor within `limit` bytes."""
    try:
        name, kind, shape, at, size = entry
        dtype = DTYPES[kind]
        shape = tuple(map(operator.index, shape))
        at, size = operator.index(at), operator.index(size)
    except (TypeError, KeyError) as error:
        raise ValueError(f"no tensor has the entry {str(entry)[:200]}") from error
    if not isinstance(name, str) or len(shape) > _MOST_DIMS:
        raise ValueError(f"no tensor has the entry {str(entry)[:200]}")
    if min(shape, default=0) < 0 or at < 0 or size < 0 or at + size > limit:
        raise ValueError(f"tensor '{name[:80]}' does not lie in its memory")
    count = math.prod(shape)
    if size < count * _LENGTH.size if dtype.kind == "O" else size != count * dtype.itemsize:
        raise ValueError(f"tensor '{name[:80]}' has {size} bytes, which its shape {list(shape)} does not fit")
    return name, dtype, shape, at, size


def _packed(array: Array) -> bytes:
    if pack_strings is not None:
        return pack_strings(np.ascontiguousarray(array, np.object_))
    parts = []
    for element in array.reshape(-1).tolist():
        data = element.encode() if isinstance(element, str) else bytes(element)
        parts += [_LENGTH.pack(len(data)), data]
    return b"".join(parts)


def _unpack(data: memoryview, array: Array) -> None:
    """Reads the elements of an array: text where they are UTF-8, else bytes. Raises ValueError if `data` has fewer or
    more."""
    if unpack_strings is not None:
        unpack_strings(data, 0, len(data), array, _MOST_STRING_BYTES)
        return
    at = 0
    for i in range(array.size):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        text = bytes(data[at : at + length])
        if len(text) != length:
            raise ValueError(f"a string of {length} bytes is longer than the rest of its tensor")
        at += length
        try:
            array[i] = text.decode()
        except UnicodeDecodeError:
            array[i] = text
