"""Mixes recordings with noise: seconds of sound as the network hears them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.keyword_spotter.words import KEYWORDS, LABELS, SAMPLE_RATE, SAMPLES, Recordings

Floats = npt.NDArray[np.float32]
KINDS = ("white", "pink", "brown", "hum", "babble")


@dataclass(frozen=True, slots=True)
class Clips:
    """Seconds of sound, pcm f32 (n, 16000) in [-1, 1], and their labels i64 (n,)."""

    pcm: Floats
    labels: npt.NDArray[np.int64]


def noise(rng: np.random.Generator, kind: str, recordings: Recordings) -> npt.NDArray[np.float64]:
    """Returns a second of noise with the mean square 1. Babble is 24 other recordings at once."""
    if kind == "babble":
        sound = np.zeros(SAMPLES)
        for index in rng.integers(len(recordings), size=24):
            _add(rng, sound, recordings[int(index)].astype(np.float64))
    elif kind == "hum":
        time, pitch = np.arange(SAMPLES) / SAMPLE_RATE, rng.uniform(48, 62)
        harmonics = np.arange(1, 12)[:, None]
        waves = np.sin(2 * np.pi * pitch * harmonics * time + rng.uniform(0, 2 * np.pi, (11, 1))) / harmonics
        sound = waves.sum(0) + 0.1 * rng.standard_normal(SAMPLES)
    else:
        slope = {"white": 0.0, "pink": 0.5, "brown": 1.0}[kind]
        spectrum = np.fft.rfft(rng.standard_normal(SAMPLES))
        sound = np.fft.irfft(spectrum / np.maximum(np.arange(len(spectrum)), 20) ** slope, SAMPLES)
    return sound / np.sqrt(np.mean(sound**2) + 1e-12)


def any_noise(rng: np.random.Generator, recordings: Recordings) -> npt.NDArray[np.float64]:
    return noise(rng, KINDS[rng.integers(len(KINDS))], recordings)


def draw(
    rng: np.random.Generator,
    recordings: Recordings,
    index: int,
    decibels: float,
    background: npt.NDArray[np.float64] | None = None,
    *,
    vary: bool = False,
) -> tuple[Floats, int]:
    """Returns a second with a recording at a random place in noise, and its label.

    `decibels` is the mean power of the recording over that of the noise. A negative index stands for noise alone.
    `vary` changes the voice.
    """
    background = any_noise(rng, recordings) if background is None else background
    if index < 0:
        sound, label = background, len(KEYWORDS)
    else:
        word, spoken = str(recordings.words[index]), recordings[index].astype(np.float64)
        spoken = varied(rng, spoken) if vary else spoken
        spoken /= np.sqrt(np.mean(spoken**2) + 1e-12)
        sound = background * 10 ** (-decibels / 20)
        _add(rng, sound, spoken)
        label = KEYWORDS.index(word) if word in KEYWORDS else len(KEYWORDS)
    level = rng.uniform(0.1, 0.95) / np.abs(sound).max()
    return (sound * level).astype(np.float32), label


def varied(rng: np.random.Generator, spoken: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns a recording played faster or slower, which moves pitch and formants, with other highs and lows."""
    count = min(SAMPLES, int(len(spoken) * rng.uniform(0.83, 1.2)))
    spectrum = np.fft.rfft(np.interp(np.linspace(0, len(spoken) - 1, count), np.arange(len(spoken)), spoken))
    octaves = np.log2(np.maximum(np.linspace(0, SAMPLE_RATE / 2, len(spectrum)), 100) / 1000)
    gain = rng.uniform(-4, 4) * octaves + rng.uniform(0, 6) * np.sin(octaves * rng.uniform(1, 4) + rng.uniform(0, 6))
    return np.fft.irfft(spectrum * 10 ** (gain / 20), count)


class Batches:
    """Makes clips for training, with 0 to 25 dB. One in 40 is noise alone. The noise is a part of 600 seconds."""

    def __init__(self, rng: np.random.Generator, recordings: Recordings) -> None:
        self.rng, self.recordings = rng, recordings
        self.noises = [any_noise(rng, recordings) for _ in range(600)]

    def draw(self, size: int) -> Clips:
        return _clips([self._one() for _ in range(size)])

    def _one(self) -> tuple[Floats, int]:
        rng = self.rng
        background = np.roll(self.noises[rng.integers(len(self.noises))], rng.integers(SAMPLES))
        index = -1 if rng.random() < 1 / 40 else int(rng.integers(len(self.recordings)))
        return draw(rng, self.recordings, index, rng.uniform(0, 25), background, vary=True)


def held_out_clips(recordings: Recordings, decibels: float, seed: int = 0, every: int = 1) -> Clips:
    """Returns every recording, or every so many-th, once, in noise, and one clip of noise alone for 20 recordings."""
    rng = np.random.default_rng([seed, 2])
    chosen = range(0, len(recordings), every)
    silent = [-1] * (len(chosen) // 20)
    return _clips([draw(rng, recordings, index, decibels) for index in (*chosen, *silent)])


def _clips(drawn: list[tuple[Floats, int]]) -> Clips:
    labels = np.array([label for _, label in drawn], np.int64)
    assert labels.max(initial=0) < len(LABELS)
    return Clips(np.stack([pcm for pcm, _ in drawn]), labels)


def _add(rng: np.random.Generator, sound: npt.NDArray[np.float64], spoken: npt.NDArray[np.float64]) -> None:
    """Adds a recording to a second of sound, at a random place where it fits."""
    first = int(rng.integers(SAMPLES - len(spoken) + 1))
    sound[first : first + len(spoken)] += spoken
