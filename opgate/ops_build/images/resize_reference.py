"""Resizes pictures of bytes as Pillow's Image.resize and OpenCV's cv2.resize do: with Pillow itself, and in NumPy."""

from __future__ import annotations

import numpy as np
from PIL import Image

from opgate.ops_build.case import Array

#: OpenCV's weights are multiples of 1/2048.
OPENCV_ONE = 2048


def resized(pixels: Array, width: int, height: int, name: str) -> Array:
    """Returns u8 [height, width, c] of u8 [h, w, c], c = 1 or 3. `name` is a filter of ImagePreprocess but fast."""
    if pixels.shape[:2] == (height, width):
        return pixels
    library, _, kind = name.partition("_")
    return _by_pillow(pixels, width, height, kind) if library == "pil" else _by_opencv(pixels, width, height, kind)


def _by_pillow(pixels: Array, width: int, height: int, kind: str) -> Array:
    """Two calls of Pillow, each for one side. So the order of the passes is that of Pillow 13 with any Pillow."""
    h, w = pixels.shape[:2]
    image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0])
    vertical_first = h > height and h - height > 2 * (w - width)
    for size in ((w, height) if vertical_first else (width, h), (width, height)):
        image = image.resize(size, Image.Resampling[kind.upper()])
    return np.asarray(image).reshape(height, width, pixels.shape[2])


def _scale(size: int, to: int) -> float:
    return 1 / (to / size)


def _by_opencv(pixels: Array, width: int, height: int, kind: str) -> Array:
    h, w, channels = pixels.shape
    scales = [_scale(h, height), _scale(w, width)]
    if kind == "nearest":
        for axis, to in ((0, height), (1, width)):
            size = pixels.shape[axis]
            pixels = pixels.take(np.minimum(np.floor(np.arange(to) * scales[axis]).astype(int), size - 1), axis)
        return pixels
    factors = [round(scale) for scale in scales]
    whole = all(abs(scale - factor) < np.finfo(float).eps for scale, factor in zip(scales, factors, strict=True))
    if kind == "linear" and whole and factors == [2, 2]:
        kind = "area"
    if kind == "area" and min(scales) >= 1:
        if not whole:
            return _area(pixels, width, height)
        return _block_means(pixels.reshape(height, factors[0], width, factors[1], channels))
    columns, of_column = _taps(w, width, kind, clamp=True)
    rows, of_row = _taps(h, height, kind, clamp=False)
    across = np.einsum("hxkc,xk->hxc", pixels[:, columns].astype(np.int64), of_column)
    if kind in ("linear", "area"):
        parts: Array = (across[rows] >> 4) * of_row[..., None, None] >> 16
        values: Array = parts.sum(1) + 2 >> 2
    else:
        values = np.einsum("ykxc,yk->yxc", across[rows], of_row) + (1 << 21) >> 22
    return values.clip(0, 255).astype(np.uint8)


def _bytes(values: Array) -> Array:
    rounded: Array = np.rint(values).clip(0, 255)
    return rounded.astype(np.uint8)


def _block_means(blocks: Array) -> Array:
    """Returns the means of u8 [height, rows, width, columns, c] over rows and columns. Those of 2 x 2 are rounded up
    from a half, others to the even one of two."""
    sums = blocks.sum((1, 3), dtype=np.int64)
    rows, columns = blocks.shape[1], blocks.shape[3]
    if (rows, columns) == (2, 2):
        means: Array = sums + 2 >> 2
        return means.astype(np.uint8)
    return _bytes(sums.astype(np.float32) * np.float32(1 / np.float32(rows * columns)))


def _taps(size: int, to: int, kind: str, clamp: bool) -> tuple[Array, Array]:
    """Returns the source pixels of each pixel, and their weights: i64 [to, taps]. With `clamp`, the linear filters give
    all weight to the pixel at the edge."""
    index = np.arange(to)
    if kind == "area":
        first = np.floor(index * _scale(size, to)).astype(np.int64)
        part = ((index + 1) - (first + 1) * (to / size)).astype(np.float32)
        part = np.where(part <= 0, np.float32(0), part - np.floor(part))
    else:
        place = ((index + 0.5) * _scale(size, to) - 0.5).astype(np.float32)
        first = np.floor(place).astype(np.int64)
        part = place - first.astype(np.float32)
    if kind in ("linear", "area"):
        if clamp:
            part = np.where((first < 0) | (first >= size - 1), np.float32(0), part)
            first = first.clip(0, size - 1)
        weights, before = np.stack([1 - part, part], axis=-1), 0
    else:
        weights, before = (_cubic(part), 1) if kind == "cubic" else (_lanczos(part), 3)
    taps = first[:, None] - before + np.arange(weights.shape[1])
    return taps.clip(0, size - 1), np.rint(weights * np.float32(OPENCV_ONE)).astype(np.int64)


def _cubic(part: Array) -> Array:
    """Keys' cubic convolution with a = -3/4, f32 [n, 4]."""
    a, t = -0.75, part.astype(np.float64)
    outer = ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a
    left, right = (((a + 2) * d - (a + 3)) * d * d + 1 for d in (t, 1 - t))
    weights = np.stack([outer, left, right], axis=-1).astype(np.float32)
    return np.concatenate([weights, 1 - weights.sum(-1, keepdims=True)], axis=-1)


def _lanczos(part: Array) -> Array:
    """sinc(t) sinc(t / 4), divided by its sum, f32 [n, 8]."""
    t = (part[:, None] + np.arange(3, -5, -1, dtype=np.float32)).astype(np.float64)
    at_pixel = np.abs(t) < 1e-6
    angle = np.where(at_pixel, 1, -t * np.pi / 4)
    weights = (np.where(np.arange(8) % 2, -1, 1) * np.sin(angle) / angle**2).astype(np.float32)
    weights = np.where(at_pixel.any(-1, keepdims=True), at_pixel.astype(np.float32), weights)
    total = np.add.accumulate(weights, axis=-1)[:, -1:]
    scaled: Array = weights * (np.float32(1) / total)
    return scaled


def _area(pixels: Array, width: int, height: int) -> Array:
    """The means of the source pixels, and parts of pixels, that each pixel covers; summed up in f32 in their order."""
    for axis, to in ((1, width), (0, height)):
        size, scale = pixels.shape[axis], _scale(pixels.shape[axis], to)
        values = np.moveaxis(pixels, axis, 0).astype(np.float32)
        means = np.zeros((to, *values.shape[1:]), np.float32)
        for i in range(to):
            begin, end = i * scale, i * scale + scale
            covered, last = min(scale, size - begin), min(int(end), size - 1)
            first = min(int(np.ceil(begin)), last)
            parts = [(first - 1, first - begin)] if first - begin > 1e-3 else []
            parts += [(source, 1.0) for source in range(first, last)]
            parts += [(last, min(end - last, 1.0, covered))] if end - last > 1e-3 else []
            for source, length in parts:
                means[i] += values[source] * np.float32(length / covered)
        pixels = np.moveaxis(means, 0, axis)
    return _bytes(pixels)
