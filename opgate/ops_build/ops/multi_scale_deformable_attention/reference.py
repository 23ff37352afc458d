"""MultiScaleDeformableAttention in NumPy, one level and one corner after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from opgate.ops_build.case import Array


@dataclass(frozen=True)
class Corner:
    """Samples that have a key at one of their four corners.

    `b`, `query`, `head` and `point` say which samples, `key` which key. `weight` is how near the key is, and
    `slope_x` and `slope_y` how that changes with the sample's location.
    """

    level: int
    b: Array
    query: Array
    head: Array
    point: Array
    key: Array
    weight: Array
    slope_x: Array
    slope_y: Array


def corners(spatial_shapes: Array, level_start_index: Array, sampling_locations: Array) -> Iterator[Corner]:
    for level, ((height, width), start) in enumerate(zip(spatial_shapes, level_start_index, strict=True)):
        number = np.promote_types(sampling_locations.dtype, np.float32)  # places are rounded to it
        location = sampling_locations[:, :, :, level].astype(number)
        with np.errstate(all="ignore"):
            x, y = (
                location[..., axis] * number.type(size) - number.type(0.5) for axis, size in ((0, width), (1, height))
            )
            inside = (x > -1) & (y > -1) & (x < width) & (y < height)
        x, y = np.where(inside, x, 0).astype(np.float64), np.where(inside, y, 0).astype(np.float64)
        for down, right in np.ndindex(2, 2):
            column, row = np.floor(x).astype(int) + right, np.floor(y).astype(int) + down
            near_x, near_y = 1 - abs(x - column), 1 - abs(y - row)
            if not height * width:
                continue
            exists = inside & (column >= 0) & (column < width) & (row >= 0) & (row < height)
            key = int(start) + row * width + column
            b, query, head, point = np.nonzero(exists)
            slope_x, slope_y = (2 * right - 1) * near_y * width, (2 * down - 1) * near_x * height
            yield Corner(
                level, b, query, head, point, key[exists], (near_x * near_y)[exists], slope_x[exists], slope_y[exists]
            )


def reference(
    value: Array,
    spatial_shapes: Array,
    level_start_index: Array,
    sampling_locations: Array,
    attention_weights: Array,
) -> Array:
    """output [b, queries, heads * dims] of the dtype of value [b, keys, heads, dims], computed in f64."""
    b, _, heads, dims = value.shape
    queries = sampling_locations.shape[1]
    output = np.zeros((b, queries, heads, dims))
    with np.errstate(all="ignore"):
        for corner in corners(spatial_shapes, level_start_index, sampling_locations):
            at = (corner.b, corner.query, corner.head)
            attention = attention_weights[(*at, corner.level, corner.point)].astype(np.float64)
            values = value[corner.b, corner.key, corner.head].astype(np.float64)
            np.add.at(output, at, (attention * corner.weight)[:, None] * values)
        return output.reshape(b, queries, heads * dims).astype(value.dtype)
