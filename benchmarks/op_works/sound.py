"""Sound and time series."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from benchmarks.op_works import Array, Call, Inputs, Work, library_peer, torch_peer


def librosa_mel(inputs: Inputs) -> Call:
    import librosa

    pcm = inputs["pcm"][0]

    def call() -> Array:
        energy = librosa.feature.melspectrogram(
            y=pcm, sr=16000, n_fft=400, hop_length=160, n_mels=80, pad_mode="reflect"
        )
        logarithm: Array = np.log(np.maximum(energy, 1e-10))
        return logarithm

    return call


def torch_mel() -> Tensor:
    """The bands' weights."""
    import librosa

    return torch.from_numpy(librosa.filters.mel(sr=16000, n_fft=400, n_mels=80))


def works() -> Iterator[Work]:
    rng = np.random.default_rng(0)
    bands, window = torch_mel(), torch.hann_window(400)

    def log_mel(pcm: Tensor) -> Tensor:
        spectrum = torch.stft(pcm, 400, 160, window=window, return_complex=True)
        return torch.log(torch.clamp(bands @ spectrum.abs().square(), min=1e-10))

    for seconds in (1, 10, 120):
        pcm = rng.standard_normal((1, 16000 * seconds), np.float32)
        yield Work(
            "LogMelSpectrogram", f"{seconds} s", {"pcm": pcm}, moved=0,
            peers=(
                torch_peer("torch.stft, matmul and log", log_mel, "pcm"),
                library_peer("librosa.feature.melspectrogram and log", "librosa", librosa_mel),
            ),
        )  # fmt: skip
