"""GridCluster in NumPy, and where a number is beyond i64, in Python's integers."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def truncated(quotient: float) -> int:
    """The quotient rounded toward zero; -2^63 if i64 doesn't hold it."""
    return int(quotient) if -(2.0**63) <= quotient < 2.0**63 else -(2**63)


def reference(pos: Array, size: Array, start: Array | None, end: Array | None) -> Array:
    """cluster i64 [n]: sum over the axes of trunc((pos - start) / size) times the number of cells on all axes before,
    modulo 2^64. `start` and `end` are those of `pos` where they are absent. Differences and quotients are rounded to
    the dtype of `pos`."""
    if len(pos) == 0:
        return np.zeros(0, np.int64)
    with np.errstate(all="ignore"):
        start = np.fmin.reduce(pos, axis=0) if start is None else start
        end = np.fmax.reduce(pos, axis=0) if end is None else end
        quotients = (pos - start) / size
        sides = (end - start) / size
    strides = [1]
    for side in sides.tolist():
        strides.append(strides[-1] * (truncated(side) + 1))
    numbers = [
        sum(truncated(quotient) * stride for quotient, stride in zip(row, strides, strict=False))
        for row in quotients.tolist()
    ]
    return np.array([(number + 2**63) % 2**64 - 2**63 for number in numbers], np.int64)
