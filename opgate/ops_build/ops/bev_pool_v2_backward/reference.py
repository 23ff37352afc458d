"""BevPoolV2Backward in NumPy, one point after the other."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.ops.bev_pool_v2.reference import points


def reference(
    grad_bev: Array,
    depth: Array,
    feat: Array,
    ranks_depth: Array,
    ranks_feat: Array,
    ranks_bev: Array,
    interval_starts: Array | None,
    interval_lengths: Array | None,
) -> tuple[Array, Array]:
    """grad_depth [b, cams, d, h, w] and grad_feat [b, cams, h, w, c] from grad_bev [b, z, y, x, c], computed in f64."""
    c = feat.shape[-1]
    rows, upstream = (array.astype(np.float64).reshape(int(np.prod(array.shape[:-1])), c) for array in (feat, grad_bev))
    grad_depth, grad_feat = np.zeros(depth.size), np.zeros(rows.shape)
    with np.errstate(all="ignore"):
        for i, row, cell in points(ranks_depth, ranks_feat, ranks_bev, interval_starts, interval_lengths):
            grad_depth[i] += upstream[cell] @ rows[row]
            grad_feat[row] += float(depth.flat[i]) * upstream[cell]
        return grad_depth.reshape(depth.shape).astype(depth.dtype), grad_feat.reshape(feat.shape).astype(feat.dtype)
