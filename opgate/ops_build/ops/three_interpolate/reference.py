"""ThreeInterpolate in NumPy."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(features: Array, idx: Array, weight: Array) -> Array:
    """y T [m, c]: the sum over j of weight[i, j] T [m, k] times row idx[i, j] of `features` T [n, c], computed in f64.
    A negative idx adds nothing."""
    y = np.zeros((len(idx), features.shape[1]))
    for i, j in np.argwhere(idx >= 0):
        with np.errstate(invalid="ignore"):
            y[i] += np.float64(weight[i, j]) * features[idx[i, j]].astype(np.float64)
    return y.astype(features.dtype)
