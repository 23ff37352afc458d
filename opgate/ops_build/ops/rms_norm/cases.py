from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from opgate.ops_build.case import Array, Case


def cases(types: Mapping[str, np.dtype]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(dtype)

    shapes = [(1,), (7,), (0,), (3, 5), (2, 0), (0, 8), (2, 3, 4, 33), (5, 64), (3, 1000), (700, 129)]
    for shape in shapes:
        inputs = {"x": normal(*shape), "weight": normal(shape[-1])}
        yield Case(f"{list(shape)}", inputs)
        yield Case(f"{list(shape)} with residual", inputs | {"residual": normal(*shape)})
        yield Case(f"{list(shape)} without weight", {"x": inputs["x"]})
    yield Case("a residual without weight", {"x": normal(4, 40), "residual": normal(4, 40)})
    # On a GPU the length decides how many threads compute a row and how much each of them holds in registers.
    for length in (24, 64, 200, 480, 2000, 4000, 4100, 8000, 8200, 8201):
        inputs = {"x": normal(3, length), "weight": normal(length), "residual": normal(3, length)}
        yield Case(f"rows of {length}", inputs)
        yield Case(f"rows of {length} without residual", {"x": inputs["x"], "weight": inputs["weight"]})
    many = 16_448 // dtype.itemsize  # many rows that are longer than a block of a GPU holds
    yield Case("many long rows", {"x": normal(130, many), "weight": normal(many), "residual": normal(130, many)})
    # One sum of f32 would round away what it adds: equal values make it drift in one direction.
    drift = {"x": np.full((1, 80_000), 0.1, dtype), "weight": np.ones(80_000, dtype)}
    exact = (5e-7, 0.0) if dtype == np.float32 else None
    yield Case("a row of 80,000 equal values", drift, {"epsilon": 0.0}, tolerance=exact)
    rows = {"x": normal(4, 24), "weight": normal(24)}
    for epsilon in (0.0, 1e-6, 0.5, 100.0):
        yield Case(f"epsilon {epsilon}", rows, {"epsilon": epsilon})
    # f16's squares overflow and underflow, f32's don't: the arithmetic must be f32's.
    for scale in (3e-4, 200.0):
        large = {"x": (normal(3, 40) * dtype.type(scale)).astype(dtype), "weight": normal(40)}
        yield Case(f"values of about {scale}", large | {"residual": large["x"]})
    yield Case("zeros", {"x": np.zeros((2, 5), dtype), "weight": np.ones(5, dtype)})
    yield Case("zeros, epsilon 0", {"x": np.zeros((2, 5), dtype), "weight": np.ones(5, dtype)}, {"epsilon": 0.0})
    # 1 + 0.49 ulp is 1, and y the weight exactly; of the unrounded sum the first y would be the next number.
    ulp = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}[dtype.name]
    lost = {"x": np.ones((1, 4), dtype), "weight": np.full(4, 2 - ulp, dtype)}
    lost["residual"] = np.array([[0.49 * ulp, 0, 0, 0]], dtype)
    yield Case("the sum is rounded first", lost, {"epsilon": 0.0}, tolerance=(0.0, 0.0))
    odd = {"x": np.array([[1, np.nan, 2], [np.inf, 1, 2], [1, 2, 3]], dtype), "weight": np.ones(3, dtype)}
    yield Case("not finite", odd)
    for name, value in [("negative", -1.0), ("infinite", float("inf")), ("NaN", float("nan"))]:
        pattern = "attribute 'epsilon': expected a finite number, 0 or more, got"
        yield Case(f"epsilon {name}", rows, {"epsilon": value}, error=pattern)
    yield Case("a weight too long", {"x": normal(2, 3), "weight": normal(4)}, error="input 'weight': expected")
    other = {"x": normal(2, 3), "weight": normal(3), "residual": normal(3, 3)}
    yield Case("a residual of another shape", other, error="input 'residual': expected")


def large(types: Mapping[str, np.dtype]) -> Case:
    """16384 rows of 4096 with a residual."""
    x = np.resize(np.linspace(-2, 2, 4099), (16384, 4096)).astype(types["T"])
    return Case("16384 x 4096", {"x": x, "weight": x[0], "residual": x})
