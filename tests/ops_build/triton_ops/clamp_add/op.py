import numpy as np
import triton
import triton.language as tl

import opgate


@opgate.op("<T: f16|f32|i32> ClampAdd(a: T[...], b: T[...]; high: int=100) -> (y: T[...])", "min(a + b, high).")
def clamp_add(a, b, *, high):
    return np.minimum(a + b, high)


clamp_add.formula()


@clamp_add.triton(grid="ceildiv(y_size, BLOCK)", BLOCK=1024)
@triton.jit
def clamp_add_kernel(a, b, y, y_size, high, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < y_size
    total = tl.load(a + at, mask=inside) + tl.load(b + at, mask=inside)
    tl.store(y + at, tl.minimum(total, high.to(total.dtype), propagate_nan=tl.PropagateNan.ALL), mask=inside)
