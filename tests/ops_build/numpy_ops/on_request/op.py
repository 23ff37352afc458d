import numpy as np

import opgate
from opgate import Case


@opgate.op("OnRequest(x: f32[n]) -> (y: f32[n], half?: f32[n], more??: f32[n])", "Optional outputs.")
def on_request(x):
    return x, x / 2, x[::-1]


@on_request.cases
def _(types):
    yield Case("three", {"x": np.arange(3, dtype="f4")})
