"""Files of sounds for tests: WAVs of every kind, and what soundfile encodes."""

from __future__ import annotations

import io
import struct
from importlib.util import find_spec

import numpy as np

from opgate.ops_build.case import Array


def wav(
    frames: bytes, *, kind: int = 1, bits: int = 16, channels: int = 1, rate: int = 16000, extensible: bool = False,
    before: bytes = b"", size: int | None = None, block: int | None = None,
) -> bytes:  # fmt: skip
    """A WAV file of these frames. `before` are chunks before the data, `size` the stated size of the data."""
    block = channels * bits // 8 if block is None else block
    head = struct.pack("<HHIIHH", 0xFFFE if extensible else kind, channels, rate, rate * block % 2**32, block, bits)
    if extensible:
        head += struct.pack("<HHIH14x", 22, bits, 0, kind)
    body = b"WAVE" + chunk(b"fmt ", head) + before
    body += struct.pack("<4sI", b"data", len(frames) if size is None else size) + frames + b"\0" * (len(frames) % 2)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack("<4sI", kind, len(data)) + data + b"\0" * (len(data) % 2)


def sound(count: int, bits: int, kind: int = 1) -> bytes:
    """Samples with the least and the greatest among them."""
    rng = np.random.default_rng([count, bits, kind])
    if kind == 3:
        return rng.uniform(-1, 1, count).astype(f"<f{bits // 8}").tobytes()
    values = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), count)
    values[:2] = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)[: min(2, count)]
    if bits == 8:
        return (values + 128).astype(np.uint8).tobytes()
    return values.astype("<i4").view(np.uint8).reshape(-1, 4)[:, : bits // 8].tobytes()


#: The formats and the bits of the samples of a WAV that is read without libsndfile.
KINDS = [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64), (6, 8), (7, 8)]

#: The format and the subtype by which soundfile knows the other kinds of files that the ops read.
ENCODED = {
    "FLAC": ("FLAC", "PCM_16"),
    "FLAC of 24 bits": ("FLAC", "PCM_24"),
    "MP3": ("MP3", "MPEG_LAYER_III"),
    "Vorbis": ("OGG", "VORBIS"),
    "Opus": ("OGG", "OPUS"),
    "AIFF": ("AIFF", "PCM_16"),
    "AIFF of floats": ("AIFF", "FLOAT"),
    "AU": ("AU", "PCM_24"),
    "AU of mu-law": ("AU", "ULAW"),
    "CAF": ("CAF", "PCM_32"),
    "W64": ("W64", "PCM_16"),
    "RF64": ("RF64", "DOUBLE"),
    "MS ADPCM": ("WAV", "MS_ADPCM"),
    "IMA ADPCM": ("WAV", "IMA_ADPCM"),
}


def can_encode() -> bool:
    """Whether soundfile is installed. Without it there are no cases for the kinds of `ENCODED`."""
    return find_spec("soundfile") is not None


def encoded(kind: str, samples: Array, rate: int = 16000) -> bytes:
    """A file of a kind of `ENCODED` with samples [frames] or [frames, channels] in [-1, 1]."""
    import soundfile

    file = io.BytesIO()
    of, subtype = ENCODED[kind]
    soundfile.write(file, samples, rate, subtype, format=of)
    return file.getvalue()


def tones(frames: int, channels: int = 1, rate: int = 16000) -> Array:
    """f32 [frames, channels] in [-1, 1]: a tone and noise, another tone in each channel."""
    time = np.arange(frames)[:, None] / rate
    tone = np.sin(2 * np.pi * 300 * np.arange(1, channels + 1) * time)
    noise = np.random.default_rng(frames).uniform(-1, 1, (frames, channels))
    return (0.6 * tone + 0.1 * noise).astype(np.float32)


def checked_page(page: bytes | bytearray) -> bytes:
    """A page of Ogg with the checksum that belongs to it."""
    made = bytearray(page)
    made[22:26] = bytes(4)
    rest = 0
    for byte in made:
        rest ^= byte << 24
        for _ in range(8):
            rest = (rest << 1 ^ 0x04C11DB7 * (rest >> 31)) & 0xFFFFFFFF
    made[22:26] = rest.to_bytes(4, "little")
    return bytes(made)
