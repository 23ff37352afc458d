"""SegmentReduce in NumPy, one segment after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from opgate.ops_build.case import Array

REDUCTIONS: dict[str, Any] = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}


def reference(x: Array, ends: Array, *, reduce: str) -> Array:
    """y [s, ...] of the dtype of x [n, ...]: the rows ends[i - 1] <= row < ends[i] reduced in f64; 0 if there are none.
    A NaN is the greatest and the least."""
    y = np.zeros((len(ends), *x.shape[1:]))
    begin = 0
    with np.errstate(all="ignore"):
        for i, end in enumerate(ends.tolist()):
            if end > begin:
                y[i] = REDUCTIONS[reduce](x[begin:end].astype(np.float64), axis=0)
            begin = end
        return y.astype(x.dtype)
