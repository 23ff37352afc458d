from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case

#: The order is exact, and so are the distances.
EXACT = {"idx": (0.0, 0.0), "dist": (0.0, 0.0)}


def case(name: str, xyz: Array, ends: Sequence[int], nsample: int = 16, **queries: Any) -> Case:
    inputs = {"xyz": xyz.astype(np.float32), "offset": np.array(ends, np.int32), **queries}
    return Case(name, inputs, {"nsample": nsample}, EXACT)


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
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
    yield from order_cases(rng)
    yield from odd_cases(cloud)
    yield from error_cases(cloud)


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

    def refused(name: str, error: str, nsample: int = 3, unseen: bool = False, **inputs: Any) -> Case:
        arrays = {key: np.array(value, np.float32 if "xyz" in key else np.int32) for key, value in inputs.items()}
        return Case(name, {"xyz": xyz, **arrays}, {"nsample": nsample}, error=error, unseen=unseen)

    wide = np.ones((5, 4), np.float32)
    error = r"input 'xyz': expected f32\[n, 3\], got .*\[5, 4\]"
    yield Case("points of four coordinates", {"xyz": wide, "offset": np.array([5], np.int32)}, error=error)
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
        "input 'new_offset': expected b = 2, got 3|i32\\[b\\]",
        **queries,
        new_offset=[1, 2, 4],
    )
    yield refused("negative nsample", "nsample", nsample=-1, offset=[9])
    too_many = "attribute 'nsample': expected at most 2147483647, got 1099511627776"
    yield refused("too large an nsample", too_many, nsample=2**40, offset=[9])


def large(types: Mapping[str, np.dtype]) -> Case:
    """40,000 points in one segment, each asking for 16 neighbours."""
    xyz = np.random.default_rng(1).uniform(0, 1, (40_000, 3)).astype(np.float32)
    return Case("40,000 x 16", {"xyz": xyz, "offset": np.array([40_000], np.int32)})
