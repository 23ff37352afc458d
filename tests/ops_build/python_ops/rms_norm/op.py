import numpy as np

import opgate
from opgate.ops_build.ops.rms_norm.cases import cases

SIGNATURE = "<T: f16|bf16|f32|f64> RMSNorm(x: T[..., c], weight: T[c]; epsilon: float=0.00001) -> (y: T[..., c])"


@opgate.op(SIGNATURE, "x over the root of the mean of its row's squares, times weight.")
def rms_norm(x, weight, *, epsilon):
    return x * (1 / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + epsilon)) * weight


rms_norm.formula()
rms_norm.cases(
    lambda types: (case for case in cases(types) if case.inputs.keys() == {"x", "weight"} and not case.error)
)
