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

    def probabilities(*shape: int) -> Array:
        values: Array = np.exp(rng.standard_normal(shape) * 2)
        values /= values.sum(-1, keepdims=True)
        return values.astype(dtype)

    for n, t, c in [(1, 1, 1), (2, 7, 3), (3, 20, 37), (1, 40, 513), (2, 5, 6625)]:
        yield Case(f"{n} x {t} x {c}, softmax", {"logits": normal(n, t, c)})
        yield Case(f"{n} x {t} x {c}, none", {"logits": probabilities(n, t, c)}, {"activation": "none"})
    for width in (1, 2, 31, 32, 100, 1000):
        yield Case(f"beam_width {width}", {"logits": normal(2, 8, 40, scale=1)}, {"beam_width": width})
    yield Case("many alignments of few texts", {"logits": normal(2, 60, 3, scale=0.5)}, {"beam_width": 20})
    yield Case("the last class is the blank", {"logits": normal(2, 9, 5)}, {"blank": 4})
    both = np.log(np.array([[[0.6, 0.4], [0.6, 0.4]]]))  # the blank twice has 0.36, and the text of one class 0.64
    yield Case("alignments that outweigh the best one", {"logits": both.astype(dtype)})
    yield Case("a beam of 1 keeps the blank", {"logits": both.astype(dtype)}, {"beam_width": 1})
    repeated = np.full((1, 5, 3), -9)
    repeated[0, [0, 1, 3, 4], 1] = repeated[0, 2, 0] = 9
    yield Case("a blank between two of a class", {"logits": repeated.astype(dtype)})
    yield Case("many rows", {"logits": normal(300, 4, 5)})
    for n, t, c in [(0, 5, 3), (3, 0, 2), (0, 0, 1)]:
        yield Case(f"empty: {n} x {t} x {c}", {"logits": normal(n, t, c)})
    for c in (3, 600):
        equal = np.ones((1, 3, c), dtype)
        yield Case(f"ties among {c} classes", {"logits": equal}, {"blank": c - 1, "beam_width": 4})
    odd = normal(2, 6, 50)
    odd[0, 0, 3] = np.nan
    odd[0, 1, 1:] = np.nan
    odd[0, 2] = -np.inf
    odd[0, 3, 7] = np.inf
    odd[0, 4] = np.nan
    odd[1, 2, :49] = -np.inf
    odd[1, 3, [2, 5, 9]] = np.inf
    for activation in ("softmax", "none"):
        yield Case(f"NaN and infinity, {activation}", {"logits": odd}, {"activation": activation, "blank": 5})
    zeros = np.zeros((2, 4, 5), dtype)
    zeros[0, 1:3, 2] = zeros[0, 3, 0] = 1
    yield Case("probabilities of 0", {"logits": zeros}, {"activation": "none"})
    for size in (200.0, 30_000.0):
        yield Case(f"logits of about {size:g}", {"logits": normal(2, 9, 70, scale=size / 3)})
    logits = {"logits": normal(1, 2, 3)}
    for width in (0, 1001):
        yield Case(
            f"beam_width {width}", logits, {"beam_width": width}, error=r"attribute 'beam_width': expected 1\.\.1000"
        )
    yield Case("blank -1", logits, {"blank": -1}, error="attribute 'blank': expected 0 or more")
    yield Case("a blank that is no class", logits, {"blank": 3}, error="input 'logits': expected 3 < c")
    long = np.zeros((0, 2**22, 1), dtype)
    yield Case("too many steps", {"logits": long}, {"beam_width": 1000}, error="input 'logits': expected t < 2147483 ")
    yield Case("two axes", {"logits": normal(2, 3)}, error="input 'logits'")


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """Eight lines of 80 steps and 6625 classes."""
    logits = np.random.default_rng(1).standard_normal((8, 80, 6625), np.float32).astype(types["T"])
    return Case("8 x 80 x 6625", {"logits": logits})
