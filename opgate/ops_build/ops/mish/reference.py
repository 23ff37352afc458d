"""Mish in NumPy: D. Misra, "Mish: A Self Regularized Non-Monotonic Activation Function", 2019."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(x: Array) -> Array:
    """x tanh(ln(1 + exp(x))) of the same shape and dtype, computed in f64; its limit 0 at -inf."""
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(wide), 0.0, wide * np.tanh(np.logaddexp(0.0, wide))).astype(x.dtype)
