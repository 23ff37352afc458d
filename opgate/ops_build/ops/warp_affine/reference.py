"""WarpAffine in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opgate.ops_build.case import Array


def reference(
    image: Array,
    matrix: Array,
    index: Array | None,
    *,
    height: int,
    width: int,
    maps_to: str,
    border: Sequence[int],
    mean: Sequence[float],
    std: Sequence[float],
) -> Array:
    """Planes f32 [r, 3, height, width] of crops of pictures u8 [n, h, w, 3]: (value / 255 - mean) / std of values that
    are interpolated in f64 at the places that `matrix` T [r, 2, 3] says."""
    n, h, w, _ = image.shape
    crops = np.zeros((len(matrix), height, width, 3))
    y, x = np.mgrid[:height, :width].astype(np.float64)
    numbers = index if index is not None else np.zeros(len(matrix), int) if n == 1 else np.arange(len(matrix))
    for crop, number, rows in zip(crops, numbers, matrix.astype(np.float64), strict=True):
        with np.errstate(all="ignore"):
            (a, b, c), (d, e, f) = _inverse(rows) if maps_to == "crop" else rows
            # Everything outside is equal, and may be brought near.
            across = np.clip(np.nan_to_num(a * x + b * y + c, nan=-9), -9, w + 9)
            down = np.clip(np.nan_to_num(d * x + e * y + f, nan=-9), -9, h + 9)
        framed = np.empty((h + 24, w + 24, 3))
        framed[:] = border
        framed[12 : h + 12, 12 : w + 12] = image[number]
        left, top = np.floor(across).astype(int), np.floor(down).astype(int)
        for row in (0, 1):
            for column in (0, 1):
                weight = np.abs(1 - row - (down - top)) * np.abs(1 - column - (across - left))
                crop[:] += weight[..., None] * framed[top + row + 12, left + column + 12]
    # Attributes are f32 in a model.
    shift, scale = np.array(mean, np.float32).astype(np.float64), np.array(std, np.float32).astype(np.float64)
    return ((crops / 255 - shift) / scale).transpose(0, 3, 1, 2).astype(np.float32)


def _inverse(rows: Array) -> Array:
    (a, b, c), (d, e, f) = rows
    determinant = a * e - b * d
    if determinant == 0:
        return np.full((2, 3), np.nan)
    turned = np.array([[e, -b], [-d, a]]) / determinant
    return np.concatenate([turned, -turned @ [[c], [f]]], axis=1)
