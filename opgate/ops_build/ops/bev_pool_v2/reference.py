"""BevPoolV2 in NumPy, one point after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from opgate.ops_build.case import Array


def points(
    ranks_depth: Array, ranks_feat: Array, ranks_bev: Array, starts: Array | None, lengths: Array | None
) -> Iterator[tuple[int, int, int]]:
    """The depth, the row of features and the cell of each point that counts. Without intervals all do; the points of an
    interval belong to the cell of its first one."""
    if starts is None or lengths is None:
        yield from zip(ranks_depth, ranks_feat, ranks_bev, strict=True)
        return
    for start, length in zip(starts, lengths, strict=True):
        for i in range(start, start + length):
            yield ranks_depth[i], ranks_feat[i], ranks_bev[start]


def reference(
    depth: Array,
    feat: Array,
    ranks_depth: Array,
    ranks_feat: Array,
    ranks_bev: Array,
    interval_starts: Array | None,
    interval_lengths: Array | None,
    *,
    out_z: int,
    out_height: int,
    out_width: int,
) -> Array:
    """bev [b, out_z, out_height, out_width, c] of the dtype of depth [b, cams, d, h, w]: for each cell the sum of the
    rows of feat [b, cams, h, w, c] times their depth, computed in f64."""
    dims = (depth.shape[0], out_z, out_height, out_width, feat.shape[-1])
    bev = np.zeros((int(np.prod(dims[:-1])), dims[-1]))
    rows = feat.astype(np.float64).reshape(int(np.prod(feat.shape[:-1])), dims[-1])
    with np.errstate(all="ignore"):
        for i, row, cell in points(ranks_depth, ranks_feat, ranks_bev, interval_starts, interval_lengths):
            bev[cell] += float(depth.flat[i]) * rows[row]
        return bev.reshape(dims).astype(depth.dtype)
