import numpy as np

import opgate


@opgate.op("<T: f16|bf16|f32|i32> ClampAdd(a: T[...], b: T[...]; high: int=100) -> (y: T[...])", "min(a + b, high).")
def clamp_add(a, b, *, high):
    return np.minimum(a + b, high).astype(a.dtype)
