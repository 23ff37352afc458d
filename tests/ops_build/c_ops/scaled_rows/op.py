import numpy as np

import opgate
from opgate import Case


@opgate.op("<T: f32|f64> ScaledRows(x: T[n,c], scale?: T[c]; by: float=1, ends: int[2]=[0, 0]) -> (y: T[n,c])", "In C.")
def scaled_rows(x, scale, *, by, ends):
    return x * by if scale is None else x * by * scale


scaled_rows.c_kernel("scaled_rows")


@scaled_rows.check
def _(by):
    return {"by": (by >= 0, "a number that is not negative")}


@scaled_rows.gradient
def _(grad_y, x, scale, *, by):
    if scale is None:
        return grad_y * by, None
    return grad_y * by * scale, (grad_y * x).sum(0) * by


@scaled_rows.cases
def _(types):
    rng = np.random.default_rng(0)
    for n, c in ((0, 3), (3, 0), (4, 5), (300, 7)):
        x, scale = rng.standard_normal((n, c)).astype(types["T"]), rng.uniform(1, 2, c).astype(types["T"])
        yield Case(f"{n} x {c}", {"x": x}, {"by": 2.0})
        yield Case(f"{n} x {c} scaled", {"x": x, "scale": scale}, {"ends": [1, 2]})
    yield Case(
        "a negative number", {"x": x}, {"by": -1.0}, error="attribute 'by': expected a number that is not negative"
    )
