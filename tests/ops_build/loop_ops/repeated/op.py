import numpy as np

import opgate
from opgate import Case


@opgate.op("<T: u8|i32|f32> Repeated(value: T[n], count: i64[n]; most: int) -> (y: T[r<=most])", "Decodes run lengths.")
def repeated(value, count, *, most):
    return np.repeat(value, count)[:most]


@repeated.loop(rows="1")
def _(begin, end, value, count, y, r, most):
    at = 0
    for i in range(value.shape[0]):
        length = min(count[i], most - at)
        y[at : at + length] = value[i]
        at += length
    r[0] = at


@repeated.check
def _(most):
    return {"most": (most <= 10**9, "at most 10**9")}


@repeated.cases
def _(types):
    rng = np.random.default_rng(0)
    for n in (0, 1, 200):
        value, count = rng.integers(0, 9, n).astype(types["T"]), rng.integers(0, 5, n)
        yield Case(f"{n} runs", {"value": value, "count": count}, {"most": 300})
    yield Case("too many", {"value": value, "count": count}, {"most": 2**40}, error="'most': expected at most")
