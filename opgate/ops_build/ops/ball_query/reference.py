"""BallQuery in NumPy: every distance."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(
    xyz: Array,
    offset: Array,
    new_xyz: Array | None,
    new_offset: Array | None,
    *,
    max_radius: float,
    min_radius: float,
    nsample: int,
    with_center: bool,
    pad: str,
    fill: int,
) -> tuple[Array, Array]:
    """idx i32 [m, nsample] and count i32 [m]: the first rows of `xyz` T [n, d] that are near each row of `new_xyz`
    T [m, d] (`xyz` itself where absent), within the segment that both belong to. Squared distances and squared radii
    are formed in T (f32 or f64), an operation at a time."""
    queries = xyz if new_xyz is None else new_xyz
    ends = new_offset if new_offset is not None else offset if new_xyz is None else np.array([len(queries)])
    idx, count = np.full((len(queries), nsample), fill, np.int32), np.zeros(len(queries), np.int32)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        least, below = (np.square(np.asarray(np.float32(radius), xyz.dtype)) for radius in (min_radius, max_radius))
        begin = first = 0
        for last, end in zip(offset.tolist(), ends.tolist(), strict=True):
            for i in range(first, end):
                squared = np.zeros(last - begin, xyz.dtype)
                for square in np.square(xyz[begin:last] - queries[i]).T:
                    squared = squared + square
                counts = (squared >= least) | (with_center & (squared == 0))
                rows = begin + np.flatnonzero((squared < below) & counts)[:nsample]
                count[i] = len(rows)
                if len(rows) and pad == "first":
                    idx[i] = rows[0]
                idx[i, : len(rows)] = rows
            begin, first = last, end
    return idx, count
