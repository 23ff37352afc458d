"""RMSNormBackward in NumPy: the chain rule for one row after the other, with the row's Jacobian as a matrix."""

from __future__ import annotations

from opgate.ops_build.case import Array
from opgate.ops_build.ops.layer_norm_backward.reference import gradients


def reference(
    grad_y: Array, sum: Array, weight: Array | None, grad_sum: Array | None, *, epsilon: float
) -> tuple[Array, ...]:
    """The gradients of x and of residual, and of weight, in the dtype of `sum`, computed in f64."""
    return tuple(g.astype(sum.dtype) for g in gradients(grad_y, sum, weight, grad_sum, epsilon, False)[:2])
