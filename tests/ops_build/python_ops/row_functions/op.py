"""Every reduction of a row, tensors of every kind, and a setting that chooses."""

import numpy as np

import opgate

SIGNATURE = """<T: f16|bf16|f32|f64> RowFunctions(x: T[..., n], scale: T[...], shift: T[..., 1], weight: T[n];
    p: float=2, {names}: {{sum|spread|extremes|norm}}=sum) -> (y: T[..., n], z: T[...], w: T[..., 1])"""


@opgate.op(SIGNATURE.format(names="which"), "Functions of rows.")
def row_functions(x, scale, shift, weight, *, p, which):
    y = x * weight + shift
    if which == "sum":
        e = np.exp(np.tanh(y) * p)
        return e / e.sum(axis=-1, keepdims=True), np.sum(y, axis=-1) * scale, np.mean(y, axis=-1, keepdims=True)
    if which == "spread":
        return (y - y.mean(axis=-1, keepdims=True)) / (1 + y.std(axis=-1, keepdims=True)), scale, y.var(-1)[..., None]
    if which == "extremes":
        low, high = np.min(y, axis=-1), np.max(y, axis=-1, keepdims=True)
        return np.where(y == high, 1, (high - y) / x.shape[-1]), low + scale, high - low[..., None]
    length = np.linalg.norm(y, axis=-1, keepdims=True)
    return y / (length + 1), np.logaddexp.reduce(y, axis=-1), np.squeeze(scale[..., None] * length, -1)[..., None]


row_functions.formula()
