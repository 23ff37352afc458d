from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case, edge_values


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)

    def series(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(dtype)

    def case(name: str, x: Array, error: str | None = None, **attributes: int) -> Case:
        return Case(name, {"x": x}, attributes, {"float32": (1e-5, 1e-6), "float64": (1e-11, 1e-12)}[dtype.name], error)

    # Short windows are read one by one, those above 3 in blocks of their size.
    for size in (1, 2, 3, 4, 7, 64, 333):
        for step in (1, 3, size, 2 * size + 1):
            yield case(f"windows of {size}, every {step}", series(2, 1000), size=size, step=step)
    yield case("one window", series(3, 90), size=90)
    yield case("a series that is too short", series(3, 89), size=90)
    yield case("much too short", series(3, 5), size=90, step=2)
    yield case("no values", series(3, 0), size=1)
    yield case("no rows", series(0, 50), size=7)
    yield case("several pieces", series(1, 9000), size=5)
    yield case("several pieces of long windows", series(2, 9000), size=70, step=2)
    for size in (6, 80):
        yield case(f"one degree of freedom less, {size}", series(2, 300), size=size, ddof=1)
        yield case(f"a large mean, {size}", (series(2, 300) + 1000).astype(dtype), size=size)
        yield case(f"all equal, {size}", np.full((2, 300), 0.1, dtype), size=size)
        odd = series(1, 900)
        odd[0, [200, 500]] = np.nan, np.inf
        odd[0, [700, 701]] = -np.inf
        yield case(f"NaN and infinities, {size}", odd, size=size)
        # The squares of the greatest f64 overflow, and sums of several such numbers.
        edges = series(1, 900)
        edges[0, ::17][:30] = edge_values(dtype, 1, 1e8, 1e12, 1e20)[:30]
        edges[0, [600, 800]] = np.finfo(dtype).max, -np.finfo(dtype).max
        yield case(f"large and small numbers, {size}", edges, size=size)
    yield case("a large number first", np.array([[1e20, 1, 2, 3, 4, 5, 6, 7]], dtype), size=4)
    yield case("one value with ddof 1", series(1, 5), size=1, ddof=1)
    yield case("size 0", series(1, 9), error="attribute 'size': expected 1 or more, got 0", size=0)
    yield case("step 0", series(1, 9), error="step|a size is divided by zero", size=2, step=0)
    yield case("ddof 2", series(1, 9), error="attribute 'ddof': expected 0 or 1, got 2", size=2, ddof=2)


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """64 series of 262144 values, windows of 50."""
    x = np.resize(np.linspace(-2, 2, 4099), (64, 1 << 18)).astype(types["T"])
    return Case("64 x 256 Ki", {"x": x}, {"size": 50})
