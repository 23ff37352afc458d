import numpy as np

import opgate
from opgate.ops_build.ops.mish.cases import cases, large


@opgate.op("<T: f16|bf16|f32|f64> Mish(x: T[...]) -> (y: T[...])", "x tanh(ln(1 + exp(x))), elementwise.")
def mish(x):
    return np.where(np.isneginf(x), 0, x * np.tanh(np.logaddexp(0, x)))


@mish.formula
def _(x):  # tanh(ln(1 + e)) is n / (n + 2), in which nothing cancels
    low = -87 if x.dtype == np.float32 else -700
    e = np.exp(np.clip(x, low, 22))
    n = e * (e + 2)
    return np.where(x < low, 0, x) * (n / (n + 2))


mish.cases(cases)
mish.large(large)
