import numpy as np

import opgate
from opgate.ops_build.ops.asinh.cases import cases, large


@opgate.op("<T: f16|bf16|f32|f64> Asinh(x: T[...]) -> (y: T[...])", "The inverse of sinh, elementwise.")
def asinh(x):
    return np.arcsinh(x)


asinh.formula()
asinh.cases(cases)
asinh.large(large)
