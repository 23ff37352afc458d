"""LeakyRelu in NumPy, as ONNX's operator of the same name defines it."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(x: Array, *, alpha: float) -> Array:
    """x where x >= 0, alpha x elsewhere; same shape and dtype as x, computed in f64."""
    wide = x.astype(np.float64)
    return np.where(wide < 0, np.float32(alpha) * wide, wide).astype(x.dtype)
