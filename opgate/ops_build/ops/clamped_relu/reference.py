"""ClampedRelu in NumPy."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(x: Array, *, ceiling: float) -> Array:
    """min(max(x, 0), ceiling) of the same shape and dtype. NaN stays NaN."""
    wide = x.astype(np.float64)
    return np.asarray(np.minimum(np.maximum(wide, 0), np.float32(ceiling))).astype(x.dtype)
