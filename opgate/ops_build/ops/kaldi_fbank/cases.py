from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.ops.log_mel_spectrogram.cases import TOLERANCE, noise


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    def case(
        name: str, pcm: Array, error: str | None = None, length: list[int] | None = None, **attributes: Any
    ) -> Case:
        inputs = {"pcm": pcm} | ({} if length is None else {"length": np.array(length, np.int32)})
        return Case(name, inputs, attributes, TOLERANCE, error)

    for snip_edges in (0, 1):
        edges: dict[str, Any] = {"snip_edges": snip_edges}
        # Frames are computed in groups: none, one, a few, and a part of one.
        for samples in (0, 1, 79, 80, 240, 399, 400, 559, 560, 2800, 5279, 16000):
            yield case(f"{samples} samples, snip_edges {snip_edges}", noise(2, samples), **edges)
        for use_energy in (0, 1):
            for raw_energy in (False, True):
                more: dict[str, Any] = {"use_energy": use_energy, "raw_energy": raw_energy, "n_mels": 23, **edges}
                yield case(f"energy {use_energy}, raw {raw_energy}, {snip_edges}", noise(2, 3000), **more)
        lengths = [3000, 0, 1, 80, 399, 400, 560, 2999]
        more = {"use_energy": 1, "energy_floor": 0.1 * snip_edges, **edges}
        yield case(f"lengths, snip_edges {snip_edges}", noise(8, 3000), length=lengths, **more)
        # A frame longer than its row repeats it backwards and forwards.
        yield case(f"a long frame, {snip_edges}", noise(2, 30), win_length=400, hop_length=7, **edges)
        yield case(f"a hop longer than a frame, {snip_edges}", noise(1, 3000), win_length=100, hop_length=333, **edges)
    for window in ("povey", "hamming", "hanning", "rectangular", "blackman"):
        yield case(window, noise(1, 2000), window=window)
    for win_length, hop_length in ((2, 1), (3, 2), (5, 5), (64, 16), (201, 77), (512, 128), (1103, 441)):
        sizes: dict[str, Any] = {"win_length": win_length, "hop_length": hop_length, "n_mels": 3}
        yield case(f"frames of {win_length}", noise(1, 4 * win_length + 99), **sizes)
    for remove_dc in (False, True):
        yield case(f"remove_dc {remove_dc}", noise(1, 3000) + np.float32(0.5), remove_dc=remove_dc)
    for preemphasis in (0.0, 1.0):
        yield case(f"preemphasis {preemphasis}", noise(1, 3000), preemphasis=preemphasis)
    for log in (False, True):
        yield Case(f"magnitudes, log {log}", {"pcm": noise(1, 3000)}, {"power": 1, "log": log}, (1e-4, 2e-3))
    yield Case("no logarithm", {"pcm": noise(1, 3000)}, {"log": False}, (1e-4, 2e-3))
    yield case("samples of 16 bits", 3000 * noise(1, 5000))
    yield case("silence", np.zeros((1, 2000), np.float32), use_energy=1)
    yield case("silence with a floor", np.zeros((1, 2000), np.float32), use_energy=1, energy_floor=1.0)
    yield case("bands between two frequencies", noise(1, 3000), f_min=300.0, f_max=3400.0)
    yield case("400 Hz below the highest", noise(1, 3000), f_max=-400.0)
    yield case("another rate", noise(1, 3000), sample_rate=8000, win_length=200, hop_length=80, n_mels=40)
    yield case("bands that no bin is in", noise(1, 3000), n_mels=300)
    yield case("no rows", noise(0, 3000))
    odd = noise(1, 9000)
    odd[0, [1500, 6000]] = np.nan
    yield case("NaN in two samples", odd)
    refused: list[tuple[str, Any]] = [
        ("win_length", 1), ("n_mels", 0), ("snip_edges", 2), ("use_energy", -1), ("power", 0), ("sample_rate", 0),
        ("f_max", 9000.0), ("f_max", -8000.0), ("f_min", -1.0), ("f_min", 8000.0), ("preemphasis", 1.5),
        ("energy_floor", -1.0),
    ]  # fmt: skip
    for name, value in refused:
        yield case(f"{name} {value}", noise(1, 2000), f"attribute '{name}': expected|{name}", **{name: value})
    yield case("hop_length 0", noise(1, 2000), "hop_length|a size is divided by zero", hop_length=0)
    for wrong in (3001, -1):
        yield case(f"length {wrong}", noise(1, 3000), "input 'length': expected 0..3000", length=[wrong])


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """16 rows of 30 seconds."""
    return Case("16 x 30 s", {"pcm": noise(16, 480_000)})
