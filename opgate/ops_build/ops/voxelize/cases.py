from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case

#: Sums of f32 in f64, rounded once more.
EXACT = {"features": (1e-7, 1e-30)}


def case(
    name: str,
    points: Any,
    size: Any = (0.5, 0.5, 0.5),
    range: Any = None,
    error: str | None = None,
    unseen: bool = False,
    **attributes: Any,
) -> Case:
    inputs = {"points": np.asarray(points, np.float32), "size": np.array(size, np.float32)}
    if range is not None:
        inputs["range"] = np.array(range, np.float32)
    return Case(name, inputs, attributes, tolerance=EXACT, error=error, unseen=unseen)


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    rng = np.random.default_rng(1)

    def cloud(n: int, c: int = 3) -> Array:
        return (rng.standard_normal((n, c)) * 4).astype(np.float32)

    for n, c in [(0, 3), (1, 3), (2, 4), (100, 3), (1000, 4), (20_000, 5), (300, 64)]:
        yield case(f"{n} points of {c}", cloud(n, c))
        yield case(f"{n} points of {c}, range", cloud(n, c), (0.4, 0.5, 8), [-3, -2, -4, 3, 5, 4])
    yield case("all in one voxel", rng.uniform(0, 1, (500, 4)), (1, 1, 1))
    yield case("each in its own", cloud(400), (1e-4, 1e-4, 1e-4))
    yield case("wide axes", cloud(3000) * [4000, 100, 1], (0.3, 0.3, 0.3))
    yield from edge_cases(cloud)
    yield from attribute_cases(rng)
    yield from error_cases(cloud)


def edge_cases(cloud: Any) -> Iterator[Case]:
    tenths = (np.arange(-30, 30) / 10).repeat(3).reshape(-1, 3)
    # A product with 1 / size, or f64, would put some of these into the next voxel.
    yield case("on the edges of voxels", tenths, (0.1, 0.1, 0.1))
    yield case("on the edges of voxels of a range", tenths, (0.1, 0.1, 0.1), [-2.1, -2.1, -2.1, 1.7, 1.7, 1.7])
    yield case("below zero", [[-0.1, -0.5, -0.6], [0.1, 0.5, 0.6], [-0.0, 0.0, -1e-30]])
    yield from upper_end_cases()
    corners = [[-1, -1, -1], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0.999, 0.999, 0.999], [-1.001, 0, 0]]
    yield case("on the edges of the range", corners, range=[-1, -1, -1, 1, 1, 1])
    yield case("an empty range", cloud(20), range=[1, 1, 1, 1, 2, 2])
    yield case("a range without an upper end", cloud(20), range=[0, 0, 0, *[np.inf] * 3])
    odd = cloud(40, 4)
    odd[1, 0], odd[2, 1], odd[3, 2], odd[4, 3], odd[5, 0] = np.nan, np.inf, -np.inf, np.nan, 3e38
    yield case("not finite", odd)
    yield case("not finite, range", odd, range=[-9, -9, -9, np.inf, np.inf, np.inf])
    yield case("nothing is left", np.full((3, 3), np.nan))
    far = 2.0**20
    numbers = [[far, 0, 0], [far - 1, 0, 0], [-far, 0, 0], [-far - 1, 0, 0], [0, far - 1, -far], [0, -far, far - 1]]
    yield case("the last numbers", numbers, (1, 1, 1))
    cancel = [
        [0.1, 0.1, 0.1, 1e20],
        [0.1, 0.1, 0.1, 1],
        [0.1, 0.1, 0.1, -1e20],
        [0.2, 0.2, 0.2, 3e38],
        [0.2, 0.2, 0.2, 3e38],
    ]
    yield case("sums beyond f32", cancel)


def attribute_cases(rng: np.random.Generator) -> Iterator[Case]:
    def coarse(n: int, c: int, batched: bool = False) -> Array:
        """Points of few voxels. Their batch numbers are not sorted."""
        points = rng.uniform(-2, 2, (n, c)).astype(np.float32)
        if batched:
            points[:, 0] = rng.integers(0, 3, n)
        return points

    for reduction in ("sum", "max"):
        for n, c in [(0, 3), (1, 4), (700, 5), (3000, 8)]:
            yield case(f"{reduction} of {n} points of {c}", coarse(n, c), reduction=reduction)
        odd = coarse(60, 4) / 4
        odd[:, 3] = np.resize([np.nan, -np.inf, 1, 2, np.inf, -0.0, 3], 60)
        for rows in (odd[:1], odd[1:3], odd):
            yield case(f"{reduction} of {len(rows)} odd features", rows, (4, 4, 4), reduction=reduction)
        huge = np.array(
            [[0, 0, 0, 3e38], [0, 0, 0, 3e38], [0, 0, 0, -3e38], [1, 0, 0, -3e38], [1, 0, 0, -3e38]], np.float32
        )
        yield case(f"{reduction} beyond f32", huge, (1, 1, 1), reduction=reduction)
    for most in (1, 3, 1000, 2**62):
        yield case(f"at most {most} points", coarse(2000, 4), (1, 1, 1), max_points=most)
        yield case(f"at most {most} voxels", coarse(2000, 5), max_voxels=most)
    yield case("the maximum of the first points", coarse(900, 4), (1, 1, 1), reduction="max", max_points=5)
    yield case("as many voxels as there are", np.eye(3), (1, 1, 1), max_voxels=3)
    yield case("one voxel less", np.eye(3)[::-1], (1, 1, 1), max_voxels=2)
    # The points outside of the range begin no voxel.
    limits: dict[str, Any] = {"max_points": 4, "max_voxels": 40, "order": "zyx"}
    yield case("both limits, range", coarse(3000, 4), (0.3, 0.4, 0.5), [-1, -1.2, -1, 1, 1.2, 1], **limits)
    yield case("limits of nothing", np.full((3, 4), np.nan), **limits)
    yield case("no points and limits", np.zeros((0, 4)), **limits)
    yield case("z first", coarse(100, 3), order="zyx")
    for n, c in [(0, 4), (1, 4), (1000, 5), (3000, 9)]:
        yield case(f"{n} points of {c} in a batch", coarse(n, c, batched=True), batch_columns=1)
    everything: dict[str, Any] = {"batch_columns": 1, "reduction": "sum", **limits}
    yield case("a batch, all attributes", coarse(3000, 6, batched=True), (1, 1, 1), [-2, -2, -2, 2, 2, 1], **everything)
    far = 2.0**15
    ends = [[0, far, 0, 0], [0, far - 1, -far, 0], [32767, -far - 1, 0, 0], [32767, -far, far - 1, far - 1], [-0.0] * 4]
    yield case("the last numbers of a batch", ends, (1, 1, 1), batch_columns=1)


#: size and range of the grids of published detectors.
GRIDS = {
    "KITTI": ((0.05, 0.05, 0.1), (0, -40, -3, 70.4, 40, 1)),
    "KITTI's pillars": ((0.16, 0.16, 4), (0, -39.68, -3, 69.12, 39.68, 1)),
    "nuScenes": ((0.075, 0.075, 0.2), (-54, -54, -5, 54, 54, 3)),
    "nuScenes, 0.1": ((0.1, 0.1, 0.2), (-51.2, -51.2, -5, 51.2, 51.2, 3)),
    "Waymo": ((0.1, 0.1, 0.15), (-75.2, -75.2, -2, 75.2, 75.2, 4)),
    "Waymo's pillars": ((0.32, 0.32, 6), (-74.88, -74.88, -2, 74.88, 74.88, 4)),
    "Argoverse 2": ((0.1, 0.1, 0.2), (-200, -200, -20, 200, 200, 20)),
}


def upper_end_cases() -> Iterator[Case]:
    """Points just below the upper end of the range: each is in the last voxel."""
    for name, (size, range) in GRIDS.items():
        low, high = np.array(range, np.float32).reshape(2, 3)
        below = [high]
        for _ in "1234":
            below.append(np.nextafter(below[-1], low))
        # One axis is at its end and the others are in the middle, then all are at the end.
        points = [np.where(np.eye(3, dtype=bool), ends, (low + high) / 2) for ends in below]
        yield case(f"the upper end of {name}", np.concatenate([*points, below]), size, range)
    row = np.column_stack([np.linspace(0, 1, 41)] * 3)
    for side in (0.3, 0.4, 0.45, 0.7, 3.0):
        yield case(f"a range that {side} doesn't divide", row, (side, side, side), [0, 0, 0, 1, 1, 1])
    far = np.array([[2.0**20 - 0.0625, 0, 0], [2.0**20 - 1, 0, 0]], np.float32)
    yield case("the last of 2^20 voxels", far, (1, 1, 1), [0, 0, 0, 2.0**20, 1, 1])
    yield case("more than 2^20 voxels", [[2.0**20, 0, 0], [5, 0, 0]], (1, 1, 1), [0, 0, 0, 2.0**21, 1, 1])


def error_cases(cloud: Any) -> Iterator[Case]:
    for size, got in [
        ((0, 1, 1), "0.0+ for x"),
        ((1, -2, 1), "-2.0+ for y"),
        ((1, 1, np.nan), "nan for z"),
        ((np.inf, 1, 1), "inf for x"),
    ]:
        error = f"input 'size': expected positive finite sizes, got {got}"
        yield case(f"size {size}", cloud(5), size, error=error, unseen=True)
    error = "input 'range': expected a finite lower corner, got -inf for y"
    yield case("a range without a lower end", cloud(5), range=[0, -np.inf, 0, 1, 1, 1], error=error, unseen=True)
    yield case("two columns", np.zeros((5, 2)), error="input 'points': expected .* c >= 3 .* got c = 2")
    batch = "input 'points': expected .* c >= 4 .*batch, x, y, z.* got c = 3"
    yield case("a batch of three columns", np.zeros((5, 3)), error=batch, batch_columns=1)
    for number in (1.5, -1.0, 32768.0, np.nan, np.inf):
        points = np.zeros((40, 4))
        points[[3, 30], 0] = number, -7
        error = f"input 'points': row 3 has the batch number {number:g}, expected an integer in 0..32767"
        yield case(f"a batch number {number}", points, error=error, unseen=True, batch_columns=1)
    for name in ("max_points", "max_voxels"):
        error = f"attribute '{name}': expected 0 .no limit. or more, got -1"
        negative: dict[str, Any] = {name: -1}
        yield case(f"{name} below zero", cloud(5), error=error, **negative)
    error = "'batch_columns' is a size: expected a number from 0, got -1"
    yield case("-1 batch columns", cloud(5, 6), error=error, batch_columns=-1)
    error = "attribute 'batch_columns': expected 0 or 1, got 2"
    yield case("2 batch columns", cloud(5, 6), error=error, batch_columns=2)
    yield case("one size", cloud(5), (1,), error="input 'size'")


def large(types: Mapping[str, np.dtype]) -> Case:
    """A million points of four columns."""
    points = np.random.default_rng(1).uniform(-50, 50, (1_000_000, 4)).astype(np.float32)
    return Case("1M x 4", {"points": points, "size": np.full(3, 0.5, np.float32)})
