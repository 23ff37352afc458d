import numpy as np

import opgate
from opgate import Case


@opgate.op("<T: i32|i64|f32> Runs(x: T[n]) -> (value: T[r<=n], count: i64[r])", "Run-length encoding.")
def runs(x):
    begins = np.flatnonzero(np.concatenate([[True], x[1:] != x[:-1]])) if x.size else np.empty(0, np.int64)
    return x[begins], np.diff(np.append(begins, x.size))


@runs.cases
def _(types):
    rng = np.random.default_rng(0)
    for n in (0, 1, 2, 1000):
        yield Case(f"{n} elements", {"x": rng.integers(0, 3, n).astype(types["T"])})
