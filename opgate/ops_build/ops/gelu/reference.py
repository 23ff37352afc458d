"""Gelu in NumPy: D. Hendrycks, K. Gimpel, "Gaussian Error Linear Units (GELUs)", 2016."""

from __future__ import annotations

import math

import numpy as np

from opgate.ops_build.case import Array

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def share(wide: Array, approximate: str) -> Array:
    """The factor of x: (1 + erf(x / sqrt(2))) / 2, or (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2. Both are written
    so that nothing cancels for x < 0."""
    if approximate == "none":
        return np.asarray(0.5 * _erfc(-wide / math.sqrt(2)))
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))))


def reference(x: Array, *, approximate: str) -> Array:
    """x share(x) of the same shape and dtype, computed in f64. -inf 0 is NaN, as in ONNX."""
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(wide * share(wide, approximate)).astype(x.dtype)
