"""Masks of things in a picture as run lengths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opgate.service.core.request import Array

#: From which value on a cell of a mask belongs to its thing.
_HALF = 127.5


def run_lengths(mask: Array, geometry: Array, box: Sequence[float] | Array) -> tuple[tuple[int, int], Array]:
    """Returns the height and width of a picture, and the run lengths i64 of a mask in it as COCO's uncompressed RLE has
    them: of pixels outside and inside in turn, first outside, column by column.

    `mask` u8 [h, w] has the probability of each cell, 0..255. `geometry` f32 [6] is that of ImagePreprocess, in cells
    in place of the network's pixels: how many pixels of the picture a cell has in x and y, the column and row at which
    the picture begins in the mask, and the picture's width and height. `box` f32 [4], x1 y1 x2 y2 in pixels of the
    picture, cuts the mask: what counts are the pixels of its columns and rows from x1 and y1 to before x2 and y2.

    Between the centres of cells the probability is interpolated linearly, and a pixel belongs to the thing if it is
    above one half at its centre. Each column is a polyline whose crossings of one half are computed, so that no mask of
    the picture's size is made.
    """
    width, height = (int(side) for side in geometry[4:])
    nothing = (height, width), np.array([height * width], np.int64)
    if mask.size == 0 or not np.isfinite(box).all():
        return nothing
    (left, right), (top, bottom) = (
        (int(np.ceil(np.clip(box[axis], 0, side))), int(np.ceil(np.clip(box[axis + 2], 0, side))))
        for axis, side in ((0, width), (1, height))
    )
    if left >= right or top >= bottom:
        return nothing
    scale, origin = geometry[:2].astype(np.float64), geometry[2:4].astype(np.float64)
    at = np.clip((np.arange(left, right) + 0.5) / scale[0] + origin[0] - 0.5, 0, mask.shape[1] - 1)
    rows = np.clip(np.array([top, bottom]) / scale[1] + origin[1] - 0.5, 0, mask.shape[0] - 1)
    first, last = int(np.floor(rows[0])), int(np.ceil(rows[1])) + 1
    before, part = np.floor(at).astype(np.intp), mask[first:last].astype(np.float32)
    after, share = np.minimum(before + 1, mask.shape[1] - 1), (at - np.floor(at)).astype(np.float32)
    values = (part[:, before] * (1 - share) + part[:, after] * share).T  # [columns of the picture, rows of the mask]
    inside = np.pad(values > _HALF, ((0, 0), (1, 1)))
    column, knot = np.nonzero(inside[:, 1:] != inside[:, :-1])  # a change in front of the row `knot` of the part
    one, other = (values[column, np.clip(knot - i, 0, values.shape[1] - 1)] for i in (1, 0))
    step = np.divide(_HALF - one, other - one, out=np.zeros_like(one), where=one != other)
    crossing = (first + knot - 0.5 + step - origin[1]) * scale[1]  # the row `knot` of the part has its centre at + 0.5
    edges = np.ceil(crossing - 0.5)
    edges = np.where(knot == 0, top, np.where(knot == values.shape[1], bottom, np.clip(edges, top, bottom)))
    return (height, width), _lengths((left + column) * height + edges.astype(np.int64), height * width)


def _lengths(changes: Array, count: int) -> Array:
    """Returns the lengths of the runs between changes, which ascend. Two changes at one place are none."""
    places, times = np.unique(changes, return_counts=True)
    return np.diff(places[(times % 2 == 1) & (places < count)], prepend=0, append=count)
