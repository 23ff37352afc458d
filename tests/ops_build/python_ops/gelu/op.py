import numpy as np

import opgate
from opgate.ops_build.ops.gelu.cases import cases, large

SIGNATURE = "<T: f16|bf16|f32|f64> Gelu(x: T[...]; approximate: {none|tanh}=none) -> (y: T[...])"


@opgate.op(SIGNATURE, "x times the normal distribution's share below x, or an approximation with tanh.")
def gelu(x, *, approximate):
    if approximate == "none":
        return x * opgate.normal_cdf(x)
    held = np.clip(x, -1e9, 1e9)  # its cube overflows in no dtype
    return x * opgate.sigmoid(2 * np.sqrt(2 / np.pi) * (held + 0.044715 * held**3))


gelu.formula()
gelu.cases(cases)
gelu.large(large)
