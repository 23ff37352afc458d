from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from opgate.ops_build.case import Array, Case

#: About where the exponential of a dtype ends, where f32 rounds 1 + e^-x to 1, and around 0.
EXTREMES = [-1e30, -1000.0, -103.0, -88.5, -87.0, -30.0, -20.0, -1e-6, -0.0, 0.0, 1e-6, 19.9, 20.1, 89.0, 1e3, 1e30]
#: The relative error that an extreme result may have.
RELATIVE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-13}


def extremes(dtype: np.dtype, values: Sequence[float]) -> Array:
    """Returns the values that a dtype can hold, and what isn't finite."""
    held = [x for x in values if abs(x) < 6e4 or dtype != np.float16]
    return np.array([*held, np.inf, -np.inf, np.nan]).astype(dtype)


def cases(types: Mapping[str, np.dtype]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)
    for shape in [(), (0,), (1,), (7,), (3, 5), (2, 3, 4, 5), (70_001,)]:
        yield Case(f"normal {list(shape)}", {"x": (rng.standard_normal(shape) * 4).astype(dtype)})
    x, relative = extremes(dtype, EXTREMES), RELATIVE[dtype.name]
    # Below e^-80 results are denormal in some of the dtypes and not promised.
    yield Case("extremes", {"x": x}, tolerance=(relative, 1e-35))


def large(types: Mapping[str, np.dtype]) -> Case:
    """16 Mi elements."""
    return Case("16 Mi", {"x": np.resize(np.linspace(-8, 8, 4099), 1 << 24).astype(types["T"])})
