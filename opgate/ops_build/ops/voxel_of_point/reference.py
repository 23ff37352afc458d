"""VoxelOfPoint in NumPy."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.ops.voxelize.reference import voxels_of


def reference(
    points: Array, coords: Array, size: Array, range: Array | None, *, order: str, batch_columns: int
) -> Array:
    """voxel i32 [n]: for each row of `points` f32 [n, c] the lowest row of `coords` i32 [v, 3 + batch_columns] that is
    its voxel, or -1. `points`, `size`, `range` and the attributes are those of Voxelize."""
    numbers = coords if order == "zyx" else np.hstack([coords[:, :batch_columns], coords[:, batch_columns:][:, ::-1]])
    rows: dict[tuple[int, ...], int] = {}
    for row, number in enumerate(numbers.tolist()):
        rows.setdefault(tuple(number), row)
    kept, keys = voxels_of(points, size, range, batch_columns)
    voxel = np.full(len(points), -1, np.int32)
    voxel[kept] = [rows.get(tuple(key), -1) for key in keys.tolist()]
    return voxel
