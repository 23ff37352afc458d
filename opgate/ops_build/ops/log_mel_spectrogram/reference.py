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


def window_of(name: str, length: int, periodic: bool) -> Array:
    """The window `name` of this length: a periodic one lacks the last number of a symmetric one that is longer by 1."""
    period = length if periodic else length - 1
    if name == "rectangular" or period == 0:
        return np.ones(length)
    phase = 2 * np.pi * np.arange(length) / period
    hann = 0.5 - 0.5 * np.cos(phase)
    return {
        "hann": hann,
        "hamming": 0.54 - 0.46 * np.cos(phase),
        "blackman": 0.42 - 0.5 * np.cos(phase) + 0.08 * np.cos(2 * phase),
        "povey": hann**0.85,
    }[name]


def reference(
    pcm: Array,
    length: Array | None,
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
    guard: str,
    power: int,
    preemphasis: float,
    window: str,
    periodic: int,
) -> tuple[Array, Array]:
    """f32 [n, n_mels, frames] from samples f32 [n, t], computed in f64, and the frames i32 [n] of each row."""
    padding = center * (n_fft // 2)
    weights = bands(sample_rate, n_fft, n_mels, f_min, f_max, mel_scale, norm)
    size = win_length or n_fft
    windowed = np.zeros(n_fft)
    first = (n_fft - size) // 2
    windowed[first : first + size] = window_of(window, size, periodic == 1).astype(np.float32)
    all_frames = max(0, 1 + (pcm.shape[1] + 2 * padding - n_fft) // hop_length)
    energy = np.zeros((len(pcm), all_frames, n_mels))
    counts = np.zeros(len(pcm), np.int32)
    with np.errstate(invalid="ignore", over="ignore"):
        for row, samples in enumerate(pcm.astype(np.float64)):
            alone = samples if length is None else samples[: length[row]]
            alone = np.concatenate([alone[:1], alone[1:] - np.float32(preemphasis) * alone[:-1]])
            if pad == "reflect" and len(alone) <= padding:
                continue
            padded = np.pad(alone, padding, "reflect" if pad == "reflect" else "constant")
            counts[row] = max(0, 1 + (len(padded) - n_fft) // hop_length)
            starts = hop_length * np.arange(counts[row])
            spectrum = np.fft.rfft(padded[starts[:, None] + np.arange(n_fft)] * windowed, axis=-1)
            energy[row, : counts[row]] = np.abs(spectrum) ** power @ weights.T
        least = np.float32(floor)
        held = energy + least if guard == "add" else np.maximum(energy, least)
        factor = {"ln": 1.0, "log10": np.log10(np.e), "db": 10 * np.log10(np.e)}[log]
        mel: Array = (factor * np.log(held)).transpose(0, 2, 1).astype(np.float32)
        return mel, counts
