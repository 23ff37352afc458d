import numpy as np

import opgate
from opgate.ops_build.ops.sigmoid_focal_loss.cases import cases, large

SIGNATURE = """<T: f16|bf16|f32|f64> SigmoidFocalLoss(x: T[...], target: T[...]; alpha: float=0.25, gamma: float=2)
    -> (loss: T[...])"""


@opgate.op(SIGNATURE, "The focal loss of the logits x for targets in [0, 1], elementwise.")
def sigmoid_focal_loss(x, target, *, alpha, gamma):
    q = opgate.sigmoid(x) * (1 - target) + opgate.sigmoid(-x) * target
    entropy = target * np.logaddexp(0, -x) + (1 - target) * np.logaddexp(0, x)
    weight = np.where(alpha < 0, 1, alpha * target + (1 - alpha) * (1 - target))
    return weight * entropy * np.maximum(q, np.finfo(x.dtype).tiny) ** gamma  # 0 to a power below 1 has no slope


@sigmoid_focal_loss.check
def _(*, alpha, gamma):
    finite = (gamma >= 0) & np.isfinite(gamma)
    return {"gamma": (finite, "a finite number, 0 or more"), "alpha": (alpha <= 1, "at most 1, or negative")}


sigmoid_focal_loss.formula()
sigmoid_focal_loss.cases(cases)
sigmoid_focal_loss.large(large)
