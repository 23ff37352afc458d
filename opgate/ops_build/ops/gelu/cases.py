from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from opgate.ops_build.case import Case
from opgate.ops_build.ops.mish.cases import extremes

#: About where the tail of the normal distribution ends in a dtype, and around 0.
EXTREMES = [-1e30, -1000.0, -14.0, -13.0, -6.0, -3.5, -1.0, -1e-6, -0.0, 0.0, 1e-6, 0.75, 1.0, 3.5, 13.2, 1e3, 1e30]


def cases(types: Mapping[str, np.dtype]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)
    x = extremes(dtype, EXTREMES)
    for approximate in ("none", "tanh"):
        for shape in [(), (0,), (1,), (7,), (3, 5), (2, 3, 4, 5), (20_001,)]:
            normal = (rng.standard_normal(shape) * 4).astype(dtype)
            yield Case(f"{approximate} {list(shape)}", {"x": normal}, {"approximate": approximate})
        # The exponent of the approximation has one rounding error of f32, which the exponential multiplies by up to 88.
        error = 1e-6 if approximate == "none" else 3e-5
        relative = {"float16": 1e-3, "bfloat16": 8e-3, "float32": error, "float64": 3e-13}[dtype.name]
        yield Case(f"{approximate}, extremes", {"x": x}, {"approximate": approximate}, tolerance=(relative, 1e-35))
    yield Case("another word", {"x": x}, {"approximate": "sigmoid"}, error="attribute 'approximate': expected")


def large(types: Mapping[str, np.dtype]) -> Case:
    """16 Mi elements."""
    return Case("16 Mi", {"x": np.resize(np.linspace(-8, 8, 4099), 1 << 24).astype(types["T"])})
