import numpy as np

import opgate
from opgate import Case


@opgate.op("ZeroIn(; n: int, value: float=1) -> (y: f32[n])", "Constant.")
def zero_in(*, n, value):
    return np.full(n, value)


@zero_in.cases
def _(types):
    yield Case("three", {}, {"n": 3})
