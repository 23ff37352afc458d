"""SpeechSegments in NumPy."""

from __future__ import annotations

import itertools

import numpy as np

from opgate.ops_build.case import Array


def reference(
    probabilities: Array, length: Array, thresholds: Array | None = None, *, step: int, rate: int, max_segments: int,
    threshold: float, hysteresis: float, min_speech_ms: int, min_silence_ms: int, pad_ms: int,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """segments f32 [n, max_segments, 2] in seconds, scores f32 [n, max_segments] and count i32 [n]."""
    n = len(length)
    segments, scores = np.zeros((n, max_segments, 2), np.float32), np.zeros((n, max_segments), np.float32)
    count = np.zeros(n, np.int32)
    for row, samples in enumerate(length.tolist()):
        level = np.float32(threshold if thresholds is None else thresholds[row])
        heard = probabilities[row, : -(-samples // step)]
        found = _found(heard, samples, level, max(float(level) - hysteresis, 0.01), step, rate * min_speech_ms / 1000,
                       rate * min_silence_ms / 1000)  # fmt: skip
        count[row] = min(len(found), max_segments)
        times = _widened([each[:2] for each in found], samples, rate * pad_ms / 1000)
        for i in range(count[row]):
            first, last = found[i][2:]
            segments[row, i] = np.array(times[i]) / rate
            scores[row, i] = heard[first:last].mean(dtype=np.float64)
    return segments, scores, count


def _found(
    heard: Array, samples: int, high: np.float32, low: float, step: int, min_speech: float, min_silence: float
) -> list[tuple[int, int, int, int]]:
    """The stretches of speech: begin and end in samples, first window and the one behind the last."""
    found: list[tuple[int, int, int, int]] = []
    first: int | None = None
    quiet: int | None = None
    for i, probability in enumerate(heard):
        if probability >= high:
            first, quiet = (i if first is None else first), None
        elif first is not None and probability < low:
            quiet = i if quiet is None else quiet
            if (i - quiet) * step >= min_silence:
                found.append((first * step, quiet * step, first, quiet))
                first = quiet = None
    if first is not None:
        found.append((first * step, samples, first, len(heard)))
    return [each for each in found if each[1] - each[0] > min_speech]


def _widened(times: list[tuple[int, int]], samples: int, pad: float) -> list[list[int]]:
    wide = [list(each) for each in times]
    if not wide:
        return []
    wide[0][0] = int(max(0, wide[0][0] - pad))
    for one, other in itertools.pairwise(wide):
        silence = other[0] - one[1]
        if silence < 2 * pad:
            one[1], other[0] = one[1] + silence // 2, other[0] - silence // 2
        else:
            one[1], other[0] = int(one[1] + pad), int(other[0] - pad)
    wide[-1][1] = int(min(samples, wide[-1][1] + pad))
    return wide
