"""CTCBeamSearch in NumPy, with a dictionary of texts."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array

Text = tuple[int, ...]


def reference(logits: Array, *, beam_width: int, blank: int, activation: str) -> tuple[Array, Array, Array]:
    """labels i32 [n, t], count i32 [n] and score f32 [n] of logits [n, t, c]. Computed in f64."""
    n, t, _ = logits.shape
    labels, count, score = np.full((n, t), -1, np.int32), np.zeros(n, np.int32), np.zeros(n, np.float32)
    for row, steps in enumerate(logits.astype(np.float64)):
        beam: dict[Text, tuple[float, float]] = {(): (0.0, -np.inf)}
        denominators = 0.0
        for step in steps:
            logs, denominator = _logs(step, activation)
            if (logs > -np.inf).any():
                beam = _advance(beam, logs, beam_width, blank)
                denominators += denominator
        text, ends = next(iter(beam.items()))
        labels[row, : len(text)], count[row] = text, len(text)
        score[row] = max(np.logaddexp(*ends) - denominators, -np.finfo(np.float32).max)
    return labels, count, score


def _logs(step: Array, activation: str) -> tuple[Array, float]:
    """Returns the logarithms of the probabilities [c] without the denominator of the softmax, and its logarithm."""
    low = -np.inf if activation == "softmax" else 0
    values = np.where(step > low, np.minimum(step, np.finfo(np.float32).max), -np.inf)
    if activation == "none":
        return np.where(values > 0, np.log(np.where(values > 0, values, 1)), -np.inf), 0.0
    logs = values - values.max() if (values > -np.inf).any() else values
    return logs, float(np.log(max(np.exp(logs).sum(), 1)))


def _advance(
    beam: dict[Text, tuple[float, float]], logs: Array, width: int, blank: int
) -> dict[Text, tuple[float, float]]:
    """Returns the beam after a step, the best text first: of each text the logarithms of the probabilities of the
    alignments that end in a blank, and in its last class."""
    classes = np.argsort(-logs, kind="stable")
    classes = classes[classes != blank]
    totals = {text: np.logaddexp(*ends) for text, ends in beam.items()}
    kept: dict[Text, tuple[float, float]] = {}
    for text, (_, last) in beam.items():
        label = last + logs[text[-1]] if text else -np.inf
        if text and text[:-1] in beam:
            before = beam[text[:-1]][0] if text[-2:-1] == text[-1:] else totals[text[:-1]]
            label = np.logaddexp(label, before + logs[text[-1]])
        kept[text] = (totals[text] + logs[blank], label)
    sums = [np.array([np.logaddexp(*ends) for ends in kept.values()])]
    for text, (after_blank, _) in beam.items():
        before = np.where(classes == text[-1], after_blank, totals[text]) if text else totals[text]
        there = [child[-1] for child in beam if child and child[:-1] == text]
        sums.append(np.where(np.isin(classes, there), -np.inf, before + logs[classes]))
    texts, every = list(beam), np.concatenate(sums)
    after: dict[Text, tuple[float, float]] = {}
    for i in np.argsort(-every, kind="stable")[:width]:
        if every[i] == -np.inf:
            break
        if i < len(texts):
            after[texts[i]] = kept[texts[i]]
        else:
            parent, label = divmod(int(i) - len(texts), len(classes))
            after[(*texts[parent], int(classes[label]))] = (-np.inf, every[i])
    return after
