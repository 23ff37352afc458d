"""CTCWords in NumPy."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from opgate.ops_build.case import Array


def reference(
    logits: Array, steps: Array | None = None, *, names: list[str], blank: int, delimiter: str, activation: str
) -> tuple[Array, Array, Array, Array, Array]:
    """words str [n, w], begin and end i32 [n, w], score f32 [n, w] and count i32 [n]."""
    n, t, _ = logits.shape
    x = logits.astype(np.float64)
    rows = [
        _words(x[row, : t if steps is None else steps[row]], names, blank, delimiter, activation) for row in range(n)
    ]
    most = max(map(len, rows), default=0)
    words = np.full((n, most), "", object)
    begin, end, score = (np.zeros((n, most), dtype) for dtype in (np.int32, np.int32, np.float32))
    for row, found in enumerate(rows):
        for i, (text, first, last, probabilities) in enumerate(found):
            words[row, i], begin[row, i], end[row, i] = text, first, last
            score[row, i] = np.mean(probabilities)
    return words, begin, end, score, np.array([len(found) for found in rows], np.int32)


def _words(
    x: Array, names: list[str], blank: int, delimiter: str, activation: str
) -> list[tuple[str, int, int, list[float]]]:
    best = [int(step.argmax()) for step in x]
    words: list[tuple[str, int, int, list[float]]] = []
    open_word, at = False, 0
    for label, group in groupby(best):
        begin, at = at, at + len(list(group))
        if label == blank:
            continue
        probability = float(x[begin, label] if activation == "none" else 1 / np.exp(x[begin] - x[begin, label]).sum())
        for i, part in enumerate(names[label].split(delimiter) if delimiter else [names[label]]):
            open_word = open_word and i == 0
            if not part:
                continue
            text, first, _, probabilities = words.pop() if open_word else ("", begin, at, [])
            words.append((text + part, first, at, [*probabilities, probability]))
            open_word = True
    return words
