"""KaldiFbank in NumPy, from the definition of Kaldi's compute-fbank-feats."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.ops.log_mel_spectrogram.reference import window_of


def bands(sample_rate: int, n_fft: int, n_mels: int, f_min: float, f_max: float) -> Array:
    """The weights [n_mels, n_fft // 2 + 1]: triangles on the mel scale."""
    high = f_max if f_max > 0 else sample_rate / 2 + f_max
    edges = np.linspace(1127 * np.log1p(f_min / 700), 1127 * np.log1p(high / 700), n_mels + 2)
    mels = 1127 * np.log1p(np.arange(n_fft // 2 + 1) * (sample_rate / n_fft) / 700)
    left, middle, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    weights: Array = np.maximum(0, np.minimum((mels - left) / (middle - left), (right - mels) / (right - middle)))
    return weights


def reference(
    pcm: Array,
    length: Array | None,
    *,
    sample_rate: int,
    win_length: int,
    hop_length: int,
    n_mels: int,
    f_min: float,
    f_max: float,
    window: str,
    snip_edges: int,
    remove_dc: bool,
    preemphasis: float,
    power: int,
    log: bool,
    use_energy: int,
    raw_energy: bool,
    energy_floor: float,
) -> tuple[Array, Array]:
    """f32 [n, frames, n_mels + use_energy] from samples f32 [n, t], computed in f64, and the frames i32 [n] of
    each row."""
    n_fft = 1 << (win_length - 1).bit_length()
    weights = bands(sample_rate, n_fft, n_mels, f_min, f_max)
    shape = window_of("hann" if window == "hanning" else window, win_length, False)

    def frames_of(t: int) -> int:
        if snip_edges:
            return max(0, 1 + (t - win_length) // hop_length)
        return (t + hop_length // 2) // hop_length

    n, t = pcm.shape
    counts = np.array([frames_of(t if length is None else int(length[row])) for row in range(n)], np.int32)
    energy = np.zeros((n, frames_of(t), n_mels))
    whole = np.zeros((n, frames_of(t), 1))
    for row in range(n):
        if counts[row] == 0:
            continue
        sound = pcm[row, : t if length is None else length[row]].astype(np.float64)
        first = hop_length * np.arange(counts[row]) + (0 if snip_edges else hop_length // 2 - win_length // 2)
        place = (first[:, None] + np.arange(win_length)) % (2 * len(sound))
        frames = sound[np.minimum(place, 2 * len(sound) - 1 - place)]
        with np.errstate(invalid="ignore", over="ignore"):
            if remove_dc:
                frames -= frames.mean(1, keepdims=True)
            raw = np.sum(frames**2, 1)
            before = np.concatenate([frames[:, :1], frames[:, :-1]], 1)
            frames = (frames - np.float32(preemphasis) * before) * shape
            energy[row, : counts[row]] = np.abs(np.fft.rfft(frames, n_fft)) ** power @ weights.T
            whole[row, : counts[row], 0] = raw if raw_energy else np.sum(frames**2, 1)
    least = np.finfo(np.float32).eps
    fbank = np.log(np.maximum(energy, least)) if log else energy
    if use_energy:
        fbank = np.concatenate([np.log(np.maximum(whole, max(float(least), energy_floor))), fbank], 2)
    return fbank.astype(np.float32), counts
