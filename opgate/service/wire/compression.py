"""The compression of HTTP bodies. A limit on the output keeps a small body from filling the memory."""

from __future__ import annotations

from opgate.service.core.errors import Kind, ServingError, invalid, too_large
from opgate.service.deflate import ENCODINGS, OverLimit, inflate


def decompress(body: bytes, encoding: str, limit: int, setting: str) -> bytearray:
    """Returns a gzip or deflate body decompressed.

    Raises ServingError: MEDIA_TYPE for another encoding, TOO_LARGE over `limit` bytes, which `setting` sets, INVALID if
    the body is broken.
    """
    if encoding not in ENCODINGS:
        raise ServingError(
            Kind.MEDIA_TYPE, f"Content-Encoding: expected one of {', '.join(ENCODINGS)}, got '{encoding[:40]}'"
        )
    try:
        return inflate(body, encoding, limit, "body")
    except OverLimit:
        raise too_large("the decompressed body", limit, setting) from None
    except ValueError as error:
        raise invalid(str(error)) from None


def wanted_encoding(accept: str) -> str:
    """Returns the encoding that an Accept-Encoding header asks for, "" for none.

    The answer is compressed only if the header names a single encoding. HTTP libraries send a list by default, and
    compressing tensors costs more time than it saves on most networks.
    """
    name = accept.strip().lower()
    return name if name in ENCODINGS else ""
