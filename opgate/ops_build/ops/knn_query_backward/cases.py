from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.ops.knn_query.reference import reference as knn


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)

    def cloud(n: int, d: int = 3) -> Array:
        return rng.standard_normal((n, d)).astype(dtype)

    def of(xyz: Array, ends: list[int], nsample: int, new_xyz: Array | None = None, **more: Any) -> dict[str, Array]:
        """The inputs that follow from a call of KNNQuery."""
        new_ends = None if new_xyz is None else np.array(more.get("new_ends", [len(new_xyz)]), np.int32)
        fill = more.get("fill", -1)
        idx, dist = knn(xyz, np.array(ends, np.int32), new_xyz, new_ends, nsample=nsample, fill=fill)
        inputs = {"grad_dist": np.asarray(rng.standard_normal(dist.shape), dtype), "xyz": xyz, "idx": idx, "dist": dist}
        return inputs if new_xyz is None else inputs | {"new_xyz": new_xyz}

    for n, nsample in [(1, 1), (5, 3), (5, 9), (70, 16), (300, 5), (0, 4), (6, 0)]:
        yield Case(f"{nsample} of {n} points", of(cloud(n), [n], nsample))
    for m in (0, 1, 40):
        yield Case(f"{m} queries", of(cloud(50), [50], 4, cloud(m)))
    yield Case("queries without points", of(cloud(0), [0], 4, cloud(3)))
    yield Case("segments", of(cloud(50), [3, 20, 50], 6, cloud(30), new_ends=[10, 10, 30]))
    yield Case("0 for missing neighbours", of(cloud(6), [2, 6], 5, fill=0))
    yield Case("a number that is no row for missing neighbours", of(cloud(6), [2, 6], 5, fill=99))
    for d in (0, 1, 2, 8):
        yield Case(f"{d} coordinates", of(cloud(20, d), [20], 4, cloud(9, d)))
    places = cloud(3)[rng.integers(0, 3, 30)]
    yield Case("many points in three places", of(places, [30], 20))
    hub = np.zeros((1, 3), dtype)
    yield Case("one point near to all", of(hub, [1], 1, cloud(700)))
    far = of((cloud(20) * dtype.type(1e18)).astype(dtype), [20], 5)
    yield Case("huge coordinates", far)
    odd = of(cloud(9), [9], 4)
    odd["grad_dist"][:3, 1] = [np.nan, np.inf, -np.inf]
    yield Case("gradients that aren't finite", odd)
    yield from error_cases(of(cloud(5), [5], 2))


def error_cases(inputs: dict[str, Array]) -> Iterator[Case]:
    for row, at in [(5, 3), (-2, 1)]:
        idx = inputs["idx"].copy()
        idx.flat[at] = row
        error = f"input 'idx': element {at} is {row}, expected a row of 'xyz', 0..4"
        yield Case(f"row {row}", inputs | {"idx": idx}, error=error, unseen=True)
    more = {name: np.concatenate([inputs[name]] * 2) for name in ("grad_dist", "idx", "dist")}
    error = "input 'new_xyz': expected the 10 queries, got none; it may be left out where the 5 points are the queries"
    yield Case("no queries", inputs | more, error=error)
    yield Case("another shape", inputs | {"dist": inputs["dist"][:, :1]}, error="input 'dist': expected")


def large(types: Mapping[str, np.dtype]) -> Case:
    """The 16 nearest of 100,000 points, at random."""
    rng = np.random.default_rng(1)
    xyz = rng.uniform(0, 1, (100_000, 3)).astype(types["T"])
    idx = rng.integers(0, 100_000, (100_000, 16)).astype(np.int32)
    dist = np.linalg.norm(xyz[idx] - xyz[:, None], axis=-1).astype(types["T"])
    return Case("100,000 x 16", {"grad_dist": np.ones_like(dist), "xyz": xyz, "idx": idx, "dist": dist})
