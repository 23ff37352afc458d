"""CornerPool in NumPy."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(x: Array, *, mode: str) -> Array:
    """y of x's shape [n, c, h, w] and dtype: the maximum of an element and all before it, on its way from the side
    opposite to `mode`. A NaN makes all later ones NaN."""
    axis = 2 if mode in ("top", "bottom") else 3
    way = x if mode in ("bottom", "right") else np.flip(x, axis)
    y = np.maximum.accumulate(way.astype(np.float64), axis=axis).astype(x.dtype)
    return y if mode in ("bottom", "right") else np.flip(y, axis).copy()
