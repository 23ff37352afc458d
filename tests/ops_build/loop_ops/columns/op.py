import numpy as np

import opgate
from opgate import Case


@opgate.op(
    "<T: f32|f64> Columns(x: T[...,c], scale?: T[c]; power: float=1, absolute: bool=false) -> (y: T[...,c], top?: T[...])",
    "Powers of scaled columns, and the greatest of each row.",
)
def columns(x, scale, *, power, absolute):
    y = x if scale is None else x * scale
    y = np.exp(power * np.log(np.abs(y) + 1)) * (1 if absolute else np.sign(y))
    return y, y.max(-1) if y.size else np.zeros(y.shape[:-1])


@columns.loop(rows="x_size / max(c, 1)")
def _(begin, end, x, scale, power, absolute, y, top, c):
    for i in range(begin, end):
        for j in range(c):
            v = x[i, j] * scale[j] if scale.size else x[i, j]
            sign = 1.0 if absolute else np.sign(v)
            y[i, j] = np.exp(power * np.log(np.abs(v) + 1)) * sign
            if top.size:
                top[i] = y[i, 0] if j == 0 else max(top[i], y[i, j])


@columns.cases
def _(types):
    rng = np.random.default_rng(0)
    for shape in ((0, 3), (4, 1), (2, 3, 65)):
        x, scale = rng.standard_normal(shape).astype(types["T"]), rng.uniform(1, 2, shape[-1]).astype(types["T"])
        yield Case(f"{list(shape)}", {"x": x}, {"power": 0.5})
        yield Case(f"{list(shape)} scaled", {"x": x, "scale": scale}, {"absolute": True})
