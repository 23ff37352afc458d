import numpy as np

import opgate
from opgate.ops_build.ops.clamped_relu.cases import cases, large


@opgate.op("<T: f16|bf16|f32|f64> ClampedRelu(x: T[...]; ceiling: float=6) -> (y: T[...])", "min(max(x, 0), ceiling).")
def clamped_relu(x, *, ceiling):
    return np.clip(x, 0, ceiling)


clamped_relu.formula()
clamped_relu.cases(cases)
clamped_relu.large(large)
