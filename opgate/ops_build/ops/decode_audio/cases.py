from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from opgate.ops_build.audio.sounds import ENCODED, KINDS, can_encode, checked_page, chunk, encoded, sound, tones, wav
from opgate.ops_build.case import Array, Case
from opgate.ops_build.images.pictures import flat

Dtype = np.dtype[Any]
_NAMES = {1: "integer", 3: "float", 6: "A-law", 7: "mu-law"}


def case(name: str, files: list[bytes], **attributes: Any) -> Case:
    data, ends = flat(files)
    return Case(name, {"data": data, "ends": ends}, {"samples": 40, **attributes}, (1e-6, 1e-7))


def cases(types: Mapping[str, Dtype]) -> Iterator[Case]:
    for kind, bits in KINDS:
        name = f"{_NAMES[kind]} {bits}"
        for channels in (1, 2, 5):
            for extensible in (False, True):
                options: dict[str, Any] = {"kind": kind, "bits": bits, "channels": channels, "extensible": extensible}
                files = [wav(sound(count * channels, bits, kind), **options) for count in (3, 40, 57)]
                yield case(f"{name}, {channels} channels, extensible {extensible}", files)
    for kind in (6, 7):
        yield case(f"all of {_NAMES[kind]}", [wav(bytes(range(256)), kind=kind, bits=8)], samples=256)
    good = wav(sound(30, 16))
    yield case("no rows", [])
    yield case("one sample a row", [good, good], samples=1)
    yield case("no samples in the file", [wav(b"")])
    yield case("half a frame at the end", [wav(sound(5, 16) + b"\x01")])
    yield case("other chunks", [wav(sound(30, 16), before=chunk(b"LIST", b"odd") + chunk(b"fact", b"\0" * 4))])
    yield case("a size that was unknown", [wav(sound(9, 16), size=size) for size in (0xFFFFFFFF, 0x7FFFF000)])
    yield case("two formats", [wav(sound(9, 16), before=wav(b"", channels=2)[12:36])])
    rates = [wav(sound(9, 16), rate=rate) for rate in (8000, 16000, 4294967295)]
    yield case("another rate", rates)
    yield case("any rate", rates, sample_rate=0)
    if can_encode():
        yield from encoded_cases(good)
    yield from bad_cases(good)


def encoded_cases(good: bytes) -> Iterator[Case]:
    """Files that libsndfile and libmpg123 decode. Their versions round differently."""
    for kind in ENCODED:
        for channels in (1, 2):
            file = encoded(kind, tones(3000, channels), 48000 if channels == 2 else 16000)
            at_once = case(f"{kind}, {channels} channels", [good, file, good], samples=4000, sample_rate=0)
            yield replace(at_once, tolerance=(1e-5, 2e-6))
    flac = encoded("FLAC", tones(9000))
    yield case("the beginning of a FLAC", [flac], samples=100)
    yield case("a tag before a FLAC", [b"ID3\4\0\0\0\0\1\2" + bytes(130) + flac])
    yield case("a FLAC of another rate", [encoded("FLAC", tones(300), 8000), good])
    yield case("many channels", [encoded("AIFF", tones(50, 300))], samples=60)
    for kind in ("FLAC", "Vorbis", "Opus"):
        file = encoded(kind, tones(16000))
        yield case(f"half of a file of {kind}", [good, file[: len(file) // 2]], samples=20000)
    yield case("GSM in a WAV", [wav(bytes(65), kind=49, bits=0, block=65)])
    yield case("FLAC in Ogg", [checked_page(b"OggS\0\2" + bytes(20) + b"\1\7\x7fFLAC\1\0")])


def bad_cases(good: bytes) -> Iterator[Case]:
    for name, file in [
        ("empty", b""),
        ("text", b"no sound at all"),
        ("RIFF without a type", good[:8]),
        ("another RIFF", good[:8] + b"WEBP" + good[12:]),
        ("a head alone", good[:12]),
        ("half a chunk's head", good[:17]),
        ("a truncated format", good[:30]),
        ("no data", good[:36]),
        ("truncated data", good[:-10]),
        ("data before the format", good[:12] + good[36:]),
        ("a short format", b"RIFF\0\0\0\0WAVE" + chunk(b"fmt ", b"\1\0\1\0") + good[36:]),
        ("a chunk larger than the file", good[:36] + b"LIST\xf0\xff\xff\x7f"),
        ("ADPCM", wav(b"\0" * 9, kind=2, bits=4, block=1)),
        ("mu-law of 16 bits", wav(b"\0" * 8, kind=7, bits=16)),
        ("12 bits", wav(b"\0" * 9, bits=12)),
        ("extensible without its GUID", wav(b"\0" * 8, kind=0xFFFE)),
        ("no channels", wav(b"\0" * 8, channels=0)),
        ("no rate", wav(b"\0" * 8, rate=0)),
        ("a block of another size", wav(b"\0" * 8, block=3)),
        ("65535 channels", wav(b"\0" * 8, bits=8, channels=65535)),
        ("NaN", wav(np.array([0, np.nan], "<f4").tobytes(), kind=3, bits=32)),
        ("infinite", wav(np.array([0, np.inf], "<f4").tobytes(), kind=3, bits=32)),
        ("too large for f32", wav(np.array([1e39], "<f8").tobytes(), kind=3, bits=64)),
    ]:
        yield case(f"bad: {name}", [good, file, good])
    data, ends = flat([good, good])
    for name, wrong in (("decreasing", ends[::-1].copy()), ("too large", ends + 1), ("negative", ends - 200)):
        inputs: dict[str, Array] = {"data": data, "ends": wrong}
        yield Case(f"ends {name}", inputs, {"samples": 4}, error="input 'ends': expected offsets that don't decrease")
    for attribute, value in (("samples", 0), ("samples", 1 << 27), ("sample_rate", -1)):
        inputs = {"data": data, "ends": ends}
        yield Case(f"{attribute} {value}", inputs, {"samples": 4, attribute: value}, error=f"attribute '{attribute}'")
