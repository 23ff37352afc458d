"""LayerNormBackward in NumPy: the chain rule for one row after the other, with the row's Jacobian as a matrix."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def row_gradient(row: Array, gradient: Array, epsilon: float, centred: bool) -> tuple[Array, Array]:
    """The standardized row, and the gradient of the row: the transpose of its Jacobian times `gradient`."""
    c = len(row)
    centring = np.eye(c) - (1 / c if centred else 0)
    d = centring @ (centring @ row)
    root = np.sqrt(np.mean(d * d) + np.float32(epsilon))
    # d(d / root) = dd / root - d (d . dd) / (c root^3), and dd = centring dx.
    inner = gradient / root - d * (d @ gradient) / (c * root**3)
    return d / root, centring.T @ inner


def gradients(
    grad_y: Array, total: Array, weight: Array | None, grad_sum: Array | None, epsilon: float, centred: bool
) -> tuple[Array, Array, Array]:
    """The gradients of x and of residual, of weight, and of bias, in f64."""
    c = total.shape[-1]
    rows, upstream = (array.astype(np.float64).reshape(-1, c) if c else np.zeros((0, 0)) for array in (total, grad_y))
    factor = np.ones(c) if weight is None else weight.astype(np.float64)
    grad_x, grad_weight, grad_bias = np.zeros_like(rows), np.zeros(c), np.zeros(c)
    with np.errstate(all="ignore"):
        for i, (row, gradient) in enumerate(zip(rows, upstream, strict=True)):
            standard, grad_x[i] = row_gradient(row, gradient * factor, epsilon, centred)
            grad_weight += gradient * standard
            grad_bias += gradient
    grad_x = grad_x.reshape(total.shape)
    return grad_x if grad_sum is None else grad_x + grad_sum.astype(np.float64), grad_weight, grad_bias


def reference(
    grad_y: Array, sum: Array, weight: Array | None, grad_sum: Array | None, *, epsilon: float
) -> tuple[Array, ...]:
    """The gradients of x and of residual, of weight, and of bias, in the dtype of `sum`, computed in f64."""
    return tuple(g.astype(sum.dtype) for g in gradients(grad_y, sum, weight, grad_sum, epsilon, True))
