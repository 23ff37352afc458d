"""LayerNorm in NumPy: J. Ba, J. Kiros, G. Hinton, "Layer Normalization", 2016."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def sum_of(x: Array, residual: Array | None) -> Array:
    """x + residual rounded to their dtype, or x where `residual` is absent."""
    if residual is None:
        return x.copy()
    wide = np.float64 if x.dtype == np.float64 else np.float32
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(x.astype(wide) + residual.astype(wide)).astype(x.dtype)


def standard(rows: Array, epsilon: float) -> Array:
    """Rows of f64 along the last axis, shifted to mean 0 and divided by their deviation."""
    if rows.size == 0:
        return rows
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        centred = rows - np.mean(rows, axis=-1, keepdims=True)
        # Once more, because the mean itself is rounded.
        centred = centred - np.mean(centred, axis=-1, keepdims=True)
        variance = np.mean(np.square(centred), axis=-1, keepdims=True)
        return np.asarray(centred / np.sqrt(variance + np.float32(epsilon)))


def reference(
    x: Array, weight: Array | None, bias: Array | None, residual: Array | None, *, epsilon: float
) -> tuple[Array, Array]:
    """y and sum, both of x's shape [..., c] and dtype: sum = x + residual rounded to that dtype,
    y = (sum - mean) / sqrt(variance + epsilon) weight + bias, computed in f64 from the rounded sum."""
    total = sum_of(x, residual)
    y = standard(total.astype(np.float64), epsilon)
    with np.errstate(invalid="ignore"):
        y = y if weight is None else y * weight.astype(np.float64)
        y = y if bias is None else y + bias.astype(np.float64)
    return y.astype(x.dtype), total
