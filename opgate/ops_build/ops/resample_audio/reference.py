"""ResampleAudio in NumPy.

The window: J. Kaiser, "Nonrecursive digital filter design using the I0-sinh window function", 1974."""

from __future__ import annotations

import math

import numpy as np

from opgate.ops_build.case import Array


def reference(x: Array, *, from_rate: int, to_rate: int, zeros: int, beta: float) -> Array:
    """f32 [n, ceil(t to_rate / from_rate)] from x f32 [n, t], computed in f64: zeros are put between the samples, a
    low-pass filter is applied, and every so-many-th sample is kept."""
    common = math.gcd(from_rate, to_rate)
    up, down = to_rate // common, from_rate // common
    half = zeros * max(up, down)
    m = np.arange(-half, half + 1)
    response = np.sinc(m / max(up, down)) * np.kaiser(2 * half + 1, beta)
    response *= up / response.sum()
    wanted = -(-x.shape[1] * to_rate // from_rate)
    y = np.zeros((len(x), wanted))
    for j in range(wanted):
        i = np.arange(max(0, -(-(j * down - half) // up)), min(x.shape[1], (j * down + half) // up + 1))
        with np.errstate(invalid="ignore"):
            y[:, j] = x[:, i].astype(np.float64) @ response[j * down - i * up + half]
    return y.astype(np.float32)
