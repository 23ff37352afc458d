"""FileEnds in NumPy."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(
    data: Array, ends: Array, *, head: int, tail: int, block: int, strip: bool, pad: int, least: int
) -> tuple[Array, Array]:
    """values i32 [n, head + tail] and status i32 [n] of the n files in `data`."""
    values, status = np.full((len(ends), head + tail), pad, np.int32), np.zeros(len(ends), np.int32)
    begin = 0
    for i, end in enumerate(ends.tolist()):
        file = data[begin:end].tobytes()
        begin = end
        first, last = file[:block], file[max(0, len(file) - block) :]
        if strip:
            first, last = first.lstrip(), last.rstrip()
        first, last = first[:head], last[max(0, len(last) - tail) :]
        values[i, : len(first)] = np.frombuffer(first, np.uint8)
        values[i, head + tail - len(last) :] = np.frombuffer(last, np.uint8)
        status[i] = len(first) < least
    return values, status
