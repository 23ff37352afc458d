"""Sound and time series."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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


def bottleneck(window: int) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        import bottleneck as bn

        x = inputs["x"]
        return lambda: [move(x, window) for move in (bn.move_mean, bn.move_std, bn.move_min, bn.move_max)]

    return make


def resample_poly(inputs: Inputs) -> Call:
    from scipy import signal

    x = inputs["x"][0]
    return lambda: signal.resample_poly(x, 160, 441)


def soxr_resample(inputs: Inputs) -> Call:
    import soxr

    x = inputs["x"][0]
    return lambda: soxr.resample(x, 44100, 16000)


def torch_mel() -> Tensor:
    """The bands' weights."""
    import librosa

    return torch.from_numpy(librosa.filters.mel(sr=16000, n_fft=400, n_mels=80))


def describe(x: Tensor, size: int) -> object:
    windows = x.unfold(1, size, 1)
    return windows.mean(-1), windows.std(-1, correction=0), windows.amin(-1), windows.amax(-1)


def works() -> Iterator[Work]:
    rng = np.random.default_rng(0)
    for seconds in (1, 10, 120):
        x = rng.standard_normal((1, 44100 * seconds), np.float32)
        yield Work(
            "ResampleAudio", f"{seconds} s, 44100 to 16000", {"x": x},
            attributes={"from_rate": 44100, "to_rate": 16000}, flops=2 * 56 * 16000 * seconds,
            peers=(
                library_peer("scipy.signal.resample_poly", "scipy", resample_poly),
                library_peer("soxr.resample", "soxr", soxr_resample),
            ),
        )  # fmt: skip
    for size, (rows, count, window) in {
        "1 x 1 K, windows of 10": (1, 1000, 10),
        "16 x 10 K, windows of 50": (16, 10_000, 50),
        "64 x 100 K, windows of 500": (64, 100_000, 500),
    }.items():
        yield Work(
            "SlidingWindow", size, {"x": rng.standard_normal((rows, count), np.float32)}, types={"T": "f32"},
            attributes={"size": window}, decomposed=window < 100,
            peers=(
                torch_peer("unfold, mean, std, amin and amax", lambda x, window=window: describe(x, window), "x"),
                library_peer("bottleneck.move_mean, move_std, move_min and move_max", "bottleneck", bottleneck(window)),
            ),
        )  # fmt: skip
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
