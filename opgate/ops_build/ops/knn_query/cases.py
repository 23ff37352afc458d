from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case

#: The order is exact, and so are the distances.
EXACT = {"idx": (0.0, 0.0), "dist": (0.0, 0.0)}


def case(name: str, xyz: Array, ends: Sequence[int], nsample: int = 16, **queries: Any) -> Case:
    inputs = {"xyz": xyz.astype(np.float32), "offset": np.array(ends, np.int32), **queries}
    return Case(name, inputs, {"nsample": nsample}, EXACT)


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    """The cases are written for f32 and i32; other dtypes have the same values, and fewer cases."""
    to = {"float32": types["T"], "int32": types["I"]}
    yield from beyond_f32(types)
    for one in cases_of_f32():
        if to != {"float32": np.float32, "int32": np.int32} and len(one.inputs["xyz"]) > 70:
            continue
        arrays = {name: np.asarray(value) for name, value in one.inputs.items()}
        inputs = {name: value.astype(to.get(value.dtype.name, value.dtype)) for name, value in arrays.items()}
        error = one.error and re.sub(r"f32\b", {"float32": "f32", "float64": "f64"}[types["T"].name], one.error)
        yield replace(one, inputs=inputs, error=error)


def beyond_f32(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    if types["T"] == np.float64:
        near = {"xyz": 1 + np.arange(120).reshape(40, 3) * 1e-12, "offset": np.array([40], types["I"])}
        yield Case("distances that f32 can't tell apart", near, {}, EXACT)
        rng = np.random.default_rng(1)
        for d, scale in [(2, 1.0), (3, 1e150), (5, 1e-170)]:
            cloud = rng.standard_normal((400 if d > 3 else 120, d)) * scale
            inputs = {"xyz": cloud, "offset": np.array([len(cloud)], types["I"]), "new_xyz": cloud[:100]}
            yield Case(f"a tree of f64, {d} coordinates of {scale}", inputs, {"nsample": 4}, EXACT)
    if types["I"] == np.int64:
        far = np.array([4, 2**40])
        points = np.ones((9, 3), types["T"])
        error = "input 'offset': expected the last end to be 9, the rows of 'xyz', got 1099511627776"
        yield Case("a far end", {"xyz": points, "offset": far}, {}, error=error, unseen=True)


def cases_of_f32() -> Iterator[Case]:
    rng = np.random.default_rng(1)

    def cloud(n: int) -> Array:
        return rng.standard_normal((n, 3)).astype(np.float32)

    for n in (1, 2, 15, 16, 17, 63, 64, 65, 300, 1025):
        yield case(f"{n} points", cloud(n), [n])
    for nsample in (0, 1, 3, 64, 65, 200, 400):
        yield case(f"{nsample} nearest", cloud(300), [300], nsample)
    ends, new_ends = [10, 10, 200, 201, 300], [0, 7, 40, 45, 50]
    yield case("segments, one of them empty", cloud(300), ends)
    both = {"new_xyz": cloud(50), "new_offset": np.array(new_ends, np.int32)}
    yield case("segments of queries", cloud(300), ends, 5, **both)
    yield case("queries of one segment", cloud(70), [70], 5, new_xyz=cloud(9))
    yield case("queries without points", cloud(0), [0], 4, new_xyz=cloud(3))
    yield case("points without queries", cloud(9), [9], 4, new_xyz=cloud(0))
    yield case("nothing", cloud(0), [0])
    yield case("no segments", cloud(0), [])
    for fill in (0, 7, -(2**31)):
        few = case(f"{fill} for missing neighbours", cloud(5), [2, 2, 5], 4)
        yield replace(few, attributes={"nsample": 4, "fill": fill})
    yield from tree_cases(rng)
    yield from dims_cases(rng)
    yield from order_cases(rng)
    yield from odd_cases(cloud)
    yield from error_cases(cloud)


def tree_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Segments that are large enough for a tree, with what makes trees deep, wide or slow."""

    def cloud(n: int) -> Array:
        return rng.standard_normal((n, 3)).astype(np.float32)

    for n in (95, 96, 97, 112, 113, 129, 255):
        yield case(f"a tree of {n} points", cloud(n), [n], 5)
    yield case("trees of segments", cloud(300), [110, 110, 120, 300], 9)
    queries = {"new_xyz": cloud(250), "new_offset": np.array([100, 120, 130, 250], np.int32)}
    yield case("trees of queries", cloud(300), [110, 110, 120, 300], 9, **queries)
    yield case("far queries", cloud(150), [150], 9, new_xyz=cloud(100) + np.float32(1000))
    yield case("queries in one place", cloud(150), [150], 9, new_xyz=np.ones((100, 3), np.float32))
    # One wide group of queries: each begins near itself.
    yield case("wide groups", cloud(150), [150], 9, new_xyz=cloud(100) * np.float32(100))
    places = cloud(3)[rng.integers(0, 3, 150)]
    yield case("many points in three places", places, [150], 20)
    yield case("a tree of equal points", np.ones((200, 3)), [200], 16)
    yield case("a tree of points on a line", cloud(150)[:, :1] * np.array([1, 2, 3], np.float32), [150])
    clusters = (cloud(10)[rng.integers(0, 10, 200)] * 100 + cloud(200) * 1e-3).astype(np.float32)
    yield case("clusters", clusters, [200])
    outlier = cloud(150)
    outlier[7] = 1e30
    yield case("an outlier", outlier, [150])
    odd = cloud(200)
    odd[::3, 0], odd[5::70, 1], odd[7::70, 2] = np.nan, np.inf, -np.inf
    yield case("a tree without the points that aren't finite", odd, [200])
    yield case("a tree of no point that is finite", np.full((100, 3), np.nan), [100], 4)
    yield case("queries that aren't finite", cloud(150), [150], 6, new_xyz=odd)
    sphere = rng.integers(0, 2, (150, 3)) * 2 - 1
    yield case("all equally near", sphere, [150], 30, new_xyz=np.zeros((100, 3), np.float32))
    yield case("huge distances in a tree", cloud(150) * 1e19, [150], 10)
    for nsample in (8, 9, 24, 32, 33, 75):
        yield case(f"{nsample} nearest in a tree", cloud(300), [300], nsample, new_xyz=cloud(100))
    yield case("1,025 nearest of a large segment", cloud(4200), [4200], 1025, new_xyz=cloud(1))
    # On a GPU the tree has a level more from 32,769 points on.
    far = {"new_xyz": cloud(9), "new_offset": np.array([3, 9], np.int32)}
    yield case("40,000 points, few queries", cloud(40_000), [900, 40_000], 40, **far)


def dims_cases(rng: np.random.Generator) -> Iterator[Case]:
    for d in (0, 1, 2, 4, 5, 8, 9, 33):
        points, queries = (rng.standard_normal((n, d)).astype(np.float32) for n in (150, 40))
        yield case(f"{d} coordinates", points, [60, 150], 7, new_xyz=queries, new_offset=np.array([30, 40], np.int32))
    for d, n in [(1, 150), (2, 150), (4, 200), (6, 800), (8, 3100)]:
        few = (rng.integers(-9, 9, (n, d)) / 4).astype(np.float32)
        yield case(f"a tree of {n} points of {d} coordinates", few, [n], 5, new_xyz=few[:100])


def order_cases(rng: np.random.Generator) -> Iterator[Case]:
    yield case("all points equal", np.ones((150, 3)), [150], 7)
    grid = np.stack(np.meshgrid(*[np.arange(6)] * 3), axis=-1).reshape(-1, 3)
    yield case("a grid: many equal distances", grid, [216], 20)
    # Far from the origin differences have few bits, and a fused multiply-add would order them otherwise.
    yield case("far from the origin", rng.standard_normal((500, 3)) * 1e-3 + 1000, [500], 12)
    line = np.zeros((400, 3))
    line[:, 0] = np.arange(400)
    yield case("ever nearer", line, [400], 9, new_xyz=np.array([[400, 0, 0]], np.float32))
    yield case("ever farther", line, [400], 9, new_xyz=np.array([[-1, 0, 0]], np.float32))


def odd_cases(cloud: Any) -> Iterator[Case]:
    odd = cloud(60)
    odd[3, 0], odd[20, 1], odd[21, 2], odd[40, 0] = np.nan, np.inf, -np.inf, 1e30
    yield case("not finite", odd, [60], 60)
    yield case("only NaN", np.full((5, 3), np.nan), [5], 3)
    yield case("tiny distances", cloud(80) * 1e-21, [80], 10)
    yield case("huge distances", cloud(80) * 1e18, [80], 10)


def error_cases(cloud: Any) -> Iterator[Case]:
    xyz = cloud(9)

    def refused(name: str, error: str, nsample: int = 3, unseen: bool = False, fill: int = -1, **inputs: Any) -> Case:
        arrays = {key: np.array(value, np.float32 if "xyz" in key else np.int32) for key, value in inputs.items()}
        return Case(name, {"xyz": xyz, **arrays}, {"nsample": nsample, "fill": fill}, error=error, unseen=unseen)

    other = {"xyz": np.ones((5, 4), np.float32), "offset": np.array([5], np.int32), "new_xyz": xyz}
    yield Case("queries of other dims", other, error=r"input 'new_xyz': expected T\[m, d\] with")
    yield refused(
        "a fill of more than 32 bits", "attribute 'fill': expected a number of 32 bits, got", fill=2**31, offset=[9]
    )
    offset = "input 'offset': expected "
    for name, ends, got in [
        ("descending ends", [5, 4, 9], "ends of segments that don't decrease, got 4 at 1 after 5"),
        ("a negative end", [-1, 9], "ends of segments that don't decrease, got -1 at 0 after 0"),
        ("too few", [4, 8], "the last end to be 9, the rows of 'xyz', got 8"),
        ("too many", [10], "the last end to be 9, the rows of 'xyz', got 10"),
        ("far too many", [4, 2**31 - 1], "the last end to be 9, the rows of 'xyz', got 2147483647"),
    ]:
        yield refused(name, offset + got, offset=ends, unseen=True)
    yield refused("no ends", offset + "the last end to be 9, the rows of 'xyz', got no ends", offset=[])
    queries = {"offset": [4, 9], "new_xyz": cloud(4)}
    new = "input 'new_offset': expected "
    yield refused("queries without ends", new + "the ends of the 2 segments of 'new_xyz', got none", **queries)
    yield refused("ends without queries", new + "'new_xyz' with it, got none", offset=[4, 9], new_offset=[4, 9])
    uncovered = new + "the last end to be 4, .* got 3"
    yield refused("queries not covered", uncovered, **queries, new_offset=[1, 3], unseen=True)
    yield refused(
        "another number of segments",
        r"input 'new_offset': expected I\[b\] with b = 2, got .*\[3\]",
        **queries,
        new_offset=[1, 2, 4],
    )
    yield refused("negative nsample", "nsample", nsample=-1, offset=[9])
    too_many = "attribute 'nsample': expected at most 2147483647, got 1099511627776"
    yield refused("too large an nsample", too_many, nsample=2**40, offset=[9])


def large(types: Mapping[str, np.dtype]) -> Case:
    """40,000 points in one segment, each asking for 16 neighbours."""
    xyz = np.random.default_rng(1).uniform(0, 1, (40_000, 3)).astype(np.float32)
    return Case("40,000 x 16", {"xyz": xyz.astype(types["T"]), "offset": np.array([40_000], types["I"])})
