import numpy as np

import opgate
from opgate import Case


@opgate.op("ExprDims(x: f32[...,n], k: const i64[]) -> (y: f32[...,n*2,k], found: i32[v<=n+k, 2])", "Sizes.")
def expr_dims(x, k):
    y = np.broadcast_to(np.concatenate([x, x], -1)[..., None], (*x.shape[:-1], 2 * x.shape[-1], int(k)))
    return y, np.ones((int(k), 2))


@expr_dims.cases
def _(types):
    yield Case("small", {"x": np.arange(6, dtype="f4").reshape(1, 2, 3), "k": np.array(2)})
    yield Case("none", {"x": np.arange(6, dtype="f4").reshape(1, 2, 3), "k": np.array(0)})
