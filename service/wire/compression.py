"""Compresses and decompresses bodies. A limit on the output keeps a small body from filling the memory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable

from service.errors import Kind, ServingError, invalid

ENCODINGS = ("gzip", "deflate")


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """Returns a gzip or deflate body decompressed.

    Raises ServingError: MEDIA_TYPE for another encoding, TOO_LARGE over `limit` bytes, INVALID if the body is broken.
    """
    if encoding not in ENCODINGS:
        raise ServingError(
            Kind.MEDIA_TYPE, f"Content-Encoding: expected one of {', '.join(ENCODINGS)}, got '{encoding[:40]}'"
        )
    try:
        decoder = zlib.decompressobj(31 if encoding == "gzip" else 15)
        data = decoder.decompress(body, limit + 1)
    except zlib.error as error:
        raise invalid(f"the body is not valid {encoding}: {error}") from None
    if len(data) > limit:
        raise ServingError(Kind.TOO_LARGE, f"the decompressed body is over the limit of {limit} bytes")
    if not decoder.eof:
        raise invalid(f"the {encoding} body ends too early")
    if decoder.unused_data:
        raise invalid(f"{len(decoder.unused_data)} bytes follow the {encoding} body")
    return data


def compress(parts: Iterable[bytes | memoryview], encoding: str) -> bytes:
    """Returns the parts as one compressed body. Uses level 1, the fastest."""
    data = b"".join(parts)
    return gzip.compress(data, 1, mtime=0) if encoding == "gzip" else zlib.compress(data, 1)


def wanted_encoding(accept: str) -> str:
    """Returns the encoding that an Accept-Encoding header asks for, "" for none.

    The answer is compressed only if the header names a single encoding. HTTP libraries send a list by default, and
    compressing tensors costs more time than it saves on most networks.
    """
    name = accept.strip().lower()
    return name if name in ENCODINGS else ""
