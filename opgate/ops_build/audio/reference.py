"""Decodes sounds as the ops define it: WAV with NumPy, the other kinds with soundfile."""

from __future__ import annotations

import io
import struct

import numpy as np

from opgate.ops_build.case import Array

UNKNOWN_FORMAT, CORRUPT, UNSUPPORTED, ANOTHER_RATE, TOO_LONG = 1, 2, 3, 4, 5
_MAGIC = (b"fLaC", b"OggS", b"FORM", b".snd", b"caff", b"riff", b"RF64")
_PLAIN = {"PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ALAW", "ULAW"}
_SUBTYPES = {
    "OGG": {"VORBIS", "OPUS"},
    "WAV": {"MS_ADPCM", "IMA_ADPCM"},
    "MP3": {"MPEG_LAYER_I", "MPEG_LAYER_II", "MPEG_LAYER_III"},
}
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


class DecodeError(Exception):
    """A file can't be decoded. The status of its row is `status`."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


def decoded(file: bytes) -> tuple[Array, int]:
    """f64 [frames, channels] and the sample rate of a file. Raises DecodeError."""
    while file.startswith(b"ID3") and len(file) >= 10:
        size = sum((byte & 127) << 7 * (3 - i) for i, byte in enumerate(file[6:10]))
        file = file[10 + size + (10 if file[5] & 16 else 0) :]
    if file.startswith(b"RIFF") and file[8:12] == b"WAVE":
        return _of_wav(file)
    known = [magic for magic in _MAGIC if file.startswith(magic)]
    mpeg = len(file) >= 4 and file[0] == 255 and file[1] >> 5 == 7 and file[1] >> 1 & 3
    if (not mpeg and not known) or (known == [b"FORM"] and file[8:12] not in (b"AIFF", b"AIFC")):
        raise DecodeError(UNKNOWN_FORMAT)
    return _by_soundfile(file)


def _by_soundfile(file: bytes) -> tuple[Array, int]:
    try:
        import soundfile
    except ImportError as error:
        raise ImportError("the reference of this kind of sound needs the package soundfile") from error
    try:
        with soundfile.SoundFile(io.BytesIO(file)) as sound:
            if sound.subtype not in _SUBTYPES.get(sound.format, _PLAIN):
                raise DecodeError(UNSUPPORTED)
            stated = sound.frames
            if sound.format == "OGG" and not _ends_with_a_page(file):
                raise DecodeError(CORRUPT)
            frames = sound.read(always_2d=True)
            if len(frames) < stated - (2304 if sound.format == "MP3" else 0):
                raise DecodeError(CORRUPT)
            return frames, sound.samplerate
    except soundfile.LibsndfileError as error:
        unsupported = file.startswith(b"OggS") and b"vorbis" not in file[:40] and b"OpusHead" not in file[:40]
        raise DecodeError(UNSUPPORTED if unsupported else CORRUPT) from error


def _ends_with_a_page(file: bytes) -> bool:
    """Whether a file is a number of whole Ogg pages."""
    at = 0
    while file[at : at + 4] == b"OggS" and len(file) - at > 27:
        segments = file[at + 26]
        at += 27 + segments + sum(file[at + 27 : at + 27 + segments])
    return at == len(file)


def _of_wav(file: bytes) -> tuple[Array, int]:
    position, format_chunk = 12, b""
    while len(file) - position >= 8:
        kind, size = struct.unpack_from("<4sI", file, position)
        position += 8
        if kind == b"data" and size >= _UNKNOWN_SIZE:
            size = len(file) - position
        if size > len(file) - position:
            raise DecodeError(CORRUPT)
        chunk = file[position : position + size]
        if kind == b"fmt ":
            if chunk[:2] in (b"\2\0", b"\x11\0") and len(chunk) >= 16:
                return _by_soundfile(file)
            _check_format(chunk)
            format_chunk = chunk
        elif kind == b"data":
            return _frames(format_chunk, chunk)
        position += size + size % 2
    raise DecodeError(CORRUPT)


def _check_format(chunk: bytes) -> None:
    if len(chunk) < 16:
        raise DecodeError(CORRUPT)
    kind, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", chunk)
    if kind == 0xFFFE and len(chunk) >= 40:
        (kind,) = struct.unpack_from("<H", chunk, 24)
    if (kind, bits) not in {(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64), (6, 8), (7, 8)}:
        raise DecodeError(UNSUPPORTED)
    if not channels or not rate or block != channels * bits // 8:
        raise DecodeError(CORRUPT)


def _frames(format_chunk: bytes, data: bytes) -> tuple[Array, int]:
    if not format_chunk:
        raise DecodeError(CORRUPT)
    _, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", format_chunk)
    kind = format_chunk[24] if format_chunk[:2] == b"\xfe\xff" else format_chunk[0]
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
