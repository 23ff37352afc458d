from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from opgate.ops_build.case import Case
from opgate.ops_build.ops.mish.cases import EXTREMES, RELATIVE, extremes


def cases(types: Mapping[str, np.dtype]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(1)
    for shape in [(), (0,), (1,), (7,), (3, 5), (2, 3, 4, 5), (70_001,)]:
        grad_y, x = ((rng.standard_normal(shape) * scale).astype(dtype) for scale in (1, 4))
        yield Case(f"normal {list(shape)}", {"grad_y": grad_y, "x": x})
    x, relative = extremes(dtype, EXTREMES), RELATIVE[dtype.name]
    for grad in (1.0, -3.0, 0.0):
        # Below e^-80 results are denormal in some of the dtypes and not promised.
        yield Case(f"extremes, gradient {grad}", {"grad_y": np.full_like(x, grad), "x": x}, tolerance=(relative, 1e-34))
    yield from odd_gradients(dtype)


def odd_gradients(dtype: np.dtype) -> Iterator[Case]:
    """Cases of an elementwise op's backward: gradients that aren't finite, and a shape that is not x's."""
    odd = np.array([np.inf, -np.inf, np.nan, 0.0]).astype(dtype)
    yield Case("gradients that aren't finite", {"grad_y": odd, "x": np.ones(4, dtype)})
    yield Case(
        "unequal shapes",
        {"grad_y": np.ones(2, dtype), "x": np.ones(3, dtype)},
        error=r"input 'x': expected T\[\.\.\.\] with \.\.\. = \[2\], got .*\[3\]",
    )


def large(types: Mapping[str, np.dtype]) -> Case:
    """16 Mi elements."""
    x = np.resize(np.linspace(-8, 8, 4099), 1 << 24).astype(types["T"])
    return Case("16 Mi", {"grad_y": x, "x": x})
