"""NoteEvents in NumPy."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array

Note = tuple[int, int, int, float]


def reference(
    onsets: Array, frames: Array, length: Array, thresholds: Array | None = None, *, max_notes: int,
    onset_threshold: float, frame_threshold: float, min_frames: int, tolerance: int, infer_onsets: bool,
    without_onsets: bool,
) -> tuple[Array, Array, Array, Array, Array]:  # fmt: skip
    """begin, end and pitch i32 [n, max_notes], amplitude f32 [n, max_notes] and count i32 [n]."""
    n = len(length)
    begin, end, pitch = (np.zeros((n, max_notes), np.int32) for _ in range(3))
    amplitude, count = np.zeros((n, max_notes), np.float32), np.zeros(n, np.int32)
    for row, t in enumerate(length.tolist()):
        level = onset_threshold if thresholds is None else float(thresholds[row])
        notes = _notes(
            onsets[row, :t].astype(np.float64), frames[row, :t], level, frame_threshold, min_frames, tolerance,
            infer_onsets, without_onsets,
        )[:max_notes]  # fmt: skip
        count[row] = len(notes)
        for i, note in enumerate(notes):
            begin[row, i], end[row, i], pitch[row, i], amplitude[row, i] = note
    return begin, end, pitch, amplitude, count


def _inferred(onsets: Array, frames: Array) -> Array:
    """Onsets that also rise where the frames grow."""
    grown = np.zeros_like(onsets)
    wide = frames.astype(np.float64)
    if len(wide) > 2:
        grown[2:] = np.maximum(np.minimum(wide[2:] - wide[1:-1], wide[2:] - wide[:-2]), 0)
    return np.maximum(onsets, onsets.max() * grown / grown.max()) if grown.size and grown.max() > 0 else onsets


def _notes(
    onsets: Array, frames: Array, high: float, low: float, shortest: int, tolerance: int, infer: bool, rest: bool
) -> list[Note]:
    if infer:
        onsets = _inferred(onsets, frames)
    t, _ = frames.shape
    left, found = frames.copy(), list[Note]()

    def add(begin: int, end: int, pitch: int) -> None:
        if end - begin > shortest:
            found.append((begin, end, pitch, float(frames[begin:end, pitch].mean(dtype=np.float64))))

    inner = onsets[1:-1]
    peaks = np.argwhere((inner >= high) & (inner > onsets[:-2]) & (inner > onsets[2:])) + np.array([1, 0])
    for begin, pitch in peaks[::-1].tolist():
        i, quiet = begin + 1, 0
        while i < t - 1 and quiet < tolerance:
            quiet = quiet + 1 if left[i, pitch] < low else 0
            i += 1
        i -= quiet
        if i - begin > shortest:
            left[begin:i, max(pitch - 1, 0) : pitch + 2] = 0
        add(begin, i, pitch)
    while rest and left.size and left.max() > low:
        middle, pitch = (int(place) for place in np.unravel_index(left.argmax(), left.shape))
        beside = slice(max(pitch - 1, 0), pitch + 2)
        left[middle, pitch] = 0
        ends = []
        for step, last in ((1, t - 1), (-1, 0)):
            i, quiet = middle + step, 0
            while step * i < step * last and quiet < tolerance:
                quiet = quiet + 1 if left[i, pitch] < low else 0
                left[i, beside] = 0
                i += step
            ends.append(i - step * (1 + quiet))
        add(ends[1], ends[0], pitch)
    return sorted(found, key=lambda note: (note[0], note[2], note[1]))
