"""DecodeImage in NumPy, with Pillow for JPEG."""

from __future__ import annotations

from opgate.ops_build.case import Array
from opgate.ops_build.images.reference import open_picture


def reference(data: Array, *, max_pixels: int) -> Array:
    """u8 [h, w, 3], upright, transparent pixels over white. Raises DecodeError."""
    return open_picture(data.tobytes(), max_pixels).pixels(1, 255)
