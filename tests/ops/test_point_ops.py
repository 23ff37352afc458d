"""KNNQuery against SciPy's k-d tree, Voxelize against SciPy's binned statistics."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import cKDTree
from scipy.stats import binned_statistic_dd

from opgate.ops_build.case import Array
from tests.ops.conftest import RunOp


def tree_query(xyz: Array, ends: list[int], queries: Array, query_ends: list[int], k: int) -> tuple[Array, Array]:
    """Returns idx and dist from SciPy, with one tree for each segment."""
    idx, dist = np.full((len(queries), k), -1), np.full((len(queries), k), np.inf)
    begin = first = 0
    for last, end in zip(ends, query_ends, strict=True):
        if last > begin and end > first:
            distances, rows = cKDTree(xyz[begin:last].astype(np.float64)).query(
                queries[first:end].astype(np.float64), range(1, k + 1)
            )
            idx[first:end] = np.where(rows < last - begin, rows + begin, -1)
            dist[first:end] = distances
        begin, first = last, end
    return idx, dist


def check(run_op: RunOp, xyz: Array, ends: list[int], queries: Array | None, query_ends: list[int], k: int) -> None:
    inputs = {"xyz": xyz, "offset": np.int32(ends), "new_xyz": queries}
    inputs["new_offset"] = None if queries is None else np.int32(query_ends)
    idx, dist = run_op("KNNQuery", inputs, {"nsample": k})
    positions = xyz if queries is None else queries
    expected_idx, expected_dist = tree_query(xyz, ends, positions, query_ends, k)
    np.testing.assert_allclose(dist, expected_dist, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(idx < 0, expected_idx < 0)
    # In f32 two neighbours at almost the same distance may swap.
    assert (idx != expected_idx).mean() < 1e-3
    apart = np.linalg.norm(xyz[idx].astype(np.float64) - positions[:, None], axis=-1)
    np.testing.assert_allclose(np.where(idx < 0, np.inf, apart), expected_dist, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("k", [1, 3, 16, 50])
@pytest.mark.parametrize("ends", [[2000], [10, 10, 500, 1990, 2000], [0, 2000, 2000]])
def test_neighbours_agree_with_the_tree(run_op: RunOp, k: int, ends: list[int]) -> None:
    xyz = np.random.default_rng(k).uniform(-1, 1, (2000, 3)).astype(np.float32)
    check(run_op, xyz, ends, None, ends, k)


@pytest.mark.parametrize("k", [1, 16, 200])
def test_a_query_finds_neighbours_in_its_own_segment(run_op: RunOp, k: int) -> None:
    rng = np.random.default_rng(k)
    xyz, queries = (rng.normal(0, 1, (n, 3)).astype(np.float32) for n in (1500, 130))
    check(run_op, xyz, [3, 700, 700, 1500], queries, [30, 30, 31, 130], k)


def test_on_a_grid_the_distances_agree_with_the_tree(run_op: RunOp) -> None:
    """Many neighbours are equally near. The tree may order them differently, but the distances must agree."""
    xyz = np.stack(np.meshgrid(*[np.arange(9)] * 3), axis=-1).reshape(-1, 3).astype(np.float32)
    idx, dist = run_op("KNNQuery", {"xyz": xyz, "offset": np.int32([729])}, {"nsample": 20})
    np.testing.assert_array_equal(dist, tree_query(xyz, [729], xyz, [729], 20)[1].astype(np.float32))
    np.testing.assert_array_equal(np.linalg.norm(xyz[idx] - xyz[:, None], axis=-1).astype(np.float32), dist)
    ties = dist[:, 1:] == dist[:, :-1]
    assert (idx[:, 1:][ties] > idx[:, :-1][ties]).all()


@pytest.mark.parametrize("ranged", [False, True])
@pytest.mark.parametrize(("n", "c"), [(1, 3), (500, 4), (30_000, 6)])
def test_voxels_agree_with_scipys_bins(run_op: RunOp, n: int, c: int, ranged: bool) -> None:
    rng = np.random.default_rng(n)
    # Coordinates in sixteenths and sizes that are powers of two are exact in f32: no point is rounded into another bin.
    points = (rng.integers(-80, 80, (n, c)) / 16).astype(np.float32)
    size = np.float32([0.5, 1, 0.25])
    low, high = ([-2.0, -3.0, -4.5], [4.0, 2.0, 5.0]) if ranged else ([-5.0] * 3, [5.0] * 3)
    inputs = {"points": points, "size": size, "range": np.float32([*low, *high]) if ranged else None}
    features, coords, counts = run_op("Voxelize", inputs)

    inside = ((points[:, :3] >= low) & (points[:, :3] < high)).all(axis=1)
    kept = points[inside].astype(np.float64)
    # The axes are reversed, so that the bins come in the order of (z, y, x).
    edges = [np.arange(low[a], high[a] + size[a] / 2, size[a]) for a in (2, 1, 0)]
    columns = binned_statistic_dd(kept[:, [2, 1, 0]], kept.T, "mean", edges).statistic
    number = binned_statistic_dd(kept[:, [2, 1, 0]], None, "count", edges).statistic
    occupied = np.argwhere(number)
    first = np.zeros(3) if ranged else np.floor(low / size)
    np.testing.assert_array_equal(coords, occupied[:, ::-1] + first)
    np.testing.assert_array_equal(counts, number[number > 0])
    np.testing.assert_allclose(features, columns[:, number > 0].T, rtol=1e-6, atol=1e-7)


def test_the_order_of_points_does_not_matter(run_op: RunOp) -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(0, 3, (5000, 4)).astype(np.float32)
    one, other = (
        run_op("Voxelize", {"points": p, "size": np.float32([1, 1, 1])}) for p in (points, rng.permutation(points))
    )
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
