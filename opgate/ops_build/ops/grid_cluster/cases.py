from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)

    def case(name: str, pos: Any, size: Any, start: Any = None, end: Any = None, **more: Any) -> Case:
        given = {"pos": pos, "size": size, "start": start, "end": end}
        inputs = {name: np.asarray(value, dtype) for name, value in given.items() if value is not None}
        return Case(name, inputs, **more)

    def cloud(n: int, d: int = 3) -> Array:
        return np.asarray(rng.standard_normal((n, d)) * 4, dtype)

    for d in (1, 2, 3, 4, 7):
        for n in (1, 15, 16, 31, 32, 33, 700):
            yield case(f"{n} points of {d}", cloud(n, d), np.linspace(0.3, 2, d))
        yield case(f"a range of {d}", cloud(100, d), np.full(d, 0.7), np.full(d, -5), np.full(d, 6))
    yield case("no points", cloud(0), [1, 1, 1])
    yield case("no points and a range", cloud(0), [1, 1, 1], [0, 0, 0], [1, 1, 1])
    yield case("no axes", cloud(5, 0), [])
    yield case("many points", cloud(20_000), [0.4, 0.5, 8])
    yield case("points outside of the range", cloud(90), [1, 1, 1], [-1, -1, -1], [1, 1, 1])
    yield case("a start", cloud(90), [1, 1, 1], [-20, -20, -20])
    yield case("truncated toward zero", [[-0.9], [-1.0], [-1.1], [0.9], [2.9]], [1], [0], [3])
    yield case("an end before the start", cloud(40), [1, 1, 1], [3, 3, 3], [-3, -3, -3])
    yield case("all equal", np.ones((40, 3)), [0.1, 0.1, 0.1])
    # A product with 1 / size would put some of these into another cell.
    tenths = (np.arange(-30, 30) / np.asarray(10, dtype)).astype(dtype).repeat(2).reshape(-1, 2)
    yield case("on the edges of cells", tenths, [0.1, 0.3])
    yield case("an infinite size: one cell", cloud(40), [np.inf, 1, np.inf])
    yield case("more cells than i32 holds", cloud(400), [1e-3, 1e-3, 1e-3])
    yield case("as many cells as i32 holds", [[0, 0], [65534, 32767], [3, 7]], [1, 1], [0, 0], [65534, 32767])
    yield case("a cell more", [[0, 0], [65535, 32767], [3, 7]], [1, 1], [0, 0], [65535, 32767])
    yield case("more cells than i64 holds", cloud(40) * dtype.type(1e9), [1e-3, 1e-3, 1e-3])
    yield case("quotients beyond i64", cloud(40) * dtype.type(1e30), [1e-3, 1, 1])
    odd = cloud(64)
    odd[3, 0], odd[40, 1], odd[41, 2] = np.nan, np.nan, np.nan
    yield case("NaN is no bound", odd, [1, 1, 1])
    yield case("a column of NaN", np.where([True, False, True], odd, np.nan), [1, 1, 1])
    infinite = cloud(64)
    infinite[3, 0], infinite[40, 1] = np.inf, -np.inf
    yield case("infinite coordinates", infinite, [1, 1, 1])
    yield case("infinite coordinates and a range", infinite, [1, 1, 1], [-9, -9, -9], [9, 9, 9])
    for size in (0, -1, np.nan):
        error = f"input 'size': element 1 is {np.float64(size):.6f}, expected a positive number"
        yield case(f"a size of {size}", cloud(4), [1, size, 1], error=error.replace(".", r"\."), unseen=True)
    yield case("two sizes for three axes", cloud(4), [1, 1], error="input 'size': expected")
    yield case("an end of other dims", cloud(4), [1, 1, 1], [0, 0, 0], [1], error="input 'end': expected")


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """A million points."""
    pos = np.random.default_rng(1).uniform(0, 100, (1_000_000, 3)).astype(types["T"])
    return Case("1M x 3", {"pos": pos, "size": np.full(3, 0.5, types["T"])})
