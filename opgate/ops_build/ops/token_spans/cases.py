from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case

PEOPLE = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    rng = np.random.default_rng(0)

    def tokens(n: int, s: int, c: int, scale: float = 3) -> dict[str, Array]:
        lengths = rng.integers(0, 5, (n, s))
        ends = lengths.cumsum(1)
        offsets = np.stack([ends - lengths, ends], -1).astype(np.int32)
        special = (rng.random((n, s)) < 0.15).astype(np.int64)
        logits = (rng.standard_normal((n, s, c)) * scale).astype(np.float32)
        return {"logits": logits, "offsets": offsets, "special": special}

    def classes(best: list[int], special: list[int] | None = None) -> dict[str, Array]:
        """Tokens of three characters with these best classes."""
        logits = rng.standard_normal((1, len(best), 5)).astype(np.float32)
        logits[0, np.arange(len(best)), best] = 9
        offsets = np.stack([np.arange(len(best)) * 4, np.arange(len(best)) * 4 + 3], -1).astype(np.int32)[None]
        return {"logits": logits, "offsets": offsets, "special": np.array([special or [0] * len(best)])}

    people = {"labels": PEOPLE}
    for n, s in [(1, 1), (3, 20), (40, 7), (2, 300)]:
        yield Case(f"{n} x {s}", tokens(n, s, 5), people)
    yield Case("a name of two tokens", classes([0, 1, 2, 0, 3, 0]), people)
    yield Case("two names side by side", classes([1, 1, 2, 1]), people)
    yield Case("one begins with I", classes([2, 2, 0, 4, 2]), people)
    yield Case("special tokens in between", classes([1, 0, 2, 2], [0, 1, 0, 1]), people)
    yield Case("special tokens alone", classes([1, 2], [1, 1]), people)
    yield Case("nothing", classes([0, 0, 0]), people)
    yield Case("labels without prefixes", tokens(4, 30, 3), {"labels": ["O", "name", "date"]})
    yield Case("other labels", tokens(4, 30, 4), {"labels": ["X-a", "B-a", "I-X-a", "none"], "outside": "none"})
    yield Case("a label outside of another name", tokens(4, 30, 3), {"labels": ["B-O", "I-O", "x"]})
    for n, s in [(0, 4), (3, 0)]:
        yield Case(f"empty: {n} x {s}", tokens(n, s, 5), people)
    odd = tokens(6, 12, 5)
    odd["logits"][0, :3] = np.nan
    odd["logits"][1, 4, 2] = np.inf
    odd["logits"][2, 5] = -np.inf
    odd["logits"][3, :, :4] = -np.inf
    odd["logits"][4, :, 2] = np.nan
    odd["logits"][5] = 1
    yield Case("NaN, infinity and ties", odd, people)
    yield Case("large logits", tokens(3, 20, 5, scale=30_000), people)
    yield Case("no labels", tokens(1, 2, 5), {"labels": []}, error="attribute 'labels'")
    yield Case("too few labels", tokens(1, 2, 5), {"labels": ["O", "x"]}, error="input 'logits': expected 2 classes")


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """64 texts of 512 tokens and nine classes."""
    rng = np.random.default_rng(1)
    ends = rng.integers(1, 6, (64, 512)).cumsum(1).astype(np.int32)
    inputs: dict[str, Array] = {
        "logits": rng.standard_normal((64, 512, 9)).astype(np.float32),
        "offsets": np.stack([ends - 1, ends], -1),
        "special": np.zeros((64, 512), np.int64),
    }
    names = [prefix + name for name in ("PER", "LOC", "ORG", "MISC") for prefix in ("B-", "I-")]
    return Case("64 x 512 x 9", inputs, {"labels": ["O", *names]})
