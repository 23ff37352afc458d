"""Voxelize in NumPy."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def voxels_of(points: Array, size: Array, range: Array | None, batch_columns: int) -> tuple[Array, Array]:
    """Which points are in a voxel, bool [n], and for these m points the numbers (batch, z, y, x) of their voxels, i64
    [m, 3 + batch_columns].

    Voxel numbers are formed in f32. An axis of a range has round((high - low) / size) voxels, at least one. Points that
    a number behind the last voxel comes out for are in the last voxel.
    """
    limit = 2**15 if batch_columns else 2**20  # voxel numbers lie in [-limit, limit)
    batch, place = points[:, :batch_columns], points[:, batch_columns : batch_columns + 3]
    low = np.zeros(3, np.float32) if range is None else range[:3]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        number = np.floor((place - low) / size)
        if range is not None:
            voxels = np.maximum(np.round((range[3:] - low) / size), 1)
            number = np.minimum(number, voxels - 1)
    kept = ((number >= -limit) & (number < limit)).all(axis=1)
    kept &= ((batch >= 0) & (batch < 2**15) & (batch == np.floor(batch))).all(axis=1)
    if range is not None:
        kept &= ((place >= low) & (place < range[3:])).all(axis=1)
    return kept, np.hstack([batch[kept], number[kept, ::-1]]).astype(np.int64)


def reference(
    points: Array,
    size: Array,
    range: Array | None,
    *,
    reduction: str,
    max_points: int,
    max_voxels: int,
    order: str,
    batch_columns: int,
) -> tuple[Array, Array, Array]:
    """features f32 [v, c - batch_columns], coords i32 [v, 3 + batch_columns] and counts i32 [v] of the v occupied
    voxels, in ascending order of (batch, z, y, x). `points` f32 [n, c] begin with the batch number, if there is one,
    and x, y, z; `size` f32 [3]; `range` f32 [6] is x0 y0 z0 x1 y1 z1. Points whose batch number is none are dropped.
    Sums are formed in f64.
    """
    kept, keys = voxels_of(points, size, range, batch_columns)
    features = points[kept, batch_columns:].astype(np.float64)
    coords, first, voxel, counts = np.unique(keys, axis=0, return_index=True, return_inverse=True, return_counts=True)
    voxel = voxel.reshape(-1)
    if max_points:
        sorted_points = np.argsort(voxel, kind="stable")
        ranks = np.arange(len(voxel)) - (np.cumsum(counts) - counts)[voxel[sorted_points]]
        used = np.sort(sorted_points[ranks < max_points])
        features, voxel, counts = features[used], voxel[used], np.minimum(counts, max_points)
    reduced = np.full((len(coords), features.shape[1]), -np.inf if reduction == "max" else 0.0)
    with np.errstate(invalid="ignore"):
        (np.maximum if reduction == "max" else np.add).at(reduced, voxel, features)
    if reduction == "mean":
        reduced /= counts[:, None]
    if order == "xyz":
        coords = np.hstack([coords[:, :batch_columns], coords[:, batch_columns:][:, ::-1]])
    rows = np.sort(np.argsort(first)[: max_voxels or None])
    with np.errstate(over="ignore"):
        return reduced[rows].astype(np.float32), coords[rows].astype(np.int32), counts[rows].astype(np.int32)
