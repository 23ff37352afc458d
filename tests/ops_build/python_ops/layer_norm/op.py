import numpy as np

import opgate
from opgate.ops_build.ops.layer_norm.cases import cases

SIGNATURE = """<T: f16|bf16|f32|f64> LayerNorm(x: T[..., c], weight: T[c], bias: T[c]; epsilon: float=0.00001)
    -> (y: T[..., c])"""
TENSORS = {"x", "weight", "bias"}


@opgate.op(SIGNATURE, "Rows with mean 0 and variance 1, times weight plus bias.")
def layer_norm(x, weight, bias, *, epsilon):
    d = x - x.mean(axis=-1, keepdims=True)
    rest = d.mean(axis=-1, keepdims=True)  # what a large mean has rounded away
    variance = np.maximum(np.square(d).mean(axis=-1, keepdims=True) - rest * rest, 0)
    return (d - rest) * (1 / np.sqrt(variance + epsilon)) * weight + bias


layer_norm.formula()
layer_norm.cases(lambda types: (case for case in cases(types) if case.inputs.keys() == TENSORS and not case.error))
