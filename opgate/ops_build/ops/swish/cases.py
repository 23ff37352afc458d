from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from opgate.ops_build.case import Case
from opgate.ops_build.ops.mish.cases import RELATIVE, extremes

#: About where the exponential of a dtype ends, and around 0.
EXTREMES = [-1e30, -1000.0, -103.0, -88.5, -87.0, -30.0, -20.0, -1e-6, -0.0, 0.0, 1e-6, 19.9, 88.5, 103.0, 1e3, 1e30]


def cases(types: Mapping[str, np.dtype]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)
    for shape in [(), (0,), (1,), (7,), (3, 5), (2, 3, 4, 5), (2, 0, 3), (70_001,)]:
        yield Case(f"normal {list(shape)}", {"x": (rng.standard_normal(shape) * 4).astype(dtype)})
    for alpha in (0.0, 0.25, 1.702, -1.0, 40.0, 1e30):
        yield Case(f"alpha {alpha}", {"x": (rng.standard_normal(33) * 4).astype(dtype)}, {"alpha": alpha})
    x, relative = extremes(dtype, EXTREMES), RELATIVE[dtype.name]
    # Results below e^-80 are denormal in some of the dtypes and not promised.
    yield Case("extremes", {"x": x}, tolerance=(relative, 1e-35))
    yield Case("extremes, alpha -1", {"x": x}, {"alpha": -1.0}, tolerance=(relative, 1e-35))


def large(types: Mapping[str, np.dtype]) -> Case:
    """16 Mi elements."""
    return Case("16 Mi", {"x": np.resize(np.linspace(-8, 8, 4099), 1 << 24).astype(types["T"])})
