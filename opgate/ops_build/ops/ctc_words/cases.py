from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case

NAMES = ["", "a", "b", "é", "|", "東京", "|c", "d|"]


def cases(types: Mapping[str, np.dtype[Any]]) -> Iterator[Case]:
    dtype = types["T"]
    rng = np.random.default_rng(0)

    def steps(text: list[list[int]], c: int = len(NAMES)) -> Array:
        """Logits whose best classes are these."""
        logits = rng.standard_normal((len(text), len(text[0]), c)).astype(dtype)
        for row, labels in enumerate(text):
            for i, label in enumerate(labels):
                logits[row, i, label] = 9
        return logits

    def case(name: str, logits: Array, error: str | None = None, **attributes: Any) -> Case:
        return Case(name, {"logits": logits}, {"names": NAMES, "delimiter": "|", **attributes}, error=error)

    yield case("two words", steps([[1, 1, 0, 2, 4, 3, 0, 5]]))
    yield case("a blank between two of a class", steps([[1, 0, 1, 1, 0, 0], [0, 2, 0, 2, 3, 0]]))
    yield case("delimiters at the ends", steps([[4, 4, 1, 4, 0, 4, 4], [4, 0, 4, 4, 0, 0, 4]]))
    yield case("delimiters in names", steps([[1, 6, 2, 7, 3, 6, 6, 0, 6]]))
    yield case("names that are empty", steps([[1, 3, 2, 3, 1]]), names=["", "a", "b", "", "|", "x", "y", "z"])
    yield case("no delimiter", steps([[1, 6, 2, 7, 3]]), delimiter="")
    yield case(
        "a long delimiter", steps([[1, 2, 3, 1]]), names=["", "a", "<s>b", "<s>", "c", "d", "e", "f"], delimiter="<s>"
    )
    yield case("only blanks", steps([[0, 0, 0]]))
    yield case("another blank", steps([[0, 4, 0, 1, 5]]), blank=5)
    for activation in ("softmax", "none"):
        for n, t in ((1, 1), (2, 30), (5, 200)):
            logits = (rng.standard_normal((n, t, len(NAMES))) * 3).astype(dtype)
            yield case(f"{n} x {t}, {activation}", logits, activation=activation)
    used = {"logits": steps([[1, 4, 2, 1], [1, 4, 2, 1], [1, 1, 2, 2]]), "steps": np.array([4, 2, 0], np.int32)}
    yield Case("so many steps", used, {"names": NAMES, "delimiter": "|"})
    yield case("no rows", np.zeros((0, 4, len(NAMES)), dtype))
    yield case("no steps", np.zeros((2, 0, len(NAMES)), dtype))
    wrong = {"logits": steps([[1, 2]]), "steps": np.array([3], np.int32)}
    yield Case("too many steps", wrong, {"names": NAMES}, error="input 'steps': expected 0..2, got 3 at 0")
    yield case(
        "a blank that has no name", steps([[1]]), "attribute 'blank': expected the number of a name, 0..7", blank=8
    )
    yield case("too few names", steps([[1]]), "expected 2 classes, one for each name, got 8", names=["", "a"])


def large(types: Mapping[str, np.dtype[Any]]) -> Case:
    """Eight sounds of 30 s with 50 steps a second and 32 classes."""
    logits = (np.random.default_rng(1).standard_normal((8, 1500, 32)) * 3).astype(types["T"])
    return Case("8 x 1500 x 32", {"logits": logits}, {"names": ["", *(chr(97 + i) for i in range(30)), " "]})
