from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from opgate.ops_build.audio.sounds import can_encode, encoded, sound, tones, wav
from opgate.ops_build.case import Case
from opgate.ops_build.images.pictures import flat

RESAMPLERS = ["kaiser", "sinc_interp_hann", *(["soxr_hq"] if find_spec("soxr") else [])]


def case(name: str, files: list[bytes], error: str | None = None, **attributes: Any) -> Case:
    data, ends = flat(files)
    return Case(name, {"data": data, "ends": ends}, attributes, (1e-5, 1e-5), error)


def pcm(frames: int, channels: int = 1, rate: int = 16000) -> bytes:
    """A WAV of tones."""
    samples = (32767 * tones(frames, channels, rate)).astype("<i2")
    return wav(samples.tobytes(), channels=channels, rate=rate)


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    bad = b"no sound at all"
    for name in RESAMPLERS:
        for rate in (8000, 11025, 16000, 22050, 44100, 48000, 96000, 15999):
            yield case(f"{rate} by {name}", [pcm(700, 2, rate), pcm(1200, 1, rate)], resampler=name)
        yield case(f"up by {name}", [pcm(300)], resampler=name, sample_rate=44100)
        for frames in (0, 1, 2, 5):
            yield case(f"{frames} samples by {name}", [pcm(frames, 1, 44100), bad], resampler=name)
    # Sounds are resampled in parts.
    yield case("several parts", [pcm(16384, 1, 48000), pcm(16385, 1, 48000), pcm(34000, 1, 48000)])
    yield case("no rows", [])
    yield case("no good row", [bad, b"", pcm(9)[:40]])
    yield case("rows of no samples", [pcm(0), bad], min_samples=0)
    yield case("at least 500 samples", [pcm(300), bad, pcm(20)], min_samples=500)
    yield case("the first channel", [pcm(90, 3), wav(sound(60, 24), bits=24, channels=3)], channel="first")
    for frames in (99, 100, 101):
        yield case(f"{frames} of 100 samples", [pcm(frames), pcm(5)], max_samples=100)
        yield case(f"{3 * frames} of 100 samples", [pcm(3 * frames, 1, 48000)], max_samples=100)
    yield case("300 and 301 samples become 100 and 101", [pcm(300, 1, 48000), pcm(301, 1, 48000)], max_samples=100)
    yield case("exactly 100 samples", [pcm(100), pcm(7)], max_samples=100, min_samples=100)
    for how in ("peak", "standard"):
        silence = wav(bytes(800))
        yield case(f"normalized: {how}", [pcm(900), pcm(800, 2, 8000), silence, pcm(0), pcm(1), bad], normalize=how)
    for seconds in (0.2, 0.4, 0.45, 1.3):
        loud = [pcm(int(seconds * 16000)), pcm(int(seconds * 8000), 2, 8000), wav(bytes(20_000)), pcm(0), pcm(1), bad]
        yield case(f"as loud: {seconds} seconds", loud, normalize="lufs")
    quiet = wav(
        (np.sin(np.arange(32_000) / 5) * np.repeat([20_000, 300, 2], [8000, 12_000, 12_000])).astype("<i2").tobytes()
    )
    yield case("loud, quiet and silent", [quiet], normalize="lufs", loudness=-16.0)
    rates = [999, 1000, 384000, 384001]
    yield case("the least and the highest rates", [wav(sound(200, 16), rate=rate) for rate in rates])
    yield case("infinite", [wav(np.array([0, np.inf], "<f4").tobytes(), kind=3, bits=32)])
    if can_encode():
        for kind in ("FLAC", "Vorbis", "AIFF", "IMA ADPCM"):
            yield case(f"another kind: {kind}", [encoded(kind, tones(2000, 2), 22050), pcm(30), bad])
    data, ends = flat([pcm(9), pcm(9)])
    wrong = {"data": data, "ends": ends[::-1].copy()}
    yield Case("ends decreasing", wrong, error="input 'ends': expected offsets that don't decrease")
    refused = [("sample_rate", 999), ("sample_rate", 384001), ("max_samples", 0), ("min_samples", -1),
               ("min_samples", 9600001), ("loudness", 0.5), ("loudness", -101.0)]  # fmt: skip
    yield case("too low a rate", [pcm(9)], "attribute 'sample_rate': expected", normalize="lufs", sample_rate=3999)
    for attribute, value in refused:
        yield case(f"{attribute} {value}", [pcm(9)], f"attribute '{attribute}': expected", **{attribute: value})
