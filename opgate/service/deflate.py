"""Packs data as gzip or deflate, and unpacks it up to a limit."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

ENCODINGS = ("gzip", "deflate")
# Packed bytes that are read at once. They can become a thousand times as many.
_PIECE = 16384


class OverLimit(ValueError):
    """The unpacked data is over the limit."""


def inflate(packed: bytes | memoryview, encoding: str, limit: int, what: str) -> bytearray:
    """Returns data of one of the ENCODINGS unpacked. `what` names the data in errors.

    Raises OverLimit if it has more than `limit` bytes, and ValueError if it is broken.
    """
    decoder = zlib.decompressobj(31 if encoding == "gzip" else 15)
    data = bytearray()
    at = 0
    try:
        while at < len(packed) and not decoder.eof:
            part = packed[at : at + _PIECE]
            at += len(part)
            data += decoder.decompress(part, limit + 1 - len(data))
            if len(data) > limit:
                raise OverLimit(f"the unpacked {what} is over the limit of {limit} bytes")
    except zlib.error as error:
        raise ValueError(f"the {what} is not valid {encoding}: {error}") from None
    if not decoder.eof:
        raise ValueError(f"the {encoding} {what} ends too early")
    left = len(decoder.unused_data) + len(packed) - at
    if left:
        raise ValueError(f"{left} bytes follow the {encoding} {what}")
    return data


def deflate(parts: Iterable[bytes | memoryview], encoding: str) -> list[bytes]:
    """Returns the parts packed as one, in parts. Uses level 1, the fastest."""
    encoder = zlib.compressobj(1, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    return [part for part in (*(encoder.compress(part) for part in parts), encoder.flush()) if part]
