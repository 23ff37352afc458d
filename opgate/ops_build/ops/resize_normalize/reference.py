"""ResizeNormalize in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opgate.ops_build.case import Array


def reference(
    image: Array,
    *,
    height: int,
    width: int,
    mean: Sequence[float],
    std: Sequence[float],
    interpolation: str,
    antialias: bool,
    shorter_side: int,
) -> Array:
    """Planes f32 [n, c, height, width] of the pictures u8 [n, h, w, c]: (value / 255 - mean) / std of values resized in
    f64 with half-pixel centres, clamped at the edges."""
    resample = _nearest if interpolation == "nearest" else _antialiased if antialias else _linear
    resized = (height, width)
    if shorter_side and image.size and height and width:
        resized = tuple(shorter_side * side // min(image.shape[1:3]) for side in image.shape[1:3])
    pixels = resample(resample(image.astype(np.float64), 1, resized[0]), 2, resized[1])
    top, left = round((resized[0] - height) / 2), round((resized[1] - width) / 2)
    pixels = pixels[:, top : top + height, left : left + width]
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


def _antialiased(pixels: Array, axis: int, to: int) -> Array:
    """A triangle filter as wide as 2 pixels of the result, of the source if that is more."""
    size = pixels.shape[axis]
    step = size / max(to, 1)
    distances = (np.arange(size)[None] + 0.5 - (np.arange(to)[:, None] + 0.5) * step) / max(step, 1)
    weights = np.maximum(1 - np.abs(distances), 0)
    if size:
        weights /= weights.sum(1, keepdims=True)
    filtered: Array = np.moveaxis(np.tensordot(weights, pixels, (1, axis)), 0, axis)
    return filtered


def _nearest(pixels: Array, axis: int, to: int) -> Array:
    """Of two places as near, the lower."""
    size = pixels.shape[axis]
    return pixels.take([((2 * i + 1) * size - 1) // (2 * to) for i in range(to)], axis)
