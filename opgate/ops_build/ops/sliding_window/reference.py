"""SlidingWindow in NumPy."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(x: Array, *, size: int, step: int, ddof: int) -> tuple[Array, Array, Array, Array]:
    """mean, std, min, max, each [n, windows] of x's dtype, from x [n, t], computed in f64."""
    if x.shape[1] < size:
        empty = np.empty((len(x), 0), x.dtype)
        return empty, empty, empty, empty
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), size, axis=1)[:, ::step]
    with np.errstate(all="ignore"):
        squares = np.square(windows - windows.mean(-1, keepdims=True)).sum(-1)
        outputs = windows.mean(-1), np.sqrt(squares / (size - ddof)), windows.min(-1), windows.max(-1)
    mean, std, least, greatest = (output.astype(x.dtype) for output in outputs)
    return mean, std, least, greatest
