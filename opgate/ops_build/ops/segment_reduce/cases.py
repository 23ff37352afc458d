from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case

#: Sums of f32 in blocks: numbers of about 1 cancel out.
TOLERANCE = {"float16": (2e-3, 1e-2), "bfloat16": (1.6e-2, 1e-1), "float32": (1e-5, 1e-5), "float64": (1e-12, 1e-12)}


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> Array:
        return np.asarray(rng.standard_normal(shape), dtype)

    def case(name: str, x: Array, ends: Sequence[int], reduce: str = "sum") -> Case:
        inputs = {"x": x, "ends": np.array(ends, np.int32)}
        return Case(name, inputs, {"reduce": reduce}, TOLERANCE[dtype.name])

    for reduce in ("sum", "mean", "max", "min"):
        for columns in (1, 3, 16, 64, 65, 513):
            yield case(f"{reduce} of {columns} columns", normal(40, columns), [0, 1, 3, 3, 40, 40], reduce)
        yield case(f"{reduce} of one axis", normal(300), [7, 300], reduce)
        yield case(f"{reduce} of three axes", normal(20, 3, 5), [4, 20], reduce)
        for n in (63, 64, 65, 130, 4097):
            yield case(f"{reduce} of {n} rows", normal(n, 1), [n], reduce)
        odd = normal(12, 5)
        odd[1, 0], odd[4, 1], odd[5, 2], odd[6, 2], odd[11, 3] = np.nan, np.inf, np.inf, -np.inf, np.nan
        yield case(f"{reduce} of what isn't finite", odd, [1, 3, 7, 12], reduce)
        yield case(
            f"{reduce} of infinities", np.full((3, 2), -np.inf if reduce == "max" else np.inf, dtype), [3], reduce
        )
        wide = np.concatenate([odd] * 5, axis=1)
        yield case(f"{reduce} of what isn't finite, many columns", wide, [1, 3, 7, 12], reduce)
        yield case(f"{reduce} of nothing", normal(0, 4), [0, 0], reduce)
    yield case("no segments", normal(0, 4), [])
    yield case("no columns", normal(4, 0), [1, 4])
    yield case("many segments", normal(3000, 7), [*range(0, 3000, 2), 3000], "mean")
    yield case("rows beyond a block", normal(700, 20), [690, 700])
    # One sum of f32 would drift.
    yield case("many equal numbers", np.full((100_000, 1), 0.1, dtype), [100_000], "mean")
    for ends, error in [
        ([2, 1, 5], "input 'ends': element 1 is 1, expected at least 2"),
        ([-1, 5], "input 'ends': element 0 is -1, expected at least 0"),
        ([2, 4], "input 'ends': expected the last end to be 5, the rows of 'x', got 4"),
        ([2, 6], "input 'ends': expected the last end to be 5, the rows of 'x', got 6"),
    ]:
        inputs = {"x": normal(5, 2), "ends": np.array(ends, np.int32)}
        yield Case(f"ends {ends}", inputs, error=error, unseen=True)
    no_ends = {"x": normal(5, 2), "ends": np.zeros(0, np.int32)}
    yield Case("no ends", no_ends, error="the last end to be 5, the rows of 'x', got no ends")
    yield Case("a word", {"x": normal(1), "ends": np.ones(1, np.int32)}, {"reduce": "prod"}, error="reduce")


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """200,000 rows of 64 in 20,000 segments."""
    x = np.resize(np.linspace(-2, 2, 4099), (200_000, 64)).astype(types["T"])
    return Case("200,000 x 64", {"x": x, "ends": np.arange(10, 200_001, 10).astype(np.int32)})
