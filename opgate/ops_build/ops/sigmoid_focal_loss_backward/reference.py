"""SigmoidFocalLossBackward in NumPy: the derivative by the product rule."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.ops.sigmoid_focal_loss.reference import terms


def reference(grad_loss: Array, x: Array, target: Array, *, alpha: float, gamma: float) -> Array:
    """grad_loss weight (entropy' q^gamma + gamma entropy q^gamma q' / q) of x's shape and dtype, computed in f64."""
    with np.errstate(all="ignore"):
        wide, t, power = x.astype(np.float64), target.astype(np.float64), np.float64(np.float32(gamma))
        p, complement, q, entropy, weight = terms(wide, t, alpha)
        # Where q underflows to 0, so does the product.
        relative = np.where(q > 0, p * complement * (1 - 2 * t) / q, np.where(np.isnan(q), q, 0.0))
        slope = p * (1 - t) - complement * t + power * (entropy * relative)
        return np.asarray(grad_loss.astype(np.float64) * weight * q**power * slope).astype(x.dtype)
