"""FakeQuantize in NumPy: B. Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", 2017."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def quantized(x: Array, scale: Array, zero_point: Array, axis: int) -> tuple[Array, Array]:
    """x / scale + zero_point, rounded, and scale, both with x's rank. The product with 1 / scale is rounded to f32 (f64
    for f64), as in torch: its error decides which of two neighbours is nearest."""
    wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    shape = [1] * x.ndim
    if len(scale) > 1:
        shape[axis] = len(scale)
    inverse = (np.float32(1) / scale).astype(wide.dtype).reshape(shape)
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.rint(wide * inverse).astype(np.float64) + zero_point.reshape(shape)
    return steps, scale.astype(wide.dtype).reshape(shape)


def reference(x: Array, scale: Array, zero_point: Array, *, axis: int, quant_min: int, quant_max: int) -> Array:
    """(clamp(round(x / scale) + zero_point, quant_min, quant_max) - zero_point) scale, of x's shape and dtype. NaN
    becomes quant_min."""
    steps, factor = quantized(x, scale, zero_point, axis)
    steps = np.clip(np.where(np.isnan(steps), quant_min, steps), quant_min, quant_max)
    shape = [-1 if size > 1 else 1 for size in factor.shape]
    centred = steps - zero_point.reshape(shape)
    return np.asarray(centred.astype(factor.dtype) * factor).astype(x.dtype)
