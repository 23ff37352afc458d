"""Voxelize in NumPy."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array

#: Voxel numbers lie in [-LIMIT, LIMIT).
LIMIT = 2**20


def reference(points: Array, size: Array, range: Array | None) -> tuple[Array, Array, Array]:
    """features f32 [v, c], coords i32 [v, 3] (x, y, z) and counts i32 [v] of the v occupied voxels, in ascending order
    of (z, y, x). `points` f32 [n, c] have x, y, z first; `size` f32 [3]; `range` f32 [6] is x0 y0 z0 x1 y1 z1.

    Voxel numbers are formed in f32, means in f64. An axis of a range has round((high - low) / size) voxels, at least
    one. Points that a number behind the last voxel comes out for are in the last voxel.
    """
    place = points[:, :3]
    low = np.zeros(3, np.float32) if range is None else range[:3]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        number = np.floor((place - low) / size)
        if range is not None:
            voxels = np.maximum(np.round((range[3:] - low) / size), 1)
            number = np.minimum(number, voxels - 1)
    kept = ((number >= -LIMIT) & (number < LIMIT)).all(axis=1)
    if range is not None:
        kept &= ((place >= low) & (place < range[3:])).all(axis=1)
    number, points = number[kept].astype(np.int64), points[kept].astype(np.float64)
    coords, voxel, counts = np.unique(number[:, ::-1], axis=0, return_inverse=True, return_counts=True)
    sums = np.zeros((len(coords), points.shape[1]))
    np.add.at(sums, voxel.reshape(-1), points)
    return (sums / counts[:, None]).astype(np.float32), coords[:, ::-1].astype(np.int32), counts.astype(np.int32)
