"""RMSNorm in NumPy: B. Zhang, R. Sennrich, "Root Mean Square Layer Normalization", 2019."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.ops.layer_norm.reference import sum_of


def reference(x: Array, weight: Array | None, residual: Array | None, *, epsilon: float) -> tuple[Array, Array]:
    """y and sum, both of x's shape [..., c] and dtype: sum = x + residual rounded to that dtype (x where `residual` is
    absent), y = sum / sqrt(mean(sum^2) + epsilon) weight, computed in f64 from the rounded sum."""
    total = sum_of(x, residual)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        wide = total.astype(np.float64)
        if wide.size == 0:
            return total.copy(), total.copy()
        mean = np.mean(np.square(wide), axis=-1, keepdims=True)
        y = wide / np.sqrt(mean + np.float32(epsilon))
        y = y if weight is None else y * weight.astype(np.float64)
        return y.astype(x.dtype), total
