"""GeluBackward in NumPy: the derivative by the product rule."""

from __future__ import annotations

import math

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.ops.gelu.reference import share


def reference(grad_y: Array, x: Array, *, approximate: str) -> Array:
    """grad_y (share(x) + x share'(x)) of x's shape and dtype, computed in f64."""
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        below = share(wide, approximate)
        if approximate == "none":
            slope = np.exp(-(wide**2) / 2) / math.sqrt(2 * math.pi)
        else:
            inner = 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * np.minimum(wide**2, 1e18))
            slope = below * share(-wide, approximate) * inner
        return np.asarray(grad_y.astype(np.float64) * (below + wide * slope)).astype(x.dtype)
