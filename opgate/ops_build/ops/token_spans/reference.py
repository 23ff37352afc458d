"""TokenSpans in NumPy, as transformers' TokenClassificationPipeline aggregates with the strategy "simple"."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def _tag(label: str) -> tuple[str, str]:
    return (label[0], label[2:]) if label.startswith(("B-", "I-")) else ("I", label)


def reference(
    logits: Array, offsets: Array, special: Array, *, labels: list[str], outside: str
) -> tuple[Array, Array, Array, Array, Array]:
    """begin, end and label i32 [n, s], score f32 [n, s] and count i32 [n] of logits [n, s, c]."""
    n, s, _ = logits.shape
    begin, end, score = np.zeros((n, s), np.int32), np.zeros((n, s), np.int32), np.zeros((n, s), np.float32)
    label, count = np.full((n, s), -1, np.int32), np.zeros(n, np.int32)
    for row in range(n):
        groups: list[list[tuple[int, int, float]]] = []  # the token, its class and its score
        for i in np.flatnonzero(special[row] == 0):
            with np.errstate(all="ignore"):
                x = logits[row, i].astype(np.float64)
                scores = np.exp(x - x.max())
                scores /= scores.sum()
            best = int(scores.argmax()) if np.isnan(scores).any() else int(x.argmax())
            prefix, name = _tag(labels[best])
            if groups and name == _tag(labels[groups[-1][-1][1]])[1] and prefix != "B":
                groups[-1].append((int(i), best, scores[best]))
            else:
                groups.append([(int(i), best, scores[best])])
        for group in groups:
            first, of_first, _ = group[0]
            if labels[of_first].split("-", 1)[-1] == outside:
                continue
            at = count[row]
            numbers = [score for _, _, score in group if not np.isnan(score)]
            begin[row, at], end[row, at] = offsets[row, first, 0], offsets[row, group[-1][0], 1]
            label[row, at], score[row, at] = of_first, np.mean(numbers) if numbers else np.nan
            count[row] += 1
    return begin, end, label, score, count
