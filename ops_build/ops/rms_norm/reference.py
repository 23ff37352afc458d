"""RMSNorm in NumPy: B. Zhang, R. Sennrich, "Root Mean Square Layer Normalization", 2019."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(x: Array, weight: Array, residual: Array | None, *, epsilon: float) -> tuple[Array, Array]:
    """y and sum, both of x's shape [..., c] and dtype: sum = x + residual rounded to that dtype (x where `residual` is
    absent), y = sum / sqrt(mean(sum^2) + epsilon) weight, computed in f64 from the rounded sum."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        total = x if residual is None else (x.astype(np.float32) + residual.astype(np.float32)).astype(x.dtype)
        wide = total.astype(np.float64)
        if wide.size == 0:
            return total.copy(), total.copy()
        mean = np.mean(np.square(wide), axis=-1, keepdims=True)
        y = wide / np.sqrt(mean + np.float32(epsilon)) * weight.astype(np.float64)
        return y.astype(x.dtype), total
