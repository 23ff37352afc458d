from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from opgate.ops_build.case import Array, Case, of_sums


def cases(types: Mapping[str, np.dtype]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(dtype)

    def rows(*shape: int) -> dict[str, Array]:
        return {"grad_y": normal(*shape), "sum": normal(*shape), "weight": normal(shape[-1])}

    # Sums over many rows: their terms are as large as the deviation, the sum may be small.
    coarse = {"float16": (4e-3, 0.1), "bfloat16": (3e-2, 0.6), "float32": (1e-5, 2e-5), "float64": (1e-12, 1e-11)}
    many = {"grad_weight": coarse[dtype.name], "grad_bias": coarse[dtype.name]}
    if dtype == np.float32:  # a short row may have a small deviation, by which its gradient is divided
        many["grad_x_and_residual"] = (1e-5, 2e-5)
    for shape in [(7,), (0,), (3, 5), (2, 0), (0, 8), (2, 3, 4, 33), (5, 64), (300, 20), (1500, 3)]:
        inputs = rows(*shape)
        yield Case(f"{list(shape)}", inputs, tolerance=many)
        yield Case(f"{list(shape)} with the sum's gradient", inputs | {"grad_sum": normal(*shape)}, tolerance=many)
    for length in (2, 15, 16, 17, 33, 65, 200, 257, 600):
        yield Case(f"rows of {length}", rows(3, length) | {"grad_sum": normal(3, length)})
    inputs = rows(4, 24)
    del inputs["weight"]
    yield Case("without weight", inputs)
    yield Case("without weight, with the sum's gradient", inputs | {"grad_sum": normal(4, 24)})
    for epsilon in (0.0, 1e-6, 0.5, 100.0):
        yield Case(f"epsilon {epsilon}", rows(4, 24), {"epsilon": epsilon})
    yield Case("not finite", rows(2, 3) | {"sum": np.array([[1, np.nan, 2], [1, 2, 4]], dtype)})
    pattern = "attribute 'epsilon': expected a finite number, 0 or more, got"
    yield Case("epsilon negative", inputs, {"epsilon": -1.0}, error=pattern)
    yield Case("unequal shapes", rows(2, 3) | {"sum": normal(3, 3)}, error="input 'sum': expected")
    yield Case("a weight too long", rows(2, 3) | {"weight": normal(4)}, error="input 'weight': expected")


def large(types: Mapping[str, np.dtype]) -> Case:
    """2048 rows of 512."""
    x = np.resize(np.linspace(-2, 2, 4099), (2048, 512)).astype(types["T"])
    tolerance = of_sums(types["T"], grad_x_and_residual=2e-5)
    return Case("2048 x 512", {"grad_y": x, "sum": x, "weight": x[0]}, tolerance=tolerance)
