import numpy as np

import opgate
from opgate import Case


@opgate.op("RunLengths(x: i32[n]) -> (value: i32[r<=n], count?: i64[r])", "Run-length encoding, in C.")
def run_lengths(x):
    begins = np.flatnonzero(np.concatenate([[True], x[1:] != x[:-1]])) if x.size else np.empty(0, np.int64)
    return x[begins], np.diff(np.append(begins, x.size))


run_lengths.c_kernel("run_lengths")


@run_lengths.cases
def _(types):
    rng = np.random.default_rng(0)
    for n in (0, 1, 2, 1000):
        yield Case(f"{n} elements", {"x": rng.integers(0, 3, n).astype(np.int32)})
    yield Case(
        "a negative number", {"x": np.array([1, -1], np.int32)}, error="expected numbers that are not negative, got -1"
    )
