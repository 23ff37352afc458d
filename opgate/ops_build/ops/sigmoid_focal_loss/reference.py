"""SigmoidFocalLoss in NumPy: T.-Y. Lin et al., "Focal Loss for Dense Object Detection", 2017."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def terms(x: Array, target: Array, alpha: float) -> tuple[Array, ...]:
    """The probability p, 1 - p, the probability of what the target is not, the entropy, and the weight, all in f64."""
    p, complement = 1 / (1 + np.exp(-x)), 1 / (1 + np.exp(x))
    entropy = np.where(x < 0, -x * target, x * (1 - target)) + np.log1p(np.exp(-np.abs(x)))
    alpha = float(np.float32(alpha))
    weight = alpha * target + (1 - alpha) * (1 - target) if alpha >= 0 else np.ones_like(x)
    return p, complement, p * (1 - target) + complement * target, entropy, weight


def reference(x: Array, target: Array, *, alpha: float, gamma: float) -> Array:
    """weight entropy q^gamma of x's shape and dtype, computed in f64."""
    with np.errstate(all="ignore"):
        _, _, q, entropy, weight = terms(x.astype(np.float64), target.astype(np.float64), alpha)
        return np.asarray(weight * entropy * q ** np.float64(np.float32(gamma))).astype(x.dtype)
