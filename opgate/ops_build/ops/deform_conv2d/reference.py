"""DeformConv2d in NumPy: samples of the input, and a product with the filters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from opgate.ops_build.case import Array


def corners(
    h: int, w: int, weight: Array, offset: Array, attributes: dict[str, int]
) -> Iterator[tuple[int, int, tuple[Array, ...], Array, Array, Array, Array, Array]]:
    """For each offset group, tap and corner: the group, the tap, the samples (image, row and column of the output) that
    have a pixel there, its row and column, its weight, and the weight's slopes along y and x."""
    kh, kw = weight.shape[2:]
    number = np.promote_types(offset.dtype, np.float32)  # places are rounded to it
    places = offset.astype(number).reshape(len(offset), offset.shape[1] // (2 * kh * kw), kh * kw, 2, *offset.shape[2:])
    for group, tap in np.ndindex(places.shape[1], kh * kw):
        rows, columns = np.ogrid[: offset.shape[2], : offset.shape[3]]
        with np.errstate(all="ignore"):
            y = rows * attributes["stride_h"] - attributes["pad_h"] + tap // kw * attributes["dilation_h"]
            x = columns * attributes["stride_w"] - attributes["pad_w"] + tap % kw * attributes["dilation_w"]
            y, x = y.astype(number) + places[:, group, tap, 0], x.astype(number) + places[:, group, tap, 1]
            inside = (y > -1) & (x > -1) & (y < h) & (x < w)
        y, x = np.where(inside, y, 0).astype(np.float64), np.where(inside, x, 0).astype(np.float64)
        for down, right in np.ndindex(2, 2):
            row, column = np.floor(y).astype(int) + down, np.floor(x).astype(int) + right
            near_y, near_x = 1 - abs(y - row), 1 - abs(x - column)
            exists = inside & (row >= 0) & (row < h) & (column >= 0) & (column < w)
            yield (
                group, tap, np.nonzero(exists), row[exists], column[exists], (near_y * near_x)[exists],
                ((2 * down - 1) * near_x)[exists], ((2 * right - 1) * near_y)[exists],
            )  # fmt: skip


def columns_of(input: Array, weight: Array, offset: Array, mask: Array | None, attributes: dict[str, int]) -> Array:
    """The samples [n, c, taps, oh, ow], times the mask."""
    n, c, h, w = input.shape
    taps = weight.shape[2] * weight.shape[3]
    columns = np.zeros((n, c, taps, *offset.shape[2:]))
    size = c // (offset.shape[1] // (2 * taps))
    factor = None if mask is None else mask.astype(np.float64).reshape(n, c // size, taps, *offset.shape[2:])
    for group, tap, (image, i, j), row, column, near, _, _ in corners(h, w, weight, offset, attributes):
        weights = near if factor is None else near * factor[image, group, tap, i, j]
        for channel in range(group * size, (group + 1) * size):
            columns[image, channel, tap, i, j] += weights * input[image, channel, row, column].astype(np.float64)
    return columns


def reference(
    input: Array, weight: Array, offset: Array, bias: Array | None, mask: Array | None, **attributes: Any
) -> Array:
    """output [n, oc, oh, ow] of the dtype of input [n, c, h, w], computed in f64."""
    n, c = input.shape[:2]
    oc, cg = weight.shape[:2]
    groups = c // cg
    with np.errstate(all="ignore"):
        columns = columns_of(input, weight, offset, mask, attributes)
        columns = columns.reshape(n, groups, cg, *columns.shape[2:])
        filters = weight.astype(np.float64).reshape(groups, oc // groups, cg, columns.shape[3])
        output = np.einsum("ngctij,goct->ngoij", columns, filters).reshape(n, oc, *offset.shape[2:])
        if bias is not None:
            output += bias.astype(np.float64)[:, None, None]
        return np.asarray(output, input.dtype)
