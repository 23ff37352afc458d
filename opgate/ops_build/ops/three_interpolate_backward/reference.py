"""ThreeInterpolateBackward in NumPy."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(grad_y: Array, features: Array, idx: Array, weight: Array) -> tuple[Array, Array]:
    """grad_features T [n, c] and grad_weight T [m, k] from grad_y T [m, c], computed in f64. A negative idx has no
    gradient."""
    grad_features, grad_weight = np.zeros(features.shape), np.zeros(weight.shape)
    grads = grad_y.astype(np.float64)
    for i, j in np.argwhere(idx >= 0):
        with np.errstate(invalid="ignore"):
            grad_features[idx[i, j]] += np.float64(weight[i, j]) * grads[i]
            grad_weight[i, j] = np.dot(grads[i], features[idx[i, j]].astype(np.float64))
    return grad_features.astype(features.dtype), grad_weight.astype(features.dtype)
