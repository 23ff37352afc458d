"""FarthestPointSample in NumPy: every distance to every sample."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(xyz: Array, offset: Array, new_offset: Array) -> Array:
    """idx i32 [v]: the rows of `xyz` T [n, d] (f32 or f64) that sample the segments, new_offset[i] - new_offset[i - 1]
    of segment i. Distances are formed in T, an operation at a time; of equally far points the lowest row is taken."""
    idx: list[int] = []
    begin = 0
    for end, last in zip(offset.tolist(), new_offset.tolist(), strict=True):
        points = xyz[begin:end]
        # What is not finite comes after all other points: it is as far as -1. Samples are as far as -2.
        closest = np.where(np.isfinite(points).all(axis=1), np.inf, -1).astype(xyz.dtype)
        row = 0
        while len(idx) < last:
            idx.append(begin + row)
            with np.errstate(invalid="ignore", over="ignore", under="ignore"):
                squared = np.zeros(len(points), xyz.dtype)
                for square in np.square(points - points[row]).T:
                    squared = squared + square
                closest = np.where(squared < closest, squared, closest)
            closest[row] = -2
            row = int(np.argmax(closest))
        begin = end
    return np.array(idx, np.int32)
