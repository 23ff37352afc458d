"""SpeechSegments in NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opgate.ops_build.case import Array


def reference(
    probabilities: Array, length: Array, thresholds: Array | None = None, state: Array | None = None,
    last: Array | None = None, *, step: int, rate: int, max_segments: int, threshold: float, hysteresis: float,
    min_speech_ms: int, min_silence_ms: int, pad_ms: int,
) -> tuple[Array, Array, Array, Array, Array]:  # fmt: skip
    """segments f32 [n, max_segments, 2] in seconds, scores f32 [n, max_segments], count i32 [n], next_state f64 [n, 10]
    and since f32 [n]."""
    n = len(length)
    segments, scores = np.zeros((n, max_segments, 2), np.float32), np.zeros((n, max_segments), np.float32)
    count, next_state, since = np.zeros(n, np.int32), np.zeros((n, 10)), np.zeros(n, np.float32)
    pad = rate * pad_ms / 1000
    for row, samples in enumerate(length.tolist()):
        level = np.float32(threshold if thresholds is None else thresholds[row])
        heard = Heard(*([0.0] * 10 if state is None else state[row].tolist()))
        found = heard.windows(probabilities[row, : -(-samples // step)], samples, level,
                              max(float(level) - hysteresis, 0.01), step, rate * min_speech_ms / 1000,
                              rate * min_silence_ms / 1000, pad)  # fmt: skip
        if last is None or last[row]:
            found += heard.ended(rate * min_speech_ms / 1000, pad)
        count[row] = min(len(found), max_segments)
        for i, (begin, end, score) in enumerate(found[:max_segments]):
            segments[row, i] = begin / rate, end / rate
            scores[row, i] = score
        next_state[row] = heard.numbers
        since[row] = heard.widened(pad) / rate if heard.begun else -1
    return segments, scores, count, next_state, since


Segment = tuple[float, float, float]


@dataclass(slots=True)
class Heard:
    """What is kept of the windows so far, as in the README."""

    samples: float
    begun: float
    quiet: float
    total: float
    number: float
    total_before: float
    number_before: float
    first: float
    ended_at: float
    score: float

    @property
    def numbers(self) -> list[float]:
        return [getattr(self, name) for name in self.__slots__]

    def windows(
        self, heard: Array, samples: int, high: np.float32, low: float, step: int, min_speech: float,
        min_silence: float, pad: float,
    ) -> list[Segment]:  # fmt: skip
        """The segments that these windows end for good."""
        found: list[Segment] = []
        before = self.samples
        for i, probability in enumerate(heard):
            at = before + i * step
            self.samples = min(at + step, before + samples)
            if probability >= high:
                self.begun, self.quiet = self.begun or at + 1, 0
            elif self.begun and probability < low:
                if not self.quiet:
                    self.quiet, self.total_before, self.number_before = at + 1, self.total, self.number
                if at - (self.quiet - 1) >= min_silence:
                    found += self.closed(self.quiet - 1, self.total_before, self.number_before, min_speech, pad)
            if self.begun:
                self.total, self.number = self.total + float(probability), self.number + 1
            next_begin = self.begun - 1 if self.begun else self.samples
            if self.ended_at and next_begin - (self.ended_at - 1) >= 2 * pad:
                found.append((self.first, int(self.ended_at - 1 + pad), self.score))
                self.ended_at = 0
        self.samples = before + samples
        return found

    def widened(self, pad: float) -> float:
        """Where the speech that goes on begins once it is widened."""
        begin = self.begun - 1
        silence = begin - (self.ended_at - 1)
        if self.ended_at and silence < 2 * pad:
            return begin - silence // 2
        return int(max(0, begin - pad))

    def closed(self, end: float, total: float, number: float, min_speech: float, pad: float) -> list[Segment]:
        """Ends the speech that goes on. The segment before it may be one for good."""
        found: list[Segment] = []
        if end - (self.begun - 1) > min_speech:
            begin, silence = self.widened(pad), self.begun - 1 - (self.ended_at - 1)
            if self.ended_at:
                widened = self.ended_at - 1 + (silence // 2 if silence < 2 * pad else pad)
                found = [(self.first, int(widened), self.score)]
            self.first, self.ended_at, self.score = begin, end + 1, total / number
        self.begun = self.quiet = self.total = self.number = 0
        return found

    def ended(self, min_speech: float, pad: float) -> list[Segment]:
        """The segments that the end of the sound ends."""
        found = self.closed(self.samples, self.total, self.number, min_speech, pad) if self.begun else []
        if self.ended_at:
            found.append((self.first, int(min(self.samples, self.ended_at - 1 + pad)), self.score))
        self.samples = self.begun = self.quiet = self.total = self.number = 0
        self.total_before = self.number_before = self.first = self.ended_at = self.score = 0
        return found
