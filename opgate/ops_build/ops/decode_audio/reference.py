"""DecodeAudio in NumPy and soundfile."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.audio.reference import ANOTHER_RATE, CORRUPT, DecodeError, decoded
from opgate.ops_build.case import Array


def reference(data: Array, ends: Array, *, samples: int, sample_rate: int) -> tuple[Array, Array, Array, Array]:
    """pcm f32 [n, samples], and the length, the rate and the status i32 [n] of the n files in `data`."""
    pcm = np.zeros((len(ends), samples), np.float32)
    length, rate, status = (np.zeros(len(ends), np.int32) for _ in range(3))
    begin = 0
    for i, end in enumerate(ends.tolist()):
        try:
            sound, of_file = decoded(data[begin:end].tobytes())
            if sample_rate and of_file != sample_rate:
                raise DecodeError(ANOTHER_RATE)
            first = sound[:samples].mean(1)
            if not (np.abs(first) <= np.finfo(np.float32).max).all():
                raise DecodeError(CORRUPT)
        except DecodeError as bad:
            status[i] = bad.status
        else:
            pcm[i, : len(first)] = first
            length[i], rate[i] = len(sound), min(of_file, 2**31 - 1)
        begin = end
    return pcm, length, rate, status
