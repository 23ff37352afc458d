"""CTCGreedyDecode in NumPy, one row after the other."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(logits: Array, *, blank: int, activation: str) -> tuple[Array, Array, Array]:
    """labels i32 [n, t], count i32 [n] and score f32 [n] of logits [n, t, c]. The best class of a step is the first of
    the greatest numbers; a NaN is less than any. The softmax is computed in f64."""
    n, t, _ = logits.shape
    x = logits.astype(np.float64)
    labels, count, score = np.full((n, t), -1, np.int32), np.zeros(n, np.int32), np.zeros(n, np.float32)
    for row in range(n):
        kept, before = [], blank
        for step in x[row]:
            best = int(np.where(np.isnan(step), -np.inf, step).argmax())
            if np.isnan(step).any() and not (step > -np.inf).any():  # no number, or none above -infinity
                best = int(np.where(step == -np.inf)[0][0]) if (step == -np.inf).any() else 0
            if best not in (before, blank):
                kept.append((best, _probability(step, best, activation)))
            before = best
        count[row] = len(kept)
        if kept:
            labels[row, : len(kept)] = [label for label, _ in kept]
            score[row] = np.mean([probability for _, probability in kept])
    return labels, count, score


def _probability(step: Array, best: int, activation: str) -> float:
    most = step[best]
    if activation == "none":
        return float(most) if not np.isnan(most) else -np.inf
    if np.isinf(most) or np.isnan(most):
        return np.nan
    return float(1 / np.exp(step - most).sum())
