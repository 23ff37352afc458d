from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case

#: The terms have values of about 1. Sums that cancel are small, so the tolerance is absolute.
TOLERANCES = {"float16": (2e-3, 4e-3), "bfloat16": (1.6e-2, 3e-2), "float32": (1e-5, 4e-6), "float64": (1e-12, 1e-12)}


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)

    def inputs(n: int, c: int, m: int, k: int = 3, lowest: int = 0) -> dict[str, Array]:
        weight = rng.uniform(0.1, 1, (m, k))
        return {
            "features": rng.uniform(-1, 1, (n, c)).astype(dtype),
            "idx": rng.integers(lowest, max(n, lowest + 1), (m, k)).astype(np.int32),
            "weight": (weight / weight.sum(1, keepdims=True) if k else weight).astype(dtype),
        }

    def case(name: str, arrays: dict[str, Array]) -> Case:
        return Case(name, arrays, tolerance=TOLERANCES[dtype.name])

    for c in (0, 1, 3, 15, 16, 17, 64, 511, 512, 513, 1100):
        yield case(f"{c} columns", inputs(20, c, 9))
    for m in (0, 1, 300):
        yield case(f"{m} queries", inputs(50, 8, m))
    for k in (0, 1, 2, 4, 6, 9):
        yield case(f"{k} neighbours", inputs(40, 33, 20, k))
    for k in (64, 65, 66, 67, 200):
        yield case(f"a sum of {k}", inputs(40, 33, 3, k))
    yield case("neighbours that are missing", inputs(5, 20, 30, 5, lowest=-3))
    yield case("all neighbours are missing", inputs(0, 20, 5, 3, lowest=-1))
    yield case("no features and no queries", inputs(0, 5, 0))
    yield case("one row is the neighbour of all", inputs(1, 40, 100))
    equal = inputs(9, 12, 5)
    equal["idx"][:] = equal["idx"][:, :1]
    yield case("one neighbour three times", equal)
    missing = inputs(6, 5, 8, lowest=-2)
    missing["weight"][missing["idx"] < 0] = np.nan
    yield case("a weight of NaN where the neighbour is missing", missing)
    odd = inputs(6, 5, 8)
    odd["features"][2, 1], odd["weight"][3, 0] = np.inf, np.nan
    yield case("not finite", odd)
    yield from errors(inputs(5, 4, 2), case)


def errors(good: dict[str, Array], case: Any) -> Iterator[Case]:
    for row, at in [(5, 4), (2**31 - 1, 0)]:
        idx = good["idx"].copy()
        idx.flat[at] = row
        error = f"input 'idx': element {at} is {row}, expected a row of 'features', below 5"
        yield replace(case(f"row {row}", good | {"idx": idx}), error=error, unseen=True)
    other = case("another number of weights", good | {"weight": good["weight"][:, :2]})
    yield replace(other, error=r"input 'weight': expected T\[m, k\] with")


def large(types: Mapping[str, np.dtype]) -> Case:
    """16,384 points between 4,096, 128 features."""
    rng = np.random.default_rng(1)
    features = rng.uniform(-1, 1, (4096, 128)).astype(types["T"])
    idx = rng.integers(0, 4096, (16_384, 3)).astype(np.int32)
    weight = rng.uniform(0, 1, (16_384, 3)).astype(types["T"])
    arrays = {"features": features, "idx": idx, "weight": weight}
    return Case("16,384 x 128", arrays, tolerance=TOLERANCES[types["T"].name])
