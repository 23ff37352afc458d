import numpy as np

import opgate
from opgate import Case


@opgate.op(
    "Casts(x: f16[n], y: bf16[n]; k: int[]=[], r: float[2]=[0.5, 2], b: bool[]=[]) -> (a: f16[n], b2: i32[n], c: bf16[n], d: bool[n])",
    "Casts.",
)
def casts(x, y, *, k, r, b):
    assert x.dtype == np.float32 and isinstance(k, list) and r == [0.5, 2.0] and b == [True, False]
    return x * 2, np.arange(len(x)) + len(k), y, x > y


@casts.cases
def _(types):
    import ml_dtypes

    yield Case(
        "three",
        {"x": np.array([1, 2, 3], "f2"), "y": np.array([3, 2, 1], ml_dtypes.bfloat16)},
        {"k": [1, 2, 3], "b": [True, False]},
    )
