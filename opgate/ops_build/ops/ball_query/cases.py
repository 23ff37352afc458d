from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case, edge_values
from opgate.ops_build.ops.knn_query.cases import error_cases as segment_errors

RNG = np.random.default_rng


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    """The cases are written for f32 and i32; other dtypes have the same values."""
    names = {"float32": "f32", "float64": "f64"}
    to = {"float32": types["T"], "int32": types["I"]}
    for one in [*cases_of_f32(), *errors()]:
        first = to == {"float32": np.float32, "int32": np.int32}
        if not first and len(one.inputs["xyz"]) > 1000 and not one.name.startswith("many points, nearer"):
            continue
        arrays = {name: np.asarray(value) for name, value in one.inputs.items()}
        inputs = {name: value.astype(to.get(value.dtype.name, value.dtype)) for name, value in arrays.items()}
        error = one.error and re.sub(r"f32\b", names[types["T"].name], one.error)
        yield replace(one, inputs=inputs, error=error)
    if types["T"] == np.float64:
        near = {"xyz": 1 + np.arange(1200).reshape(400, 3) * 1e-12, "offset": np.array([400], types["I"])}
        yield Case("distances that f32 can't tell apart", near, {"max_radius": 1e-10, "nsample": 64})


def case(name: str, xyz: Array, max_radius: float, ends: Sequence[int] | None = None, **more: Any) -> Case:
    inputs = {"xyz": xyz.astype(np.float32), "offset": np.array([len(xyz)] if ends is None else ends, np.int32)}
    for key in [*more]:
        if key.startswith("new_"):
            inputs[key] = np.asarray(more.pop(key), np.int32 if key == "new_offset" else np.float32)
    return Case(name, inputs, {"max_radius": max_radius, **more})


def cases_of_f32() -> Iterator[Case]:
    rng = RNG(1)

    def cloud(n: int, d: int = 3) -> Array:
        return rng.uniform(0, 1, (n, d)).astype(np.float32)

    for n in (1, 2, 15, 16, 17, 33, 255, 300):
        yield case(f"{n} points", cloud(n), 0.3)
    for nsample in (0, 1, 3, 31, 32, 33, 400):
        yield case(f"at most {nsample}", cloud(300), 0.4, nsample=nsample)
    for radius in (0.0, 1e-30, 1e-3, 0.05, 0.2, 1, 2, 1e19, 1e30, np.inf):
        yield case(f"a radius of {radius}", cloud(300), radius, nsample=9)
        yield case(f"rows for a radius of {radius}", cloud(300), radius, nsample=9, pad="fill", fill=7)
    for with_center in (True, False):
        yield case(f"a shell, {with_center}", cloud(300), 0.4, min_radius=0.3, nsample=20, with_center=with_center)
        equal = case("equal radii", cloud(300), 0.4, min_radius=0.4, with_center=with_center)
        yield replace(equal, name=f"equal radii, {with_center}")
        yield case(f"a shell from 0, {with_center}", cloud(30), 0.4, min_radius=0, with_center=with_center)
    steps = np.arange(40)[:, None] * np.array([1, 0, 0])
    for low, high in [(0, 3), (1, 3), (2, 5), (5, 5)]:
        yield case(f"distances that equal the radii {low}..{high}", steps, high, min_radius=low, nsample=20)
    ends, new_ends = [10, 10, 200, 201, 300], [0, 7, 40, 45, 50]
    yield case("segments, one of them empty", cloud(300), 0.4, ends)
    yield case("segments of queries", cloud(300), 0.3, ends, new_xyz=cloud(50), new_offset=new_ends)
    yield case("queries of one segment", cloud(70), 0.3, new_xyz=cloud(9))
    yield case("queries without points", cloud(0), 0.3, new_xyz=cloud(3), fill=0)
    yield case("points without queries", cloud(9), 0.3, new_xyz=cloud(0))
    yield case("nothing", cloud(0), 0.3)
    yield case("no segments", cloud(0), 0.3, [])
    for d in (0, 1, 2, 4, 5, 9):
        more = {"new_xyz": cloud(150, d), "new_offset": [70, 150]}
        yield case(f"{d} coordinates", cloud(700, d), 0.05 * (d + 1), [300, 700], nsample=7, **more)
    odd = cloud(300)
    odd[::7, 0], odd[5::70, 1], odd[7::70, 2], odd[50] = np.nan, np.inf, -np.inf, 1e30
    yield case("not finite", odd, 0.5)
    yield case("queries that aren't finite", cloud(700), 0.1, new_xyz=odd)
    yield case("only NaN", np.full((300, 3), np.nan), 1)
    yield from grid_cases(rng, cloud)


def grid_cases(rng: np.random.Generator, cloud: Any) -> Iterator[Case]:
    """Segments that have a grid on the CPU."""
    for radius in (0.01, 0.05, 0.1, 0.3):
        for nsample in (4, 64):
            yield case(f"a grid for {nsample} within {radius}", cloud(2000), radius, nsample=nsample)
    two = {"new_xyz": cloud(500) - 0.5, "new_offset": [200, 500]}
    yield case("two grids", cloud(1900) - 0.5, 0.1, [800, 1900], **two)
    yield case("a shell in a grid", cloud(1500), 0.15, min_radius=0.1, nsample=32, with_center=False)
    far = cloud(1500) * np.array([1, 30, 0.01], np.float32)
    yield case("a flat cloud", far, 0.2)
    far[5], far[6], far[7, 0], far[8] = 1e30, -1e30, np.nan, 1e6
    yield case("outliers", far, 0.2)
    yield case("outliers asked", far[9:], 0.2, new_xyz=np.concatenate([far[:100]] * 2))
    line = np.zeros((1500, 3))
    line[:, 0] = rng.permutation(1500)
    yield case("a line, cells that wrap", line, 1.5)
    yield case("a line far away", line + 2**22, 1.5)
    # A ball has most points, but the first ones are elsewhere.
    late = np.concatenate([cloud(1200) + 9, cloud(800) * 0.1])
    yield case("the first points are far", late, 0.2, nsample=4)
    # Coordinates in 64ths are exact, and many distances equal the radius.
    exact = rng.integers(-64, 64, (2000, 3)) / 64
    yield case("distances that equal the radius", exact, 0.125, nsample=50)
    edges = edge_values(np.float32, 0.125, 0.25, 1e9, 2.0**30, 1e19)
    for radius in (0.125, 2.0):
        # Points around the edges of cells, which are as wide as the radius, along each axis and along all.
        beside = np.concatenate([np.where(axes, edges[:, None], 0) for axes in [*np.eye(3), np.ones(3)]])
        yield case(f"edges of cells of {radius}", np.concatenate([beside, cloud(300)]), radius, nsample=40)
    # So many points near the queries that a tree finds those of balls: here none but the query itself, some far rows,
    # and with an infinite radius, for which there is no grid.
    dense = rng.normal(0, 0.05, (2400, 3))
    queries = np.concatenate([dense[-300:], [[9, 9, 9], [np.nan, 0, 0], [5, 5, 5]]])
    for with_center in (True, False):
        shell: dict[str, Any] = {"min_radius": 1, "with_center": with_center, "nsample": 5, "new_xyz": queries}
        yield case(f"many points, nearer than min_radius, {with_center}", dense, 1.5, **shell)
        yield case(f"many points, no greatest radius, {with_center}", dense, np.inf, **shell)
    late = np.concatenate([dense[:2100] + 9, dense])
    yield case("many points, the first ones are far", late, 1.0, nsample=3, new_xyz=dense[-420:])
    # On a GPU the tree has a level more from 32,769 points on.
    far = {"new_xyz": cloud(9), "new_offset": [3, 9]}
    yield case("40,000 points, few queries", cloud(40_000), 0.06, [900, 40_000], nsample=40, **far)
    yield case("tiny", cloud(1500) * 1e-21, 1e-22, nsample=32)
    yield case("denormal squares", cloud(1500) * 1e-22, 2e-23, nsample=32)
    yield case("huge", cloud(1500) * 1e19, 1e18, nsample=32)
    # A far larger radius than is usual for cells of 2^30 numbers.
    yield case("cells beyond 2^30", np.round(cloud(1500) * 9) * 1e9, 0.5)


def errors() -> Iterator[Case]:
    for one in segment_errors(lambda n: RNG(2).uniform(0, 1, (n, 3)).astype(np.float32)):
        yield replace(one, attributes={**(one.attributes or {}), "max_radius": 1})
    xyz = np.ones((3, 3), np.float32)
    yield replace(case("a negative radius", xyz, -1), error="attribute 'max_radius': expected 0 or more, got -1")
    yield replace(case("a radius of NaN", xyz, np.nan), error="attribute 'max_radius': expected 0 or more, got")
    for least in (2, -1, np.nan):
        wrong = case(f"min_radius {least}", xyz, 1, min_radius=least)
        yield replace(wrong, error=r"attribute 'min_radius': expected 0..max_radius, got")
    yield Case("no radius", {"xyz": xyz, "offset": np.array([3], np.int32)}, error="max_radius")


def large(types: Mapping[str, np.dtype]) -> Case:
    """16,384 points, 4,096 balls that have about 16 points each."""
    xyz = RNG(1).uniform(0, 1, (16_384, 3)).astype(types["T"])
    offset = np.array([16_384], types["I"])
    inputs = {"xyz": xyz, "offset": offset, "new_xyz": xyz[::4].copy(), "new_offset": offset // 4}
    return Case("16,384 x 4,096", inputs, {"max_radius": 0.06, "nsample": 32})
