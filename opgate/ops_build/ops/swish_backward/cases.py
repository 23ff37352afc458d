from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from opgate.ops_build.case import Case
from opgate.ops_build.ops.mish.cases import RELATIVE, extremes
from opgate.ops_build.ops.mish_backward.cases import odd_gradients
from opgate.ops_build.ops.swish.cases import EXTREMES


def cases(types: Mapping[str, np.dtype]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)
    for shape in [(), (0,), (1,), (7,), (3, 5), (2, 3, 4, 5), (70_001,)]:
        grad_y, x = ((rng.standard_normal(shape) * scale).astype(dtype) for scale in (1, 4))
        yield Case(f"normal {list(shape)}", {"grad_y": grad_y, "x": x})
    grad_y, x = ((rng.standard_normal(33) * scale).astype(dtype) for scale in (1, 4))
    for alpha in (0.0, 0.25, 1.702, -1.0, 40.0):
        yield Case(f"alpha {alpha}", {"grad_y": grad_y, "x": x}, {"alpha": alpha})
    x, relative = extremes(dtype, EXTREMES), RELATIVE[dtype.name]
    for grad in (1.0, -3.0, 0.0):
        # Results below e^-80 are denormal in some of the dtypes and not promised.
        yield Case(f"extremes, gradient {grad}", {"grad_y": np.full_like(x, grad), "x": x}, tolerance=(relative, 1e-34))
    yield from odd_gradients(dtype)


def large(types: Mapping[str, np.dtype]) -> Case:
    """16 Mi elements."""
    x = np.resize(np.linspace(-8, 8, 4099), 1 << 24).astype(types["T"])
    return Case("16 Mi", {"grad_y": x, "x": x})
