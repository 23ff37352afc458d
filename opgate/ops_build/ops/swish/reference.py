"""Swish in NumPy: P. Ramachandran, B. Zoph, Q. Le, "Searching for Activation Functions", 2017."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(x: Array, *, alpha: float) -> Array:
    """x sigmoid(alpha x) of x's shape and dtype, computed in f64. -inf 0 is NaN, as in ONNX."""
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(wide * (1 / (1 + np.exp(-np.float32(alpha) * wide)))).astype(x.dtype)
