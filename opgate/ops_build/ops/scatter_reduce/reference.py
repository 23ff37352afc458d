"""ScatterReduce in NumPy, one index after the other."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.ops.segment_reduce.reference import REDUCTIONS


def reference(x: Array, index: Array, dim_size: Array, *, reduce: str) -> Array:
    """y [dim_size, ...] of the dtype of x [n, ...]: the rows whose index is i, reduced in f64; 0 if there are none. A
    NaN is the greatest and the least."""
    y = np.zeros((int(dim_size), *x.shape[1:]))
    with np.errstate(all="ignore"):
        for i in np.unique(index):
            y[i] = REDUCTIONS[reduce](x[index == i].astype(np.float64), axis=0)
        return y.astype(x.dtype)
