"""GroupNorm in NumPy: Y. Wu, K. He, "Group Normalization", 2018."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.ops.layer_norm.reference import standard, sum_of


def reference(
    x: Array, weight: Array | None, bias: Array | None, residual: Array | None, *, groups: int, epsilon: float
) -> tuple[Array, Array]:
    """y and sum, both of x's shape [n, c, ...] and dtype: sum = x + residual rounded to that dtype, y is sum with
    mean 0 and variance 1 over the channels of each group and all dims after them, times weight, plus bias, computed in
    f64."""
    total = sum_of(x, residual)
    if x.size == 0:
        return total.copy(), total
    y = standard(total.astype(np.float64).reshape(x.shape[0], groups, -1), epsilon).reshape(x.shape)
    channels = (1, -1) + (1,) * (x.ndim - 2)
    with np.errstate(invalid="ignore"):
        y = y if weight is None else y * weight.astype(np.float64).reshape(channels)
        y = y if bias is None else y + bias.astype(np.float64).reshape(channels)
    return y.astype(x.dtype), total
