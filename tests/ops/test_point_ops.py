"""KNNQuery and BallQuery against SciPy's k-d tree, FarthestPointSample against fpsample, GridCluster and ThreeInterpolate
against torch, Voxelize against SciPy's binned statistics, torch, a loop over the points and exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any

import fpsample
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree

from opgate.ops_build.case import Array
from opgate.ops_build.ops.voxelize.cases import GRIDS
from tests.conftest import examples
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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [1, 2, 4, 8, 20])
def test_neighbours_of_other_dims_agree_with_the_tree(run_op: RunOp, d: int, dtype: Any) -> None:
    rng = np.random.default_rng(d)
    xyz, queries = rng.normal(0, 1, (3500, d)).astype(dtype), rng.normal(0, 1, (150, d)).astype(dtype)
    inputs = {"xyz": xyz, "offset": np.int64([3500]), "new_xyz": queries}
    idx, dist = run_op("KNNQuery", inputs, {"nsample": 7})
    expected_idx, expected_dist = tree_query(xyz, [3500], queries, [150], 7)
    np.testing.assert_allclose(dist, expected_dist, rtol=1e-5)
    assert (idx != expected_idx).mean() < 1e-2


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_the_tree_finds_what_sorting_finds(run_op: RunOp, data: st.DataObject, seed: int) -> None:
    """Coordinates in quarters are exact in f32, and so are their distances. They make many ties."""
    rng = np.random.default_rng(seed)
    n, m = data.draw(st.integers(90, 400)), data.draw(st.integers(90, 200))
    spread, k = data.draw(st.sampled_from([1, 3, 10, 1000])), data.draw(st.integers(1, 40))
    xyz = (rng.integers(-spread, spread + 1, (n, 3)) / 4).astype(np.float32)
    queries = (rng.integers(-spread, spread + 1, (m, 3)) / 4).astype(np.float32)
    idx, dist = run_op("KNNQuery", {"xyz": xyz, "offset": np.int32([n]), "new_xyz": queries}, {"nsample": k})
    squares = ((queries[:, None].astype(np.float64) - xyz) ** 2).sum(axis=2)
    rows = np.lexsort((np.broadcast_to(np.arange(n), (m, n)), squares), axis=1)[:, :k]
    np.testing.assert_array_equal(idx[:, : rows.shape[1]], rows)
    expected = np.sqrt(np.take_along_axis(squares, rows, axis=1).astype(np.float32))
    np.testing.assert_array_equal(dist[:, : rows.shape[1]], expected)


def cells_of(pos: Array, size: Array, start: Array | None, end: Array | None) -> Array:
    """The clusters of torch_cluster's grid, in torch."""
    torch = pytest.importorskip("torch")
    x, side = torch.from_numpy(pos), torch.from_numpy(size)
    low = x.amin(0) if start is None else torch.from_numpy(start)
    high = x.amax(0) if end is None else torch.from_numpy(end)
    counts = ((high - low) / side).long() + 1
    strides = torch.cat([torch.ones(1, dtype=torch.long), counts.cumprod(0)[:-1]])
    return np.asarray((((x - low) / side).long() * strides).sum(1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (7, 5), (1000, 2), (50_001, 3)])
def test_cells_agree_with_torch(run_op: RunOp, n: int, d: int, dtype: Any) -> None:
    rng = np.random.default_rng(n)
    pos, size = rng.normal(0, 9, (n, d)).astype(dtype), rng.uniform(0.1, 2, d).astype(dtype)
    for start in (None, np.full(d, -4, dtype)):
        for end in (None, np.full(d, 5, dtype)):
            (cluster,) = run_op("GridCluster", {"pos": pos, "size": size, "start": start, "end": end})
            np.testing.assert_array_equal(cluster, cells_of(pos, size, start, end))


@pytest.mark.parametrize("apart", [False, True])
def test_the_gradient_of_distances_agrees_with_autograd(run_op: RunOp, apart: bool) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    xyz, queries = rng.normal(0, 1, (200, 3)), rng.normal(0, 1, (90, 3))
    inputs = {"xyz": xyz, "offset": np.int32([200]), "new_xyz": queries if apart else None}
    idx, dist = run_op("KNNQuery", inputs, {"nsample": 6})
    grad = rng.normal(0, 1, dist.shape)
    saved = {"grad_dist": grad, "xyz": xyz, "idx": idx, "dist": dist, "new_xyz": inputs["new_xyz"]}
    grad_xyz, grad_queries = run_op("KNNQueryBackward", saved)
    points = torch.tensor(xyz, requires_grad=True)
    centres = torch.tensor(queries, requires_grad=True) if apart else points
    away = points[torch.from_numpy(idx).long()] - centres[:, None]
    (torch.linalg.vector_norm(away, dim=-1) * torch.from_numpy(grad)).sum().backward()
    np.testing.assert_allclose(grad_xyz, points.grad, atol=1e-12)
    np.testing.assert_allclose(grad_queries, centres.grad if apart else np.zeros_like(xyz), atol=1e-12)


@pytest.mark.parametrize("ranged", [False, True])
@pytest.mark.parametrize(("n", "c"), [(1, 3), (500, 4), (30_000, 6)])
def test_voxels_agree_with_scipys_bins(run_op: RunOp, n: int, c: int, ranged: bool) -> None:
    from scipy import stats  # it takes seconds

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
    columns = stats.binned_statistic_dd(kept[:, [2, 1, 0]], kept.T, "mean", edges).statistic
    number = stats.binned_statistic_dd(kept[:, [2, 1, 0]], None, "count", edges).statistic
    occupied = np.argwhere(number)
    first = np.zeros(3) if ranged else np.floor(low / size)
    np.testing.assert_array_equal(coords, occupied[:, ::-1] + first)
    np.testing.assert_array_equal(counts, number[number > 0])
    np.testing.assert_allclose(features, columns[:, number > 0].T, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("order", ["xyz", "zyx"])
@pytest.mark.parametrize("reduction", ["sum", "max"])
def test_other_reductions_agree_with_scipys_bins(run_op: RunOp, reduction: str, order: str) -> None:
    from scipy import stats  # it takes seconds

    points = (np.random.default_rng(5).integers(-80, 80, (6000, 5)) / 16).astype(np.float32)
    inputs = {"points": points, "size": np.ones(3, np.float32)}
    features, coords, counts = run_op("Voxelize", inputs, {"reduction": reduction, "order": order})
    edges = [np.arange(-5.0, 6.0)] * 3
    columns, number = (
        stats.binned_statistic_dd(points[:, [2, 1, 0]], points.T.astype(np.float64), statistic, edges).statistic
        for statistic in (reduction, "count")
    )
    occupied = np.argwhere(number[0]) - 5
    np.testing.assert_array_equal(coords, occupied if order == "zyx" else occupied[:, ::-1])
    np.testing.assert_array_equal(counts, number[0][number[0] > 0])
    np.testing.assert_array_equal(features, columns[:, number[0] > 0].T.astype(np.float32))


def test_the_maximum_with_nans_agrees_with_torch(run_op: RunOp) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    points = rng.uniform(0, 4, (3000, 6)).astype(np.float32)
    points[:, 3:][rng.random((3000, 3)) < 0.03] = np.nan
    inputs = {"points": points, "size": np.ones(3, np.float32)}
    features, coords, _ = run_op("Voxelize", inputs, {"reduction": "max"})
    numbers = np.floor(points[:, :3]).astype(np.int64) @ [1, 4, 16]
    expected = torch.full((64, 6), -torch.inf)
    places = torch.from_numpy(numbers)[:, None].expand(-1, 6)
    expected.scatter_reduce_(0, places, torch.from_numpy(points), "amax")
    np.testing.assert_array_equal(features, expected[coords @ [1, 4, 16]])


def hard_voxels(points: Array, size: Array, max_points: int, max_voxels: int) -> dict[tuple[int, ...], list[Array]]:
    """The points of each voxel (batch, z, y, x), with the limits of mmcv's hard_voxelize. 0 is no limit."""
    voxels: dict[tuple[int, ...], list[Array]] = {}
    for point in points:
        batch, x, y, z = (floor(v) for v in point[:4] / np.float32([1, *size]))
        key = (batch, z, y, x)
        if key not in voxels:
            if max_voxels and len(voxels) == max_voxels:
                continue
            voxels[key] = []
        if not max_points or len(voxels[key]) < max_points:
            voxels[key].append(point[1:])
    return voxels


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_limits_and_batches_agree_with_a_loop_over_the_points(run_op: RunOp, data: st.DataObject, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, batches = data.draw(st.integers(0, 300)), data.draw(st.integers(1, 4))
    max_points, max_voxels = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 60))
    # Quarters: no quotient and no sum is rounded.
    points = (rng.integers(-12, 12, (n, 5)) / 4).astype(np.float32)
    points[:, 0] = rng.integers(0, batches, n)
    size = np.float32([1, 2, 0.5])
    voxels = hard_voxels(points, size, max_points, max_voxels)
    keys = sorted(voxels)
    batched = data.draw(st.booleans()) or batches > 1
    limits = {"max_points": max_points, "max_voxels": max_voxels, "order": "zyx", "batch_columns": int(batched)}
    for reduction in ("mean", "sum", "max"):
        inputs = {"points": points if batched else points[:, 1:], "size": size}
        features, coords, counts = run_op("Voxelize", inputs, {"reduction": reduction, **limits})
        assert coords.tolist() == [list(key if batched else key[1:]) for key in keys]
        assert counts.tolist() == [len(voxels[key]) for key in keys]
        for key, row in zip(keys, features, strict=True):
            own = np.array(voxels[key], np.float64)
            np.testing.assert_array_equal(row, getattr(own, reduction)(axis=0).astype(np.float32))


@pytest.mark.parametrize("order", ["xyz", "zyx"])
@pytest.mark.parametrize("batch_columns", [0, 1])
def test_the_voxels_of_points_agree_with_torch(run_op: RunOp, batch_columns: int, order: str) -> None:
    """torch.unique gives the map from points to distinct rows, in ascending order of the rows."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    points = rng.normal(0, 4, (5000, 5)).astype(np.float32)
    points[:, 0] = rng.integers(0, 4, 5000)
    points = points[:, 1 - batch_columns :]
    size = np.float32([0.5, 1, 2])
    attributes = {"order": order, "batch_columns": batch_columns}
    coords = run_op("Voxelize", {"points": points, "size": size}, attributes)[1]
    (voxel,) = run_op("VoxelOfPoint", {"points": points, "coords": coords, "size": size}, attributes)
    places = points[:, batch_columns : batch_columns + 3]
    numbers = np.hstack([points[:, :batch_columns], np.floor(places / size)[:, ::-1]])
    expected = torch.unique(torch.from_numpy(numbers), dim=0, return_inverse=True)[1].numpy()
    np.testing.assert_array_equal(voxel, expected)
    kept = np.sort(rng.permutation(len(coords))[: len(coords) // 2])
    (voxel,) = run_op("VoxelOfPoint", {"points": points, "coords": coords[kept], "size": size}, attributes)
    np.testing.assert_array_equal(voxel, np.where(np.isin(expected, kept), np.searchsorted(kept, expected), -1))


def test_the_order_of_points_does_not_matter(run_op: RunOp) -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(0, 3, (5000, 4)).astype(np.float32)
    one, other = (
        run_op("Voxelize", {"points": p, "size": np.float32([1, 1, 1])}) for p in (points, rng.permutation(points))
    )
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def exact(value: Any) -> Fraction:
    return Fraction(float(value))


#: More than the error of a difference and a quotient that are rounded to f32.
ROUNDING = Fraction(1, 2**22)


def below(high: np.float32, low: np.float32, steps: Array) -> Array:
    """Returns numbers in [low, high): those that lie `steps` floats below `high`, as far as they are in the range."""

    def order(value: Array) -> Array:
        """Integers that have the order of floats."""
        bits = np.asarray(value, np.float32).view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)

    places = np.maximum(order(high) - steps, order(low))
    return np.where(places < 0, (-places) | 0x80000000, places).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("name", GRIDS)
def test_points_below_the_upper_end_are_in_the_last_voxel(run_op: RunOp, name: str) -> None:
    size, bounds = (np.float32(values) for values in GRIDS[name])
    low, high = bounds.reshape(2, 3)
    grid = np.array([round((exact(high[a]) - exact(low[a])) / exact(size[a])) for a in range(3)])
    points = np.repeat((low + high)[None] / 2, 3, axis=0).astype(np.float32)
    np.fill_diagonal(points, np.nextafter(high, low))
    for axis in range(3):
        coords = run_op("Voxelize", {"points": points[axis : axis + 1], "size": size, "range": bounds})[1]
        assert coords.shape == (1, 3)
        assert coords[0, axis] == grid[axis] - 1
        assert (coords[0] < grid).all()


@st.composite
def axes(draw: st.DrawFn) -> tuple[np.float32, np.float32, np.float32]:
    """Returns size, low and high of an axis. Often `high` is as near to a multiple of the size as f32 allows."""
    size = np.float32(draw(st.floats(2**-10, 16, width=32)))
    low = np.float32(draw(st.floats(-1000, 1000, width=32)))
    count = draw(st.integers(1, 2000))
    part = draw(st.sampled_from([0.0, 0.0, 0.0, 0.25, 0.5, 0.75]))
    high = np.float32(float(low) + (count + part) * float(size))
    assume(high > low)
    return size, low, high


@settings(max_examples=examples(300), deadline=None)
@given(grid_axes=st.tuples(axes(), axes(), axes()), data=st.data())
def test_voxels_are_within_the_grid(run_op: RunOp, grid_axes: tuple[Any, ...], data: st.DataObject) -> None:
    """Each point of the range is in a voxel of the grid: in the one that contains it, except for the rounding of f32."""
    size, low, high = (np.array(values, np.float32) for values in zip(*grid_axes, strict=True))
    steps = data.draw(st.lists(st.tuples(*[st.integers(1, 5) | st.integers(1, 2**31)] * 3), min_size=1, max_size=20))
    down = np.array(steps, np.int64)
    points = np.stack([below(high[a], low[a], down[:, a]) for a in range(3)], axis=1)
    bounds = np.concatenate([low, high])
    _, coords, counts = run_op("Voxelize", {"points": points, "size": size, "range": bounds})
    assert counts.sum() == len(points)
    for point in points:
        coord = run_op("Voxelize", {"points": point[None], "size": size, "range": bounds})[1][0]
        assert coord.tolist() in coords.tolist()
        for a in range(3):
            # In f32 (high - low) / size has a relative error of 2^-23 and a bit, which matters next to a half only.
            extent = (exact(high[a]) - exact(low[a])) / exact(size[a])
            grids = {max(1, round(extent * (1 + error))) for error in (0, ROUNDING, -ROUNDING)}
            quotient = (exact(point[a]) - exact(low[a])) / exact(size[a])
            numbers = {floor(quotient * (1 + error)) for error in (0, ROUNDING, -ROUNDING)}
            assert 0 <= coord[a] < max(grids)
            assert coord[a] in {min(number, grid - 1) for number in numbers for grid in grids}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("low", "high", "nsample"), [(0, 0.05, 8), (0, 0.3, 16), (0.2, 0.25, 200), (0, 2, 5)])
def test_balls_agree_with_the_tree(run_op: RunOp, low: float, high: float, nsample: int, dtype: Any) -> None:
    """Radii that lie between two distances: a tree that rounds otherwise finds the same points."""
    rng = np.random.default_rng(nsample)
    xyz, queries = rng.uniform(0, 1, (3000, 3)).astype(dtype), rng.uniform(0, 1, (900, 3)).astype(dtype)
    inputs = {"xyz": xyz, "offset": np.int32([1000, 3000]), "new_xyz": queries, "new_offset": np.int32([400, 900])}
    attributes = {"max_radius": high, "min_radius": low, "nsample": nsample, "pad": "fill"}
    idx, count = run_op("BallQuery", inputs, attributes)
    for begin, end, first, last in [(0, 1000, 0, 400), (1000, 3000, 400, 900)]:
        tree = cKDTree(xyz[begin:end].astype(np.float64))
        for i in range(first, last):
            away = np.linalg.norm(xyz[begin:end].astype(np.float64) - queries[i], axis=1)
            if min(np.abs(away - low).min(), np.abs(away - high).min()) < 1e-6:
                continue
            outer, inner = (tree.query_ball_point(queries[i].astype(np.float64), r) for r in (high, low))
            expected = begin + np.array(sorted({*outer} - {*inner}), int)[:nsample]
            assert count[i] == len(expected)
            assert idx[i].tolist() == [*expected, *[-1] * (nsample - len(expected))]


@pytest.mark.parametrize("d", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("counts", [[5], [400], [30, 900], [0, 1, 1]])
def test_samples_agree_with_fpsample(run_op: RunOp, counts: list[int], d: int) -> None:
    rng = np.random.default_rng(d)
    clouds = [rng.normal(0, 1, (count + 100, d)).astype(np.float32) for count in counts]
    ends = np.cumsum([len(cloud) for cloud in clouds])
    inputs = {"xyz": np.concatenate(clouds), "offset": ends, "new_offset": np.cumsum(counts)}
    (idx,) = run_op("FarthestPointSample", inputs)
    samples = zip(clouds, counts, ends, np.split(idx, np.cumsum(counts)[:-1]), strict=True)
    for cloud, count, end, chosen in samples:
        if count:
            expected = fpsample.fps_sampling(cloud, count, start_idx=0)
            np.testing.assert_array_equal(chosen - (end - len(cloud)), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "c", "m", "k"), [(1, 1, 1, 3), (300, 64, 900, 3), (40, 700, 50, 5), (2, 8, 500, 1)])
def test_interpolation_agrees_with_autograd(run_op: RunOp, n: int, c: int, m: int, k: int, dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(n)
    features, weight, grad = (rng.normal(0, 1, shape).astype(dtype) for shape in ((n, c), (m, k), (m, c)))
    inputs = {"features": features, "idx": rng.integers(0, n, (m, k)).astype(np.int32), "weight": weight}
    rows, weights = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (features, weight))
    y = (rows[torch.from_numpy(inputs["idx"]).long()] * weights[:, :, None]).sum(1)
    y.backward(torch.from_numpy(grad).double())
    tolerance = (1e-5, 2e-4) if dtype == np.float32 else (1e-12, 1e-12)
    np.testing.assert_allclose(run_op("ThreeInterpolate", inputs)[0], y.detach(), *tolerance)
    for actual, expected in zip(
        run_op("ThreeInterpolateBackward", {"grad_y": grad, **inputs}), (rows.grad, weights.grad), strict=True
    ):
        np.testing.assert_allclose(actual, expected, *tolerance)


REDUCTIONS = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("dims", [(), (1,), (3,), (8,), (33,), (2, 300)])
def test_rows_of_segments_and_of_indices_agree_with_torch(
    run_op: RunOp, dims: tuple[int, ...], dtype: Any, reduce: str
) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(len(dims))
    x = rng.normal(0, 1, (700, *dims)).astype(dtype)
    index = rng.integers(0, 90, 700)
    ends = np.bincount(index, minlength=100).cumsum().astype(np.int32)
    rows = torch.from_numpy(x[np.argsort(index, kind="stable")]).double()
    places = torch.from_numpy(np.sort(index)).reshape(-1, *[1] * len(dims)).expand(rows.shape)
    expected = torch.zeros(100, *dims, dtype=torch.float64)
    expected.scatter_reduce_(0, places, rows, REDUCTIONS[reduce], include_self=False)
    tolerance = {"float16": (2e-3, 1e-2), "float32": (1e-5, 1e-5), "float64": (1e-12, 1e-12)}[np.dtype(dtype).name]
    (y,) = run_op("SegmentReduce", {"x": np.asarray(rows, dtype), "ends": ends}, {"reduce": reduce})
    np.testing.assert_allclose(y, expected, *tolerance)
    scattered = {"x": x, "index": index, "dim_size": np.array(100)}
    np.testing.assert_allclose(run_op("ScatterReduce", scattered, {"reduce": reduce})[0], expected, *tolerance)
