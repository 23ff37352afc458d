"""GroupNormBackward in NumPy: the chain rule for one group after the other, with the group's Jacobian as a matrix."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.ops.layer_norm_backward.reference import row_gradient


def reference(
    grad_y: Array, sum: Array, weight: Array | None, grad_sum: Array | None, *, groups: int, epsilon: float
) -> tuple[Array, ...]:
    """The gradients of x and of residual, of weight, and of bias, in the dtype of `sum`, computed in f64."""
    n, c = sum.shape[:2]
    total, upstream = (array.astype(np.float64).reshape(n, c, -1 if array.size else 0) for array in (sum, grad_y))
    factor = np.ones(c) if weight is None else weight.astype(np.float64)
    grad_x, grad_weight, grad_bias = np.zeros_like(total), np.zeros(c), np.zeros(c)
    channels = c // groups
    with np.errstate(all="ignore"):
        for sample in range(n):
            for first in range(0, c if total.size else 0, channels or 1):
                group = slice(first, first + channels)
                row, gradient = total[sample, group], upstream[sample, group]
                standard, found = row_gradient(row.ravel(), (gradient * factor[group, None]).ravel(), epsilon, True)
                grad_x[sample, group] = found.reshape(row.shape)
                grad_weight[group] += np.sum(gradient * standard.reshape(row.shape), axis=1)
                grad_bias[group] += np.sum(gradient, axis=1)
    grad_x = grad_x.reshape(sum.shape)
    grad_x = grad_x if grad_sum is None else grad_x + grad_sum.astype(np.float64)
    return tuple(array.astype(sum.dtype) for array in (grad_x, grad_weight, grad_bias))
