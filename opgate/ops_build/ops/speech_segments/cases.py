from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.ops.speech_segments.reference import reference


def speech(rows: int, windows: int, seed: int = 0) -> Array:
    """Probabilities that rise and fall slowly, with noise."""
    rng = np.random.default_rng([rows, windows, seed])
    slow = np.cumsum(rng.standard_normal((rows, windows)), 1) * 0.6
    return (1 / (1 + np.exp(-slow - rng.standard_normal((rows, windows))))).astype(np.float32)


def case(name: str, probabilities: Array, length: list[int] | None = None, **attributes: Any) -> Case:
    whole = [probabilities.shape[1] * 512] * len(probabilities) if length is None else length
    inputs = {"probabilities": probabilities, "length": np.array(whole, np.int32)}
    stated = {"step": 512, "rate": 16000, "max_segments": 20, **attributes}
    return Case(name, inputs, stated, (1e-6, 1e-6))


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    for seed in range(6):
        yield case(f"speech {seed}", speech(2, 300, seed))
        yield case(f"short silences {seed}", speech(1, 300, seed), min_silence_ms=30, min_speech_ms=50)
        yield case(f"a wide pad {seed}", speech(1, 300, seed), min_silence_ms=30, pad_ms=300)
    yield case("lengths", speech(4, 50), [0, 1, 20000, 60 * 512])
    yield case("no windows", np.zeros((2, 0), np.float32))
    yield case("no rows", np.zeros((0, 9), np.float32))
    yield case("silence", np.zeros((1, 40), np.float32))
    yield case("speech throughout", np.ones((1, 40), np.float32))
    yield case("a threshold of 1", np.ones((1, 40), np.float32), threshold=1.0)
    yield case("a threshold of 0", speech(1, 40), threshold=0.0, hysteresis=0.0)
    yield case("no hysteresis", speech(1, 300), hysteresis=0.0)
    yield case("more than there is room for", speech(1, 3000, 3), max_segments=2, min_silence_ms=0, min_speech_ms=0)
    yield case("NaN", np.where(speech(1, 90) > 0.9, np.nan, speech(1, 90)).astype(np.float32))
    yield case("another rate and step", speech(1, 200), rate=8000, step=256)
    rows = case("a threshold for each row", np.repeat(speech(1, 200), 3, 0))
    levels = {**rows.inputs, "thresholds": np.array([0.2, 0.5, 0.9], np.float32)}
    yield Case(rows.name, levels, rows.attributes, (1e-6, 1e-6))
    yield from pieces()
    negative = case("a negative length", speech(1, 20), [-1])
    yield Case(negative.name, negative.inputs, negative.attributes, error="input 'length': expected 0 or more samples")
    for name, value in (("step", 0), ("rate", 0), ("max_segments", 0), ("threshold", 1.5), ("hysteresis", -0.5),
                        ("min_speech_ms", -1), ("min_silence_ms", 10**9), ("pad_ms", -1)):  # fmt: skip
        changed: dict[str, Any] = {name: value}
        wrong = case(f"{name} {value}", speech(1, 20), **changed)
        yield Case(wrong.name, wrong.inputs, wrong.attributes, error=f"attribute '{name}'")


def pieces() -> Iterator[Case]:
    """Windows that go on with what the ones before them left, in the middle of speech, of silence, and of a pad."""
    heard = speech(1, 300, 2)
    for pad in (30, 300):
        attributes: dict[str, Any] = {
            "step": 512, "rate": 16000, "max_segments": 20, "threshold": 0.5, "hysteresis": 0.15, "min_speech_ms": 50,
            "min_silence_ms": 60, "pad_ms": pad,
        }  # fmt: skip
        for cut in range(40, 60):
            length = np.array([cut * 512], np.int32)
            goes_on = np.array([0], np.int32)
            state = reference(heard[:, :cut], length, None, np.zeros((1, 10)), goes_on, **attributes)[3]
            for last, end in ((0, cut + 1), (1, cut + 1), (1, 100)):
                part = case(f"pad {pad}, {cut} to {end}, last {last}", heard[:, cut:end], **attributes)
                more = {**part.inputs, "state": state, "last": np.array([last], np.int32)}
                yield Case(part.name, more, part.attributes, (1e-6, 1e-6))
    rows = case("rows of which one goes on", speech(2, 60))
    more = {**rows.inputs, "state": np.zeros((2, 10)), "last": np.array([0, 1], np.int32)}
    yield Case(rows.name, more, rows.attributes, (1e-6, 1e-6))


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """8 rows of an hour."""
    return case("8 x 1 h", speech(8, 112_500))
