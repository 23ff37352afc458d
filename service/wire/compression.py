"""Compresses and decompresses bodies. A limit on the output keeps a small body from filling the memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from service.errors import Kind, ServingError, invalid

ENCODINGS = ("gzip", "deflate")
# Compressed bytes that are read at once. They can become a thousand times as many.
_PIECE = 16384


def decompress(body: bytes, encoding: str, limit: int, setting: str) -> bytearray:
    """Returns a gzip or deflate body decompressed.

    Raises ServingError: MEDIA_TYPE for another encoding, TOO_LARGE over `limit` bytes, which `setting` sets, INVALID if
    the body is broken.
    """
    if encoding not in ENCODINGS:
        raise ServingError(
            Kind.MEDIA_TYPE, f"Content-Encoding: expected one of {', '.join(ENCODINGS)}, got '{encoding[:40]}'"
        )
    decoder = zlib.decompressobj(31 if encoding == "gzip" else 15)
    data = bytearray()
    at = 0
    try:
        while at < len(body) and not decoder.eof:
            part = body[at : at + _PIECE]
            at += len(part)
            data += decoder.decompress(part, limit + 1 - len(data))
            if len(data) > limit:
                text = f"the decompressed body is over the limit of {limit} bytes ({setting})"
                raise ServingError(Kind.TOO_LARGE, text)
    except zlib.error as error:
        raise invalid(f"the body is not valid {encoding}: {error}") from None
    if not decoder.eof:
        raise invalid(f"the {encoding} body ends too early")
    left = len(decoder.unused_data) + len(body) - at
    if left:
        raise invalid(f"{left} bytes follow the {encoding} body")
    return data


def compress(parts: Iterable[bytes | memoryview], encoding: str) -> list[bytes]:
    """Returns the parts as one compressed body, in parts. Uses level 1, the fastest."""
    encoder = zlib.compressobj(1, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    return [part for part in (*(encoder.compress(part) for part in parts), encoder.flush()) if part]


def wanted_encoding(accept: str) -> str:
    """Returns the encoding that an Accept-Encoding header asks for, "" for none.

    The answer is compressed only if the header names a single encoding. HTTP libraries send a list by default, and
    compressing tensors costs more time than it saves on most networks.
    """
    name = accept.strip().lower()
    return name if name in ENCODINGS else ""
