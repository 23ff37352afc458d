import numpy as np

import opgate
from opgate import Case


@opgate.op(
    "<T: f32|f64> RowScale(x: T[n,c], scale: T[c], bias?: T[c]; power: float=1) -> (y: T[n,c], total: T[n])",
    "Scales columns.",
)
def row_scale(x, scale, bias, *, power):
    y = x * scale**power
    if bias is not None:
        y = y + bias
    return y, y.sum(1)


@row_scale.gradient
def _(grad_y, grad_total, x, scale, bias, *, power):
    g = grad_y + grad_total[:, None]
    return g * scale**power, (g * x).sum(0) * power * scale ** (power - 1), None if bias is None else g.sum(0)


@row_scale.cases
def _(types):
    rng = np.random.default_rng(0)
    for n, c in ((0, 3), (4, 5), (100, 7)):
        x, scale = rng.standard_normal((n, c)).astype(types["T"]), rng.uniform(1, 2, c).astype(types["T"])
        yield Case(f"{n} x {c}", {"x": x, "scale": scale}, {"power": 2.0})
        yield Case(f"{n} x {c} with bias", {"x": x, "scale": scale, "bias": scale})
