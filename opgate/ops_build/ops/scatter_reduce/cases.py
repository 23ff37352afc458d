from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.ops.segment_reduce.cases import TOLERANCE


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> Array:
        return np.asarray(rng.standard_normal(shape), dtype)

    def case(name: str, x: Array, index: Any, size: int, reduce: str = "sum", **more: Any) -> Case:
        inputs = {"x": x, "index": np.asarray(index, np.int64), "dim_size": np.array(size, np.int64)}
        return Case(name, inputs, {"reduce": reduce}, TOLERANCE[dtype.name], **more)

    for reduce in ("sum", "mean", "max", "min"):
        for columns in (1, 2, 7, 8, 16, 64, 513):
            yield case(f"{reduce} of {columns} columns", normal(40, columns), rng.integers(0, 12, 40), 15, reduce)
        yield case(f"{reduce} of one axis", normal(300), rng.integers(0, 100, 300), 100, reduce)
        yield case(f"{reduce} of three axes", normal(20, 3, 5), rng.integers(0, 4, 20), 4, reduce)
        for columns in (1, 9):
            yield case(f"{reduce} of one index, {columns}", normal(200, columns), np.full(200, 2), 4, reduce)
            odd = normal(12, columns)
            odd[1, 0], odd[4, 0], odd[5, 0], odd[8, 0] = np.nan, np.inf, -np.inf, np.inf
            yield case(
                f"{reduce} of what isn't finite, {columns}", odd, [0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 0], 6, reduce
            )
        yield case(f"{reduce} of nothing", normal(0, 4), [], 3, reduce)
    for columns in (1, 20):
        yield case(f"no outputs, {columns}", normal(0, columns), [], 0)
        yield case(f"the last index first, {columns}", normal(3, columns), [2, 1, 0], 3)
        yield case(f"many outputs, {columns}", normal(3000, columns), rng.integers(0, 5000, 3000), 5000, "mean")
    yield case("no columns", normal(4, 0), [0, 1, 1, 0], 2)
    yield case("many equal numbers", np.full((100_000, 1), 0.1, dtype), np.zeros(100_000), 1, "mean")
    for index in (-1, 4, 2**40):
        error = rf"input 'index': element 1 is {index}, expected 0\.\.3"
        yield case(f"index {index}", normal(3, 2), [0, index, 1], 4, error=error, unseen=True)
    yield case("an index too few", normal(3, 2), [0, 1], 4, error="input 'index': expected")
    yield case("a negative size", normal(3, 2), [0, 1, 2], -1, error="dim_size|output 'y'")


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """150,000 rows of 64, scattered to 20,000."""
    x = np.resize(np.linspace(-2, 2, 4099), (150_000, 64)).astype(types["T"])
    index = np.random.default_rng(1).integers(0, 20_000, 150_000)
    return Case("150,000 x 64", {"x": x, "index": index, "dim_size": np.array(20_000, np.int64)})
