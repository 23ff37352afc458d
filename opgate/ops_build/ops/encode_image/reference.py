"""EncodeImage by Pillow."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from opgate.ops_build.case import Array


def reference(image: Array, *, format: str, quality: int) -> Array:
    """The encoded bytes, u8 [size]. A JPEG is equal byte for byte (Pillow uses libjpeg-turbo too); a PNG holds the same
    pixels in other bytes."""
    buffer = io.BytesIO()
    picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    picture.save(buffer, format, quality=quality)
    return np.frombuffer(buffer.getvalue(), np.uint8)
