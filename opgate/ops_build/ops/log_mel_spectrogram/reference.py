"""LogMelSpectrogram in NumPy. The scales of the bands: M. Slaney, "Auditory Toolbox", 1998; S. Davis, P. Mermelstein,
"Comparison of Parametric Representations for Monosyllabic Word Recognition", 1980."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def hertz_of_mel(mel: Array, scale: str) -> Array:
    if scale == "htk":
        return 700 * (10 ** (mel / 2595) - 1)
    return np.where(mel < 15, mel * 200 / 3, 1000 * 6.4 ** ((mel - 15) / 27))


def mel_of_hertz(hertz: float, scale: str) -> float:
    if scale == "htk":
        return float(2595 * np.log10(1 + hertz / 700))
    return hertz * 3 / 200 if hertz < 1000 else float(15 + 27 * np.log(hertz / 1000) / np.log(6.4))


def bands(sample_rate: int, n_fft: int, n_mels: int, f_min: float, f_max: float, scale: str, norm: str) -> Array:
    """The weights [n_mels, n_fft // 2 + 1]: triangles between points at equal distances on the mel scale.

    Their area is 1 with norm "slaney"."""
    mels = np.linspace(mel_of_hertz(f_min, scale), mel_of_hertz(f_max or sample_rate / 2, scale), n_mels + 2)
    edges = hertz_of_mel(mels, scale)
    bins = np.arange(n_fft // 2 + 1) * (sample_rate / n_fft)
    left, middle, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    weights: Array = np.maximum(0, np.minimum((bins - left) / (middle - left), (right - bins) / (right - middle)))
    if norm == "slaney":
        weights *= 2 / (right - left)
    return weights


def reference(
    pcm: Array,
    *,
    sample_rate: int,
    n_fft: int,
    win_length: int,
    hop_length: int,
    n_mels: int,
    f_min: float,
    f_max: float,
    mel_scale: str,
    norm: str,
    center: int,
    pad: str,
    log: str,
    floor: float,
) -> Array:
    """f32 [n, n_mels, frames] from samples f32 [n, t], computed in f64."""
    padding = center * (n_fft // 2)
    padded = np.pad(pcm.astype(np.float64), [(0, 0), (padding, padding)], "reflect" if pad == "reflect" else "constant")
    frames = max(0, 1 + (padded.shape[1] - n_fft) // hop_length)
    length = win_length or n_fft
    window = np.zeros(n_fft)
    first = (n_fft - length) // 2
    window[first : first + length] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)
    starts = hop_length * np.arange(frames)
    with np.errstate(invalid="ignore", over="ignore"):
        spectrum = np.fft.rfft(padded[:, starts[:, None] + np.arange(n_fft)] * window.astype(np.float32), axis=-1)
        energy = np.abs(spectrum) ** 2 @ bands(sample_rate, n_fft, n_mels, f_min, f_max, mel_scale, norm).T
        held = np.maximum(energy, np.float32(floor))
        factor = {"ln": 1.0, "log10": np.log10(np.e), "db": 10 * np.log10(np.e)}[log]
        mel: Array = (factor * np.log(held)).transpose(0, 2, 1).astype(np.float32)
        return mel
