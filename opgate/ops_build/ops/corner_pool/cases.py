from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case

MODES = ("top", "bottom", "left", "right")
EXACT = (0.0, 0.0)


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(dtype)

    # Rows beside a group of rows, columns beyond a block of columns, rows of a warp's width and around it.
    shapes = [(1, 1, 1, 1), (2, 3, 5, 7), (1, 1, 9, 1), (1, 1, 1, 9), (1, 2, 17, 33), (1, 1, 3, 1100), (1, 1, 1100, 3),
              (3, 5, 8, 32), (1, 1, 64, 64), (0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0)]  # fmt: skip
    odd = normal(1, 2, 12, 40)
    odd[0, 0, 3, 5], odd[0, 0, 7, 20], odd[0, 0, 2, 39] = np.nan, np.inf, -np.inf
    odd[0, 1] = -np.inf
    for mode in MODES:
        for shape in shapes:
            yield Case(f"{list(shape)}, {mode}", {"x": normal(*shape)}, {"mode": mode}, tolerance=EXACT)
        yield Case(f"NaN and infinity, {mode}", {"x": odd}, {"mode": mode}, tolerance=EXACT)
        falling = -np.arange(2.0 * 30 * 70).reshape(1, 2, 30, 70).astype(dtype)
        yield Case(f"falling, {mode}", {"x": falling}, {"mode": mode}, tolerance=EXACT)
        yield Case(f"below zero, {mode}", {"x": normal(1, 1, 10, 45) - dtype.type(50)}, {"mode": mode}, tolerance=EXACT)
    yield Case("no mode", {"x": normal(1, 1, 2, 2)}, error="mode")
    yield Case("another mode", {"x": normal(1, 1, 2, 2)}, {"mode": "up"}, error="attribute 'mode'")
    yield Case("three axes", {"x": normal(1, 2, 2)}, {"mode": "top"}, error="input 'x'")


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """CornerNet's map: 128 channels of 128 x 128, 8 pictures."""
    x = np.random.default_rng(1).standard_normal((8, 128, 128, 128), np.float32).astype(types["T"])
    return Case("8 x 128 x 128 x 128, left", {"x": x}, {"mode": "left"})
