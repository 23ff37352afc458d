from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from opgate.ops_build.case import Array, Case


def cases(types: Mapping[str, np.dtype]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(dtype)

    def rows(*shape: int) -> dict[str, Array]:
        return {"x": normal(*shape), "weight": normal(shape[-1]), "bias": normal(shape[-1])}

    for shape in [(7,), (0,), (3, 5), (2, 0), (0, 8), (2, 3, 4, 33), (5, 64), (3, 1000), (700, 129)]:
        inputs = rows(*shape)
        yield Case(f"{list(shape)}", inputs)
        yield Case(f"{list(shape)} with residual", inputs | {"residual": normal(*shape)})
    # Lengths on both sides of a vector, of a GPU's warp and block, and of the blocks of partial sums.
    for length in (2, 15, 16, 17, 31, 33, 63, 65, 200, 257, 1023, 1025, 4100, 8201, 8208, 20_000):
        yield Case(f"rows of {length}", rows(3, length) | {"residual": normal(3, length)})
    # Longer than a block of a GPU holds: few rows are computed by several blocks each, many by one each.
    yield Case(
        "many long rows", rows(130, 16_448 // dtype.itemsize) | {"residual": normal(130, 16_448 // dtype.itemsize)}
    )
    x = normal(4, 40)
    for names in [(), ("weight",), ("bias",), ("residual",), ("weight", "residual"), ("bias", "residual")]:
        others = {"weight": normal(40), "bias": normal(40), "residual": normal(4, 40)}
        yield Case(f"with {names}", {"x": x} | {name: others[name] for name in names})
    for epsilon in (0.0, 1e-6, 0.5, 100.0):
        yield Case(f"epsilon {epsilon}", rows(4, 24), {"epsilon": epsilon})
    yield Case("one number a row", rows(5, 1))
    yield Case("equal numbers", {"x": np.full((2, 77), 0.1, dtype)}, tolerance=(1e-6, 1e-3))
    # A mean that is large beside the deviation: the numbers are exact in every dtype, and so are their differences.
    large = {"float16": 1024, "bfloat16": 128, "float32": 2.0**22, "float64": 2.0**50}[dtype.name]
    steps = rng.integers(0, 8, (3, 5000)) + large
    yield Case("a large mean", {"x": steps.astype(dtype)})
    yield Case("a large negative mean", {"x": -steps.astype(dtype)})
    yield Case("a large mean of long rows", {"x": (rng.integers(0, 8, (2, 20_000)) + large).astype(dtype)})
    for scale in (3e-4, 200.0):
        yield Case(f"values of about {scale}", {"x": (normal(3, 40) * dtype.type(scale)).astype(dtype)})
    yield Case("zeros, epsilon 0", {"x": np.zeros((2, 5), dtype)}, {"epsilon": 0.0})
    odd = {"x": np.array([[1, np.nan, 2], [np.inf, 1, 2], [1, 2, 3], [-np.inf, np.inf, 0]], dtype)}
    yield Case("not finite", odd)
    for name, value in [("negative", -1.0), ("infinite", float("inf")), ("NaN", float("nan"))]:
        pattern = "attribute 'epsilon': expected a finite number, 0 or more, got"
        yield Case(f"epsilon {name}", {"x": x}, {"epsilon": value}, error=pattern)
    for name in ("weight", "bias"):
        yield Case(f"a {name} too long", {"x": x, name: normal(41)}, error=f"input '{name}': expected")
    yield Case("a residual of another shape", {"x": x, "residual": normal(3, 40)}, error="input 'residual': expected")


def large(types: Mapping[str, np.dtype]) -> Case:
    """8192 rows of 4096 with a residual."""
    x = np.resize(np.linspace(-2, 2, 4099), (8192, 4096)).astype(types["T"])
    return Case("8192 x 4096", {"x": x, "weight": x[0], "bias": x[1], "residual": x})
