"""TopKLabels in NumPy: a stable sort of each row."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(logits: Array, *, k: int, activation: str) -> tuple[Array, Array]:
    """scores f32 and labels i32, both [n, k], of logits [n, c]: the best first, ties by label, NaN last. Rows are
    filled with the score 0 and the label -1 behind the c-th place. Activations are computed in f64."""
    n, c = logits.shape
    x = logits.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        if activation == "none":
            score = x
        elif activation == "sigmoid":
            score = 1 / (1 + np.exp(-x))
        elif c == 0:
            score = x
        else:
            e = np.exp(x - np.fmax.reduce(x, axis=1, keepdims=True))
            score = e / e.sum(axis=1, keepdims=True)
    order = np.argsort(-x, axis=1, kind="stable")[:, :k]
    scores, labels = np.zeros((n, k), np.float32), np.full((n, k), -1, np.int32)
    scores[:, : order.shape[1]] = np.take_along_axis(score, order, axis=1)
    labels[:, : order.shape[1]] = order
    return scores, labels
