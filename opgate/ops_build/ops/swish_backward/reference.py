"""SwishBackward in NumPy: the derivative by the product rule."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(grad_y: Array, x: Array, *, alpha: float) -> Array:
    """grad_y (s + z s (1 - s)) with z = alpha x and s = sigmoid(z), of x's shape and dtype, computed in f64."""
    with np.errstate(invalid="ignore", over="ignore"):
        z = x.astype(np.float64) * np.float32(alpha)
        s, complement = 1 / (1 + np.exp(-z)), 1 / (1 + np.exp(z))
        return np.asarray(grad_y.astype(np.float64) * (s + z * s * complement)).astype(x.dtype)
