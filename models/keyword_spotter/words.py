"""The words, the voices that speak them, and their recordings, which espeak-ng makes from a seed."""

from __future__ import annotations

import io
import subprocess
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SAMPLE_RATE = 16_000
SAMPLES = 16_000
"""Samples of the second that the network hears."""

KEYWORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
OTHER_WORDS = (
    "bed", "bird", "cat", "dog", "happy", "house", "tree", "wow", "zero", "two",
    "three", "four", "five", "six", "seven", "eight", "nine", "green", "water", "music",
)  # fmt: skip
LABELS = (*KEYWORDS, "other")

TRAIN_VOICES = (
    "adam", "Alex", "Alicia", "Andrea", "Andy", "Annie", "antonio", "aunty", "belinda", "boris", "caleb", "david",
    "Denis", "Diogo", "ed", "edward", "f1", "f3", "f5", "Gene", "grandpa", "Gustave", "Henrique", "Hugo", "iven",
    "Jacky", "john", "klatt", "klatt3", "klatt5", "Lee", "linda", "m1", "m2", "m4", "m5", "m7", "marcelo", "Marco",
    "Mario", "Michael", "michel", "miguel", "Nguyen", "pablo", "pedro", "quincy", "rob", "robert", "sandro", "shelby",
    "steph", "travis", "victor", "zac",
)  # fmt: skip
TEST_VOICES = (
    "anika", "benjamin", "f2", "f4", "grandma", "kaukovalta", "m3", "m6", "m8", "max", "mike", "norbert", "paul",
)  # fmt: skip
ACCENTS = (
    "en-us", "en-gb", "en-gb-x-rp", "en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029", "en-us-nyc",
)  # fmt: skip

Samples = npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Recordings:
    """Words without noise. Recording i has the samples `pcm[begin[i]:begin[i + 1]]` and the word `words[i]`."""

    pcm: Samples
    begin: npt.NDArray[np.int64]
    words: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> Samples:
        return self.pcm[self.begin[index] : self.begin[index + 1]]


def recordings(folder: Path, *, test: bool, seed: int = 0) -> Recordings:
    """Returns the recordings of the voices for training or for the test, from the file in `folder` if it is there.

    Raises FileNotFoundError if they must be made and espeak-ng is not installed.
    """
    path = folder / f"{'test' if test else 'train'}-{seed}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = list(_speak_all(test=test, seed=seed))
        begin = np.cumsum([0, *(len(pcm) for pcm, _ in made)])
        np.savez(path, pcm=np.concatenate([pcm for pcm, _ in made]), begin=begin, words=[word for _, word in made])
    with np.load(path) as file:
        return Recordings(file["pcm"], file["begin"], file["words"])


def speak(word: str, voice: str, accent: str, speed: int, pitch: int) -> Samples:
    """Returns a word at 16 kHz without the silence around it, at most a second."""
    from scipy import signal  # it takes a second

    command = ["espeak-ng", "-v", f"{accent}+{voice}", "-s", str(speed), "-p", str(pitch), "--stdout", word]
    answer = subprocess.run(command, capture_output=True, check=True)
    with wave.open(io.BytesIO(answer.stdout)) as file:
        rate, spoken = file.getframerate(), np.frombuffer(file.readframes(-1), "<i2")
    sound = signal.resample_poly(spoken.astype(np.float64), SAMPLE_RATE // 50, rate // 50)
    loud = np.flatnonzero(np.abs(sound) > 0.02 * np.abs(sound).max(initial=0))
    if not len(loud):
        raise ValueError(f"espeak-ng says nothing for '{word}' with the voice {accent}+{voice}")
    sound = sound[loud[0] : loud[-1] + 1][:SAMPLES]
    return np.clip(np.round(sound), -32768, 32767).astype(np.int16)


def _speak_all(*, test: bool, seed: int) -> Iterator[tuple[Samples, str]]:
    rng = np.random.default_rng([seed, int(test)])
    voices, times = (TEST_VOICES, (80, 10)) if test else (TRAIN_VOICES, (400, 60))
    for words, repetitions in zip((KEYWORDS, OTHER_WORDS), times, strict=True):
        for word in words:
            for _ in range(repetitions):
                voice, accent = str(rng.choice(voices)), str(rng.choice(ACCENTS))
                yield speak(word, voice, accent, int(rng.integers(110, 231)), int(rng.integers(20, 81))), word
