"""Compressed bodies, bounded: a small body must not become a large one in memory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable

from service.errors import Kind, ServingError, invalid

ENCODINGS = ("gzip", "deflate")


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """A gzip or deflate body. Raises ServingError: TOO_LARGE over `limit` bytes, INVALID where it is broken."""
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
    """The parts as one compressed body, at a fast level."""
    data = b"".join(parts)
    return gzip.compress(data, 1, mtime=0) if encoding == "gzip" else zlib.compress(data, 1)


def wanted_encoding(accept: str) -> str:
    """The encoding to answer with, "" for none.

    Only a single named encoding is taken as a wish: HTTP libraries send a list by default, and compressing tensors
    costs more time than it saves on most networks.
    """
    name = accept.strip().lower()
    return name if name in ENCODINGS else ""
