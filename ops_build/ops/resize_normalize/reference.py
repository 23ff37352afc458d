"""ResizeNormalize in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opgate.ops_build.case import Array


def reference(
    image: Array, *, height: int, width: int, mean: Sequence[float], std: Sequence[float], interpolation: str
) -> Array:
    """Planes f32 [n, 3, height, width] of the pictures u8 [n, h, w, 3]: (value / 255 - mean) / std of values resized in
    f64 with half-pixel centres, clamped at the edges."""
    resample = _nearest if interpolation == "nearest" else _linear
    pixels = resample(resample(image.astype(np.float64), 1, height), 2, width)
    # Attributes are f32 in a model.
    shift, scale = np.array(mean, np.float32).astype(np.float64), np.array(std, np.float32).astype(np.float64)
    return ((pixels / 255 - shift) / scale).transpose(0, 3, 1, 2).astype(np.float32)


def _linear(pixels: Array, axis: int, to: int) -> Array:
    size = pixels.shape[axis]
    place = np.clip((np.arange(to) + 0.5) * (size / max(to, 1)) - 0.5, 0, max(size - 1, 0))
    first = place.astype(np.int64)
    second = np.minimum(first + 1, size - 1)
    weight = (place - first).reshape([-1 if a == axis else 1 for a in range(4)])
    near, far = pixels.take(first, axis), pixels.take(second, axis)
    between: Array = near + (far - near) * weight
    return between


def _nearest(pixels: Array, axis: int, to: int) -> Array:
    """Of two places as near, the lower."""
    size = pixels.shape[axis]
    return pixels.take([((2 * i + 1) * size - 1) // (2 * to) for i in range(to)], axis)
