from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from opgate.ops_build.case import Case


def cases(types: Mapping[str, np.dtype]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)
    relative = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 5e-7, "float64": 1e-15}[dtype.name]
    for shape in [(), (0,), (1,), (7,), (3, 5), (2, 3, 4, 5), (70_001,)]:
        yield Case(f"normal {list(shape)}", {"x": (rng.standard_normal(shape) * 4).astype(dtype)})
    # Both sides of the places where the formula changes, and of the one where the square overflows.
    places = [1e-30, 1e-8, 1e-3, 0.4, 0.999, 1.0, 1.001, 7.0, 300.0, 6e4, 9.9e8, 1.01e9, 1.8e19, 1.9e19, 3e38]
    x = np.array([sign * x for x in places if x < 65500 or dtype != np.float16 for sign in (1, -1)]).astype(dtype)
    yield Case("places", {"x": x}, tolerance=(relative, 1e-7 if dtype == np.float16 else 0.0))
    yield Case("odd", {"x": np.array([0.0, -0.0, np.inf, -np.inf, np.nan]).astype(dtype)})


def large(types: Mapping[str, np.dtype]) -> Case:
    """16 Mi elements."""
    return Case("16 Mi", {"x": np.resize(np.linspace(-8, 8, 4099), 1 << 24).astype(types["T"])})
