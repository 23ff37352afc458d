import numpy as np

import opgate
from opgate.ops_build.ops.leaky_relu.cases import cases, large


@opgate.op("<T: f16|bf16|f32|f64> LeakyRelu(x: T[...]; alpha: float=0.01) -> (y: T[...])", "x, or alpha x below 0.")
def leaky_relu(x, *, alpha):
    return np.where(x < 0, alpha * x, x)


leaky_relu.formula()
leaky_relu.cases(cases)
leaky_relu.large(large)
