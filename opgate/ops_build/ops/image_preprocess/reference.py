"""ImagePreprocess in NumPy, with Pillow for JPEG."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.images.reference import DecodeError, open_picture


def reference(
    data: Array,
    ends: Array,
    *,
    height: int,
    width: int,
    pad: int,
    mean: Sequence[float],
    std: Sequence[float],
    order: str,
    max_pixels: int,
) -> tuple[Array, Array, Array]:
    """Planes f32 [n, 3, height, width], geometry f32 [n, 6] and status i32 [n] of the n encoded pictures in `data`."""
    count = len(ends)
    # Attributes are f32 in a model.
    shift, scale = np.array(mean, np.float32).astype(np.float64), np.array(std, np.float32).astype(np.float64)
    images = np.empty((count, 3, height, width), np.float32)
    images[:] = ((pad / 255 - shift) / scale)[:, None, None]
    geometry = np.tile(np.array([1, 1, 0, 0, 0, 0], np.float32), (count, 1))
    status = np.zeros(count, np.int32)
    begin = 0
    for i, end in enumerate(ends.tolist()):
        try:
            pixels, geometry[i] = letterboxed(data[begin:end].tobytes(), width, height, pad, max_pixels)
        except DecodeError as error:
            status[i] = error.status
        else:
            channels = pixels[..., ::-1] if order == "BGR" else pixels
            images[i] = ((channels / 255 - shift) / scale).transpose(2, 0, 1)
        begin = end
    return images, geometry, status


def letterboxed(data: bytes, width: int, height: int, pad: int, max_pixels: int) -> tuple[Array, Array]:
    """RGB f64 [height, width, 3] of 0..255 and the geometry of one picture. Raises DecodeError."""
    picture = open_picture(data, max_pixels)
    w, h = picture.upright_size
    ratio = min(width / w, height / h)
    new_w, new_h = (max(1, int(np.floor(side * ratio + 0.5))) for side in (w, h))
    left, top = (width - new_w) // 2, (height - new_h) // 2
    reduction = next(s for s in (8, 4, 2, 1) if s == 1 or (-(-w // s) >= new_w and -(-h // s) >= new_h))
    canvas = np.full((height, width, 3), float(pad))
    canvas[top : top + new_h, left : left + new_w] = bilinear(picture.pixels(reduction, pad), new_w, new_h)
    return canvas, np.array([w / new_w, h / new_h, left, top, w, h], np.float32)


def bilinear(pixels: Array, width: int, height: int) -> Array:
    """[h, w, c] resized in f64: half-pixel centres, two taps a direction, clamped at the edges."""
    for axis, to in ((0, height), (1, width)):
        size = pixels.shape[axis]
        place = np.clip((np.arange(to) + 0.5) * (size / to) - 0.5, 0, size - 1)
        first = place.astype(np.int64)
        second = np.minimum(first + 1, size - 1)
        weight = np.expand_dims(place - first, tuple(a for a in range(3) if a != axis))
        near, far = (pixels.take(taps, axis).astype(np.float64) for taps in (first, second))
        pixels = near + (far - near) * weight
    return pixels
