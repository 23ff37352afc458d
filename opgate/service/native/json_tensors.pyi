"""Tensors in JSON text. The place of a text is given as byte offsets into `body`. See json_tensors.h."""

from typing import Any

import numpy as np

Buffer = bytes | bytearray | memoryview | np.ndarray[Any, Any]

class Refused(ValueError):
    """A text that can't be read. `args` are the problem, and where the text at fault begins and ends.

    Problems: "syntax", "depth", "rest", "count", "kind", "fraction", "range", "length". `unpack_strings` gives the
    index of the string and its place; its problems are "count", "end", "length" and "rest".
    """

def split(
    body: Buffer, length: int, members: bool, max_depth: int, max_rest: int, max_values: int
) -> tuple[bytes, list[tuple[int, int, tuple[int, ...] | None]]]: ...
def fill(body: Buffer, begin: int, end: int, datatype: str, array: Buffer, count: int, nulls: bool = False) -> None: ...
def strings(body: Buffer, begin: int, end: int, longest: int) -> list[str]: ...
def unpack_strings(body: Buffer, begin: int, end: int, array: np.ndarray[Any, Any], longest: int) -> None: ...
def pack_strings(array: np.ndarray[Any, Any], /) -> bytes: ...
def format(
    array: Buffer, datatype: str, begin: int, count: int, shape: tuple[int, ...], nulls: bool = False
) -> bytes: ...
def misaligned(array: Buffer, /) -> int: ...
def aligned_copy(body: Buffer, offset: int, size: int) -> tuple[bytearray, int]: ...
