from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Case


def music(rows: int, frames: int, pitches: int, notes: int, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Notes that begin with an onset and fade, with noise."""
    rng = np.random.default_rng([rows, frames, pitches, notes, seed])
    onsets = rng.random((rows, frames, pitches)) * 0.2
    sounding = rng.random((rows, frames, pitches)) * 0.25
    for row in range(rows):
        for _ in range(notes):
            pitch, held = int(rng.integers(pitches)), int(rng.integers(4, 60))
            begin = int(rng.integers(0, max(1, frames - held)))
            onsets[row, begin, pitch] = rng.uniform(0.3, 1)
            end = min(frames, begin + held)
            sounding[row, begin:end, pitch] = np.linspace(rng.uniform(0.5, 1), 0.3, end - begin)
    length = np.full(rows, frames, np.int32)
    return {"onsets": onsets.astype(np.float32), "frames": sounding.astype(np.float32), "length": length}


def case(name: str, inputs: dict[str, np.ndarray[Any, Any]], error: str | None = None, **attributes: Any) -> Case:
    return Case(name, inputs, {"max_notes": 60, **attributes}, (1e-6, 1e-6), error)


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    for seed in range(4):
        yield case(f"music {seed}", music(2, 200, 20, 15, seed))
        yield case(f"no onsets inferred {seed}", music(1, 200, 20, 15, seed), infer_onsets=False)
        yield case(f"only onsets {seed}", music(1, 200, 20, 15, seed), without_onsets=False)
        yield case(f"short notes {seed}", music(1, 200, 20, 15, seed), min_frames=2, tolerance=3)
    several = music(4, 80, 9, 6)
    several["length"] = np.array([80, 40, 3, 0], np.int32)
    yield case("lengths", several)
    for frames in (1, 2, 3):
        yield case(f"{frames} frames", music(1, frames, 5, 1))
    yield case("no frames", music(1, 0, 5, 0))
    yield case("one pitch", music(1, 100, 1, 3))
    yield case("no rows", music(0, 100, 4, 3))
    yield case("silence", {**music(1, 90, 4, 0), "frames": np.zeros((1, 90, 4), np.float32)})
    yield case("all sound", {**music(1, 90, 4, 0), "frames": np.ones((1, 90, 4), np.float32)})
    yield case("thresholds of 0", music(1, 60, 5, 4), onset_threshold=0.0, frame_threshold=0.0)
    yield case("thresholds of 1", music(1, 60, 5, 4), onset_threshold=1.0, frame_threshold=1.0)
    yield case("more notes than there is room for", music(1, 300, 30, 60), max_notes=5)
    level = music(3, 120, 9, 9)
    yield case("a threshold for each row", {**level, "thresholds": np.array([0.2, 0.5, 0.9], np.float32)})
    wrong = music(1, 20, 4, 1)
    for length in (-1, 21):
        inputs = {**wrong, "length": np.array([length], np.int32)}
        yield case(f"a length of {length}", inputs, "input 'length': expected 0..20 frames")
    for name, value in (("max_notes", 0), ("onset_threshold", 2.0), ("frame_threshold", -0.1), ("min_frames", -1)):
        error = f"'{name}'"
        yield case(f"{name} {value}", wrong, error, **{name: value})


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """4 rows of 3 minutes with 88 pitches."""
    return Case("4 x 3 min", music(4, 15_480, 88, 1500))
