"""FakeQuantizeBackward in NumPy: Y. Bengio et al., "Estimating or Propagating Gradients Through Stochastic Neurons for
Conditional Computation", 2013."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.ops.fake_quantize.reference import quantized


def reference(
    grad_y: Array, x: Array, scale: Array, zero_point: Array, *, axis: int, quant_min: int, quant_max: int
) -> Array:
    """grad_y where round(x / scale) + zero_point is in [quant_min, quant_max], 0 elsewhere."""
    steps, _ = quantized(x, scale, zero_point, axis)
    inside = (steps >= quant_min) & (steps <= quant_max)
    return np.where(inside, grad_y, np.zeros_like(grad_y))
