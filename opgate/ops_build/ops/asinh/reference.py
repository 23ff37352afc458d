"""Asinh in NumPy."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(x: Array) -> Array:
    """The inverse of sinh, of the same shape and dtype, computed in f64."""
    return np.asarray(np.arcsinh(x.astype(np.float64))).astype(x.dtype)
