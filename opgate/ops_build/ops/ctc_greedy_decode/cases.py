from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(0)

    def normal(*shape: int, scale: float = 3) -> Array:
        return (rng.standard_normal(shape) * scale).astype(dtype)

    def steps(text: list[list[int]], c: int) -> Array:
        """Logits whose best classes are these."""
        logits = normal(len(text), len(text[0]), c, scale=1)
        for row, labels in enumerate(text):
            for i, label in enumerate(labels):
                logits[row, i, label] = 9
        return logits

    for activation in ("softmax", "none"):
        for n, t, c in [(1, 1, 1), (2, 7, 3), (3, 20, 37), (1, 40, 513), (2, 5, 6625)]:
            yield Case(f"{n} x {t} x {c}, {activation}", {"logits": normal(n, t, c)}, {"activation": activation})
    yield Case("the default", {"logits": normal(2, 10, 11)})
    yield Case("only blanks", {"logits": steps([[0, 0, 0, 0]], 5)})
    yield Case("no blank between two", {"logits": steps([[1, 1, 2, 2, 1, 1]], 5)})
    yield Case("a blank between two of a class", {"logits": steps([[1, 0, 1, 1, 0, 0], [0, 2, 0, 2, 3, 0]], 5)})
    yield Case("the last class is the blank", {"logits": steps([[4, 0, 0, 4, 0, 3]], 5)}, {"blank": 4})
    yield Case("a word from the first step to the last", {"logits": steps([[1, 2, 3, 4]], 5)})
    yield Case("many rows", {"logits": normal(300, 4, 5)})
    for n, t, c in [(0, 5, 3), (3, 0, 2), (0, 0, 1)]:
        yield Case(f"empty: {n} x {t} x {c}", {"logits": normal(n, t, c)})
    equal = np.ones((1, 3, 600), dtype)
    yield Case("ties: the first class", {"logits": equal}, {"blank": 599})
    zeros = np.zeros((1, 2, 40), dtype)
    zeros[0, 0, :20] = -0.0
    yield Case("zeros of both signs", {"logits": zeros}, {"blank": 39})
    odd = normal(2, 6, 50)
    odd[0, 0, 3] = np.nan
    odd[0, 1, 1:] = np.nan
    odd[0, 2] = -np.inf
    odd[0, 3, 7] = np.inf
    odd[1, 2, :49] = -np.inf
    for activation in ("softmax", "none"):
        yield Case(f"NaN and infinity, {activation}", {"logits": odd}, {"activation": activation, "blank": 5})
    for size in (200.0, 30_000.0):
        yield Case(f"logits of about {size:g}", {"logits": normal(2, 9, 70, scale=size / 3)})
    yield Case("blank -1", {"logits": normal(1, 2, 3)}, {"blank": -1}, error="attribute 'blank'")
    yield Case("a blank that is no class", {"logits": normal(1, 2, 3)}, {"blank": 3}, error="input 'logits'")
    yield Case("two axes", {"logits": normal(2, 3)}, error="input 'logits'")


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """Eight lines of 80 steps and 6625 classes."""
    logits = np.random.default_rng(1).standard_normal((8, 80, 6625), np.float32).astype(types["T"])
    return Case("8 x 80 x 6625", {"logits": logits})
