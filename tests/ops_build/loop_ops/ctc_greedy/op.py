import numpy as np

import opgate
from opgate import Case


@opgate.op("CtcGreedy(scores: f32[t,c]; blank: int=0) -> (label: i64[k<=t], frame: i64[k])", "Decodes CTC greedily.")
def ctc_greedy(scores, *, blank):
    best = scores.argmax(1) if scores.size else np.zeros(len(scores), int)
    is_new = np.concatenate([[True], best[1:] != best[:-1]])[: len(best)] & (best != blank)
    return best[is_new], np.flatnonzero(is_new)


@ctc_greedy.loop(rows="1")
def _(begin, end, scores, blank, label, frame, k):
    found, last = 0, -1
    for t in range(scores.shape[0]):
        best = 0
        for c in range(scores.shape[1]):
            if scores[t, c] > scores[t, best]:
                best = c
        if best != last and best != blank:
            label[found], frame[found] = best, t
            found += 1
        last = best
    k[0] = found


@ctc_greedy.cases
def _(types):
    rng = np.random.default_rng(0)
    for t, c in ((0, 5), (1, 3), (300, 4)):
        yield Case(f"{t} frames of {c}", {"scores": rng.standard_normal((t, c)).astype(np.float32)}, {"blank": 1})
