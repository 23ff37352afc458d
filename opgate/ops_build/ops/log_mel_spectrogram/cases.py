from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case, edge_values

#: f32 transforms are exact to about 1e-6 of the loudest bin, and the logarithm of a quiet band shows it.
TOLERANCE = (1e-5, 2e-3)


def noise(rows: int, samples: int) -> Array:
    return np.random.default_rng(samples).standard_normal((rows, samples)).astype(np.float32)


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    def case(name: str, pcm: Array, error: str | None = None, **attributes: Any) -> Case:
        return Case(name, {"pcm": pcm}, attributes, TOLERANCE, error)

    # Frames are computed in groups: less than one, one, a few, and a part of one.
    for samples in (201, 400, 2400, 5120, 5279, 16000):
        yield case(f"{samples} samples", noise(1, samples))
    yield case("rows", noise(3, 3000))
    yield case("no rows", noise(0, 3000))
    # What a transform in f32 rounds is a part of the tone, and as large as the noise in some bands.
    tone = (np.sin(np.arange(8000) * 0.3) + 0.01 * noise(1, 8000)).astype(np.float32)
    yield Case("a tone beside noise", {"pcm": tone}, tolerance=(1e-5, 1e-2))
    yield case("silence", np.zeros((1, 2000), np.float32))
    yield case("loud", 3e4 * noise(1, 2000))
    # Every factor of a transform, primes and powers among them.
    for n_fft in (2, 3, 4, 5, 6, 8, 9, 16, 25, 30, 49, 64, 77, 120, 121, 251, 512, 1250, 2047, 2048, 4096, 4099, 4104):
        yield case(f"n_fft {n_fft}", noise(1, 3 * n_fft + 40), n_fft=n_fft, hop_length=max(1, n_fft // 3), n_mels=2)
    yield case("a short window", noise(1, 4000), win_length=320)
    yield case("an odd short window", noise(1, 4000), n_fft=401, win_length=300)
    yield case("one sample of a window", noise(1, 900), win_length=1)
    yield case("a long hop", noise(1, 9000), hop_length=1000)
    yield case("a hop of 1", noise(1, 450), hop_length=1, n_fft=64, n_mels=4)
    yield case("HTK's scale", noise(1, 4000), mel_scale="htk", norm="none")
    yield case("HTK's scale and area 1", noise(1, 4000), mel_scale="htk")
    yield case("not normalized", noise(1, 4000), norm="none")
    yield case("bands between two frequencies", noise(1, 4000), f_min=300.0, f_max=3400.0, n_mels=20)
    yield case("bands that no bin is in", noise(1, 4000), n_fft=64, n_mels=128)
    yield case("44100 Hz", noise(1, 9000), sample_rate=44100, n_fft=1024, hop_length=256, n_mels=64)
    yield case("not centred", noise(2, 4000), center=0)
    yield case("not centred and too short", noise(2, 300), center=0)
    yield case("not centred, one frame", noise(2, 400), center=0)
    yield case("padded with zeros", noise(1, 4000), pad="zero")
    yield case("short and padded with zeros", noise(1, 7), pad="zero")
    yield case("no samples, padded with zeros", noise(2, 0), pad="zero")
    for log in ("log10", "db"):
        yield case(log, noise(1, 2000), log=log)
    yield case("a high floor", 1e-3 * noise(1, 2000), floor=1.0)
    # Frames 8 or 16 apart are transformed together on the CPU.
    levels = np.repeat([1, 3e-5, 1000, 1, 0, 1e-12, 3e4, 1e-18, 0, 1e15], 1280).astype(np.float32)
    yield case("quiet frames beside loud ones", levels * noise(1, len(levels)), floor=1e-37)
    edges = edge_values(np.float32, 1, 32768)
    levels = np.repeat(edges[np.abs(edges) < 1e15], 450)  # the greatest numbers have energies beyond f32
    yield case("edge values", levels * noise(1, len(levels)), floor=1e-37)
    odd = noise(1, 9000)
    odd[0, [1500, 6000]] = np.nan
    yield case("NaN in two samples", odd)
    yield from cases_of_lengths(case)
    for power in (1, 2):
        for guard in ("clamp", "add"):
            yield case(f"power {power}, guard {guard}", noise(2, 3000), power=power, guard=guard, floor=2.0**-24)
    levels = np.repeat([1, 3e-5, 1000, 0, 3e4], 1280).astype(np.float32)
    yield case("quiet frames of power 1", levels * noise(1, len(levels)), power=1, floor=1e-37)
    for window in ("hann", "hamming", "blackman", "rectangular"):
        for periodic in (0, 1):
            yield case(
                f"{window}, periodic {periodic}", noise(1, 2000), window=window, periodic=periodic, win_length=320
            )
    yield case("one sample of a symmetric window", noise(1, 900), win_length=1, periodic=0)
    for center in (0, 1):
        for pad in ("reflect", "zero"):
            yield case(f"preemphasis, center {center}, {pad}", noise(2, 3000), preemphasis=0.97, center=center, pad=pad)
    yield case("too short to reflect", noise(1, 200), error="expected more than 200 samples.*got 200")
    refused: list[tuple[str, Any, str]] = [
        ("n_fft", 1, r"attribute 'n_fft': expected 2\.\.65536, got 1"),
        ("win_length", 401, "attribute 'win_length': expected 0..400, got 401"),
        ("hop_length", 0, "hop_length|a size is divided by zero"),
        ("n_mels", 0, "attribute 'n_mels'"),
        ("center", 2, "attribute 'center': expected 0 or 1, got 2"),
        ("f_max", 9000.0, "attribute 'f_max'"),
        ("f_min", 8000.0, "attribute 'f_min'"),
        ("floor", 0.0, "attribute 'floor'"),
        ("power", 3, "attribute 'power': expected 1 or 2, got 3"),
        ("periodic", 2, "attribute 'periodic': expected 0 or 1, got 2"),
        ("preemphasis", 1.5, "attribute 'preemphasis': expected 0..1, got 1.5"),
        ("floor", 9e-38, "attribute 'floor': expected 1e-37..1e37, got 9e-38"),
        ("sample_rate", 0, "attribute 'sample_rate'"),
    ]
    for name, value, error in refused:
        yield case(f"{name} {value}", noise(1, 2000), error=error, **{name: value})


def cases_of_lengths(case: Callable[..., Case]) -> Iterator[Case]:
    """Rows that end before the tensor does."""

    def with_length(name: str, length: list[int], samples: int = 3000, error: str | None = None, **more: Any) -> Case:
        one = case(name, noise(len(length), samples), error, **more)
        return replace(one, inputs={**one.inputs, "length": np.array(length, np.int32)}, unseen=error is not None)

    lengths = [3000, 0, 1, 199, 200, 201, 399, 400, 1000, 2999, 2561]
    for center in (0, 1):
        for pad in ("reflect", "zero"):
            for guard in ("clamp", "add"):
                name = f"lengths, center {center}, {pad}, {guard}"
                yield with_length(name, lengths, center=center, pad=pad, guard=guard, preemphasis=0.5 * center)
    yield with_length("a short row among long ones", [9000, 300, 9000], 9000)
    yield with_length("no row of any length", [])
    yield with_length("no samples at all", [0, 0], 0, pad="zero")
    yield with_length("a length too large", [3000, 3001], error="input 'length': expected 0..3000 .*got 3001 for row 1")
    yield with_length("a negative length", [-1], error="input 'length': expected 0..3000 .*got -1 for row 0")


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """16 rows of 30 seconds."""
    return Case("16 x 30 s", {"pcm": noise(16, 480_000)}, tolerance=TOLERANCE)
