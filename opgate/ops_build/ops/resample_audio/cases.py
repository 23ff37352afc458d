from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case, edge_values


def noise(rows: int, samples: int) -> Array:
    return np.random.default_rng(samples).standard_normal((rows, samples)).astype(np.float32)


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    def case(name: str, x: Array, from_rate: int, to_rate: int, error: str | None = None, **more: Any) -> Case:
        return Case(name, {"x": x}, {"from_rate": from_rate, "to_rate": to_rate, **more}, (1e-5, 1e-5), error)

    for from_rate, to_rate in [(44100, 16000), (48000, 16000), (16000, 8000), (8000, 16000), (16000, 44100), (1, 1),
                               (22050, 16000), (3, 7), (7, 3), (16000, 15999)]:  # fmt: skip
        yield case(f"{from_rate} to {to_rate}", noise(2, 500), from_rate, to_rate)
    for samples in (0, 1, 2, 30):
        yield case(f"{samples} samples", noise(2, samples), 44100, 16000)
    yield case("no rows", noise(0, 300), 3, 2)
    yield case("several pieces", noise(1, 9000), 2, 3)
    yield case("one sample remains", noise(3, 40), 1000, 1)
    for zeros in (1, 3, 64):
        yield case(f"{zeros} zeros", noise(1, 300), 3, 2, zeros=zeros)
    for beta in (0.0, 14.0):
        yield case(f"beta {beta}", noise(1, 300), 3, 2, beta=beta)
    odd = noise(1, 400)
    odd[0, 200] = np.nan
    yield case("NaN in a sample", odd, 3, 2)
    # The greatest numbers are apart, because their sums overflow.
    edges = np.stack([edge_values(np.float32, 1), np.zeros(24)], 1).repeat(9, 1).reshape(1, -1).astype(np.float32)
    yield case("edge values", np.where(np.abs(edges) > 1e38, edges / 4, edges), 3, 2, zeros=2)
    yield case("a rate of 0", noise(1, 9), 0, 2, "from_rate|a size is divided by zero")
    yield case("a negative rate", noise(1, 9), 2, -2, "to_rate|expected")
    yield case("zeros 0", noise(1, 9), 3, 2, "attribute 'zeros': expected 1..1024, got 0", zeros=0)
    yield case("beta NaN", noise(1, 9), 3, 2, "attribute 'beta': expected 0..100", beta=float("nan"))
    yield case("a filter of few weights a phase", noise(1, 9), 2**24, 2**24 - 1, "have no common factor", zeros=1)
    yield case("a filter too long", noise(1, 9), 16777213, 16777199, "have no common factor")


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """16 rows of 30 seconds at 44100 Hz."""
    return Case("16 x 30 s", {"x": noise(16, 44_100 * 30)}, {"from_rate": 44_100, "to_rate": 16_000})
