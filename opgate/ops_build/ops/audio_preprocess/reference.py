"""AudioPreprocess in NumPy, soundfile and soxr."""

from __future__ import annotations

import math

import numpy as np

from opgate.ops_build.audio.reference import CORRUPT, TOO_LONG, UNSUPPORTED, DecodeError, decoded
from opgate.ops_build.case import Array
from opgate.ops_build.ops.resample_audio.reference import reference as by_kaiser


def reference(
    data: Array,
    ends: Array,
    *,
    sample_rate: int,
    max_samples: int,
    min_samples: int,
    channel: str,
    resampler: str,
    normalize: str,
    loudness: float,
) -> tuple[Array, Array, Array, Array]:
    """pcm f32 [n, t], and the length, the rate and the status i32 [n] of the n files in `data`."""
    rows: list[Array] = []
    rate, status = (np.zeros(len(ends), np.int32) for _ in range(2))
    begin = 0
    for i, end in enumerate(ends.tolist()):
        row = np.zeros(0, np.float32)
        try:
            sound, of_file = decoded(data[begin:end].tobytes())
            if not 1000 <= of_file <= 384000:
                raise DecodeError(UNSUPPORTED)
            if math.ceil(len(sound) * sample_rate / of_file) > max_samples:
                raise DecodeError(TOO_LONG)
            mono = sound.mean(1) if channel == "mean" else sound[:, 0]
            if not (np.abs(mono) <= np.finfo(np.float32).max).all():
                raise DecodeError(CORRUPT)
            row = resampled(mono.astype(np.float32), of_file, sample_rate, resampler)
            row = as_loud(row, sample_rate, loudness) if normalize == "lufs" else normalized(row, normalize)
            rate[i] = of_file
        except DecodeError as error:
            status[i] = error.status
        rows.append(row)
        begin = end
    length = np.array([len(row) for row in rows], np.int32)
    pcm = np.zeros((len(ends), max(min_samples, length.max(initial=0))), np.float32)
    for row, samples in zip(pcm, rows, strict=True):
        row[: len(samples)] = samples
    return pcm, length, rate, status


def normalized(x: Array, how: str) -> Array:
    """x f32 [t] with a greatest magnitude of 1 (peak), or a mean of 0 and a variance of 1 (standard)."""
    wide = x.astype(np.float64)
    if how == "peak":
        wide /= np.abs(wide).max(initial=0) or 1
    elif how == "standard" and len(x):
        wide = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-7)
    return wide.astype(np.float32)


def as_loud(x: Array, rate: int, wanted: float) -> Array:
    """x f32 [t] with an integrated loudness of `wanted` LUFS, by the blocks of ITU-R BS.1770-4."""
    energy = _weighted(x.astype(np.float64), rate) ** 2
    ends = [(int(i * 0.1 * rate), int((i + 4) * 0.1 * rate)) for i in range(int(len(x) / rate * 10) + 1)]
    blocks = np.array([energy[a:b].sum() / (0.4 * rate) for a, b in ends if b <= len(x)])
    if not len(blocks) and len(x):
        blocks = np.array([energy.mean()])
    loud = blocks[blocks > 10 ** ((-70 + 0.691) / 10)]
    if not len(loud):
        return x
    kept = loud[loud > loud.mean() / 10]
    gain: float = 10 ** ((wanted - (-0.691 + 10 * np.log10(kept.mean()))) / 20)
    return (x * gain).astype(np.float32)


def _weighted(x: Array, rate: int) -> Array:
    """The K weighting: BS.1770's two filters, moved to the rate by the bilinear transform."""
    k, q = np.tan(np.pi * 1681.9744509555319 / rate), 0.7071752369554193
    high = 10 ** (3.99984385397 / 20)
    band = high**0.499666774155
    shelf = [high + band * k / q + k * k, 2 * (k * k - high), high - band * k / q + k * k]
    x = _filtered(x, np.array(shelf) / (1 + k / q + k * k), k, q)
    k, q = np.tan(np.pi * 38.13547087613982 / rate), 0.5003270373253953
    return _filtered(x, np.array([1.0, -2.0, 1.0]), k, q)


def _filtered(x: Array, b: Array, k: float, q: float) -> Array:
    a = np.array([1 + k / q + k * k, 2 * (k * k - 1), 1 - k / q + k * k])
    a /= a[0]
    y, before = np.zeros(len(x) + 2), np.concatenate([[0, 0], x])
    for i in range(2, len(y)):
        y[i] = b @ before[i - 2 : i + 1][::-1] - a[1] * y[i - 1] - a[2] * y[i - 2]
    return y[2:]


def resampled(x: Array, from_rate: int, to_rate: int, resampler: str) -> Array:
    """f32 [ceil(t to_rate / from_rate)] from x f32 [t]."""
    if from_rate == to_rate:
        return x
    if resampler == "kaiser":
        y: Array = by_kaiser(x[None], from_rate=from_rate, to_rate=to_rate, zeros=10, beta=5.0)[0]
        return y
    if resampler == "sinc_interp_hann":
        return by_hann(x, from_rate, to_rate)
    try:
        import soxr
    except ImportError as error:
        raise ImportError("the reference of this resampler needs the package soxr") from error
    wanted = -(-len(x) * to_rate // from_rate)
    y = soxr.resample(x, from_rate, to_rate, "HQ")[:wanted]
    return np.pad(y, (0, wanted - len(y)))


def by_hann(x: Array, from_rate: int, to_rate: int) -> Array:
    """torchaudio.functional.resample with its defaults: lowpass_filter_width 6, rolloff 0.99."""
    common = math.gcd(from_rate, to_rate)
    up, down = to_rate // common, from_rate // common
    base = 0.99 * min(up, down)
    y = np.zeros(-(-len(x) * up // down))
    for j in range(len(y)):
        t = base * (np.arange(len(x)) / down - j / up)
        near = np.abs(t) < 6
        y[j] = base / down * np.sum(x[near] * np.sinc(t[near]) * np.cos(np.pi / 12 * t[near]) ** 2)
    return y.astype(np.float32)
