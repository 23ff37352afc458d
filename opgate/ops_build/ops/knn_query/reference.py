"""KNNQuery in NumPy: every distance, sorted."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(
    xyz: Array, offset: Array, new_xyz: Array | None, new_offset: Array | None, *, nsample: int, fill: int
) -> tuple[Array, Array]:
    """idx i32 and dist T [m, nsample]: the rows of `xyz` T [n, d] nearest to each row of `new_xyz` T [m, d]
    (`xyz` itself where absent) within the segment that both belong to, `fill` and inf where the segment has no more.

    Distances are formed in T (f32 or f64), an operation at a time; equal ones are ordered by index.
    """
    queries = xyz if new_xyz is None else new_xyz
    ends = new_offset if new_offset is not None else offset if new_xyz is None else np.array([len(queries)])
    idx = np.full((len(queries), nsample), fill, np.int32)
    dist = np.full((len(queries), nsample), np.inf, xyz.dtype)
    begin = first = 0
    for last, end in zip(offset.tolist(), ends.tolist(), strict=True):
        for i in range(first, end):
            with np.errstate(invalid="ignore", over="ignore", under="ignore"):
                squared = np.zeros(last - begin, xyz.dtype)
                for square in np.square(xyz[begin:last] - queries[i]).T:
                    squared = squared + square
            squared = np.where(np.isnan(squared), np.inf, squared)
            # The nsample smallest, and all that equal the largest of them.
            most = np.partition(squared, nsample - 1)[nsample - 1] if 0 < nsample < len(squared) else np.inf
            near = np.flatnonzero((squared <= most) & (squared < np.inf))
            order = near[np.argsort(squared[near], kind="stable")][:nsample]
            idx[i, : len(order)] = begin + order
            dist[i, : len(order)] = np.sqrt(squared[order])
        begin, first = last, end
    return idx, dist
