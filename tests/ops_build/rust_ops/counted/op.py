import numpy as np

import opgate
from opgate import Case


@opgate.op("Counted(x: u8[n]; most: int=255) -> (count: i64[256])", "How often each byte comes, in Rust.")
def counted(x, *, most):
    return np.bincount(x[x <= most], minlength=256).astype(np.int64)


counted.c_kernel("counted")


@counted.cases
def _(types):
    rng = np.random.default_rng(0)
    for n in (0, 1, 10_000):
        yield Case(f"{n} bytes", {"x": rng.integers(0, 256, n).astype(np.uint8)}, {"most": 200})
