from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    rng = np.random.default_rng(1)

    def cloud(n: int, d: int = 3) -> Array:
        return rng.standard_normal((n, d)).astype(types["T"])

    def case(name: str, xyz: Array, samples: Sequence[int], ends: Sequence[int] | None = None, error: str = "") -> Case:
        """`samples` are the numbers of samples of the segments."""
        offset = np.array([len(xyz)] if ends is None else ends, types["I"])
        inputs = {"xyz": xyz.astype(types["T"]), "offset": offset, "new_offset": np.cumsum(samples).astype(types["I"])}
        return Case(name, inputs, error=error or None, unseen=bool(error))

    for n, m in [(1, 1), (1, 0), (2, 2), (15, 4), (16, 16), (17, 9), (70, 69), (200, 200), (1025, 70), (2100, 3)]:
        yield case(f"{m} of {n} points", cloud(n), [m])
    yield case("segments, one of them empty", cloud(300), [3, 0, 100, 1, 70], [10, 10, 200, 201, 300])
    yield case("a segment of many points beside a few", cloud(2503), [40, 2], [2500, 2503])
    yield case("no samples", cloud(30), [0, 0], [10, 30])
    yield case("nothing", cloud(0), [0, 0], [0, 0])
    yield case("no segments", cloud(0), [], [])
    for d in (0, 1, 2, 4, 8, 9):
        yield case(f"{d} coordinates", cloud(200, d), [100, 20], [150, 200])
    yield case("all points equal", np.ones((150, 3)), [150])
    yield case("three places", cloud(3)[rng.integers(0, 3, 150)], [100])
    grid = np.stack(np.meshgrid(*[np.arange(6)] * 3), axis=-1).reshape(-1, 3)
    yield case("a grid: many equal distances", rng.permutation(grid), [150])
    yield case("a line", np.arange(300)[:, None] * np.array([1, 0, 0]), [100])
    # Far from the origin differences have few bits, and a fused multiply-add would order them otherwise.
    yield case("far from the origin", rng.standard_normal((300, 3)) * 1e-3 + 1000, [90])
    clusters = cloud(10)[rng.integers(0, 10, 300)] * 100 + cloud(300) * 1e-3
    yield case("clusters", clusters, [120])
    yield case("huge distances", cloud(100) * types["T"].type(1e19), [100])
    yield case("tiny distances", cloud(100) * types["T"].type(1e-22), [100])
    odd = cloud(200)
    odd[3::7, 0], odd[5::70, 1], odd[8::70, 2] = np.nan, np.inf, -np.inf
    yield case("not finite", odd, [200])
    yield case("the first point is not finite", odd[3:], [120])
    yield case("only NaN", np.full((9, 3), np.nan), [7])
    yield from errors(types, case, cloud(9))


def errors(types: Mapping[str, np.dtype[Any]], case: Any, xyz: Array) -> Iterator[Case]:
    offset, new = "input 'offset': expected ", "input 'new_offset': "
    yield case("too many samples", xyz, [2, 6], [4, 9], new + "segment 1 asks for 6 samples, expected at most its 5 p")
    decreasing = new + "expected ends of segments that don't decrease, got 3 at 1 after 4"
    yield case("samples that decrease", xyz, [4, -1], [4, 9], decreasing)
    yield case("negative samples", xyz, [-1], [9], new + "expected ends of segments that don't decrease, got -1")
    descending = offset + "ends of segments that don't decrease, got 4 at 1 after 5"
    yield case("descending ends", xyz, [1, 1, 1], [5, 4, 9], descending)
    yield case("too few", xyz, [1, 1], [4, 8], offset + "the last end to be 9, the rows of 'xyz', got 8")
    yield case(
        "far too many", xyz, [9], [2**31 - 1], offset + "the last end to be 9, the rows of 'xyz', got 2147483647"
    )
    none = np.array([], types["I"])
    error = offset + "the last end to be 9, the rows of 'xyz', got no ends"
    yield Case("no ends", {"xyz": xyz, "offset": none, "new_offset": none}, error=error)
    both = {"xyz": xyz, "offset": np.array([4, 9], types["I"]), "new_offset": np.array([4], types["I"])}
    yield Case("another number of segments", both, error=r"input 'new_offset': expected I\[b\] with b = 2, got .*\[1\]")


def large(types: Mapping[str, np.dtype]) -> Case:
    """4,096 of 16,384 points."""
    xyz = np.random.default_rng(1).uniform(0, 1, (16_384, 3)).astype(types["T"])
    counts = {"offset": np.array([16_384], types["I"]), "new_offset": np.array([4096], types["I"])}
    return Case("4,096 of 16,384", {"xyz": xyz, **counts})
