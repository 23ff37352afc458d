"""DecodeAudio in NumPy."""

from __future__ import annotations

import struct

import numpy as np

from opgate.ops_build.case import Array

_UNKNOWN_SIZE = 0x7FFF0000


def _levels(kind: int) -> Array:
    """The samples of 16 bits that the bytes of A-law (6) and mu-law (7) stand for: ITU-T G.711, tables 1 and 2, which
    give the levels of each of eight segments in steps that double."""
    code = np.arange(256) ^ (0x55 if kind == 6 else 0xFF)
    segment, step = code >> 4 & 7, code & 15
    if kind == 6:
        magnitude = np.where(segment == 0, 16 * step + 8, (16 * step + 264) * 2.0 ** (segment - 1))
        return np.where(code & 128, magnitude, -magnitude)
    magnitude = (8 * step + 132) * 2.0**segment - 132
    return np.where(code & 128, -magnitude, magnitude)


_G711 = {kind: _levels(kind) for kind in (6, 7)}


class _Bad(Exception):
    """A file that can't be decoded, with its status."""


def reference(data: Array, ends: Array, *, samples: int, sample_rate: int) -> tuple[Array, Array, Array, Array]:
    """pcm f32 [n, samples], and the length, the rate and the status i32 [n] of the n WAV files in `data`."""
    pcm = np.zeros((len(ends), samples), np.float32)
    length, rate, status = (np.zeros(len(ends), np.int32) for _ in range(3))
    begin = 0
    for i, end in enumerate(ends.tolist()):
        try:
            sound, of_file = _decoded(data[begin:end].tobytes(), sample_rate)
            first = sound[:samples].mean(1)
            if not (np.abs(first) <= np.finfo(np.float32).max).all():
                raise _Bad(2)
        except _Bad as bad:
            status[i] = bad.args[0]
        else:
            pcm[i, : len(first)] = first
            length[i], rate[i] = len(sound), min(of_file, 2**31 - 1)
        begin = end
    return pcm, length, rate, status


def _decoded(file: bytes, sample_rate: int) -> tuple[Array, int]:
    """f64 [frames, channels] and the sample rate of one file."""
    if file[:4] != b"RIFF" or file[8:12] != b"WAVE":
        raise _Bad(1)
    position, format_chunk = 12, b""
    while len(file) - position >= 8:
        kind, size = struct.unpack_from("<4sI", file, position)
        position += 8
        if kind == b"data" and size >= _UNKNOWN_SIZE:
            size = len(file) - position
        if size > len(file) - position:
            raise _Bad(2)
        chunk = file[position : position + size]
        if kind == b"fmt ":
            _check_format(chunk)
            format_chunk = chunk
        elif kind == b"data":
            return _frames(format_chunk, chunk, sample_rate)
        position += size + size % 2
    raise _Bad(2)


def _check_format(chunk: bytes) -> None:
    if len(chunk) < 16:
        raise _Bad(2)
    kind, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", chunk)
    if kind == 0xFFFE and len(chunk) >= 40:
        (kind,) = struct.unpack_from("<H", chunk, 24)
    if (kind, bits) not in {(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64), (6, 8), (7, 8)}:
        raise _Bad(3)
    if not channels or not rate or block != channels * bits // 8:
        raise _Bad(2)


def _frames(format_chunk: bytes, data: bytes, sample_rate: int) -> tuple[Array, int]:
    if not format_chunk:
        raise _Bad(2)
    _, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", format_chunk)
    kind = format_chunk[24] if format_chunk[:2] == b"\xfe\xff" else format_chunk[0]
    if sample_rate and rate != sample_rate:
        raise _Bad(4)
    data = data[: len(data) // block * block]
    if kind == 3:
        sound = np.frombuffer(data, f"<f{bits // 8}").astype(np.float64)
    elif kind in (6, 7):
        sound = _G711[kind][np.frombuffer(data, np.uint8)] / 32768
    elif bits == 8:
        sound = (np.frombuffer(data, np.uint8).astype(np.float64) - 128) / 128
    else:
        # Samples are widened to 32 bits: their bytes are the upper ones.
        wide = np.zeros((len(data) // (bits // 8), 4), np.uint8)
        wide[:, 4 - bits // 8 :] = np.frombuffer(data, np.uint8).reshape(-1, bits // 8)
        sound = wide.view("<i4")[:, 0] / 2**31
    return sound.reshape(-1, channels), rate
