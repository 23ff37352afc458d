"""Files in JSON: base64, alone or as a `data:` URL (RFC 2397)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence

import numpy as np

from opgate.service.core.errors import invalid
from opgate.service.core.request import Array
from opgate.service.core.spec import ModelSpec, TensorSpec

_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)


def decoded(text: str | bytes, where: str) -> bytes:
    """Returns the bytes of a file. Raises ServingError (INVALID) that begins with `where`."""
    if isinstance(text, bytes):  # an element of BYTES that is not UTF-8
        raise invalid(f"{where}: expected base64, got {text[:40]!r}")
    start = _URL.match(text)
    encoded = text[start.end() :] if start else text
    if any(space in encoded for space in "\r\n"):  # as the program base64 writes it
        encoded = "".join(encoded.split())
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:  # ValueError: a character outside ASCII
        raise invalid(f"{where}: expected base64 or a data: URL with base64, got {text[:40]!r} ({error})") from None


def sent_shape(spec: ModelSpec, tensor: TensorSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of an input of files that have one byte each, if texts of a shape are sent for it. `shape` has
    one element for each row. Raises ServingError (INVALID)."""
    rows = shape[0] if shape else 1
    if not shape or any(size != 1 for size in (shape[1:] if spec.batched else shape)):
        expected = "[N] or [N, 1]" if spec.batched else "[1]"
        raise invalid(f"input '{tensor.name}': content_type base64: expected the shape {expected}, got {list(shape)}")
    inner = (1,) * len(tensor.dims)
    return (rows, *inner) if spec.batched else inner


def read(spec: ModelSpec, tensor: TensorSpec, texts: Sequence[str | bytes]) -> Array:
    """Returns the rows of an input whose files are given as texts, UINT8 of the input's shape. Raises ServingError
    (INVALID)."""
    where = f"input '{tensor.name}'"
    files = [decoded(text, f"{where}: element {i}") for i, text in enumerate(texts)]
    if len({len(file) for file in files}) > 1:
        sizes = ", ".join(str(len(file)) for file in files[:8])
        raise invalid(f"{where}: the files of a request must have one size, got {sizes}: send a request for each")
    size = len(files[0]) if files else 0
    inner = tuple(size if dim == -1 else dim for dim in tensor.dims)
    array: Array = np.frombuffer(b"".join(files), np.uint8)
    return array.reshape((len(files), *inner) if spec.batched else inner)
