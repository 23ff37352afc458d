import numpy as np

import opgate


@opgate.op("<T: f16|bf16|f32|f64> Softmax(x: T[..., n]) -> (y: T[..., n])", "exp(x) over the sum of its row.")
def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


softmax.formula()


@softmax.gradient
def _(grad_y, y):
    return y * (grad_y - (grad_y * y).sum(axis=-1, keepdims=True))
