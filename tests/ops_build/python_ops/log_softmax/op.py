import numpy as np

import opgate


@opgate.op("<T: f16|bf16|f32|f64> LogSoftmax(x: T[..., n]) -> (y: T[..., n])", "The logarithm of softmax.")
def log_softmax(x):
    return x - np.logaddexp.reduce(x, axis=-1, keepdims=True)


log_softmax.formula()
