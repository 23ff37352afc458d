import numpy as np

import opgate
from opgate import Case


@opgate.op("<T: f32|f64> Nearest(x: T[n,c], table: T[m,c]) -> (row: i32[n], distance: T[n])", "The nearest row.")
def nearest(x, table):
    distance = np.square(x[:, None] - table[None]).sum(-1)
    return distance.argmin(1).astype(np.int32), distance.min(1)


@nearest.loop(rows="n", grain=16, fastmath={"reassoc", "contract", "nsz"})
def _(begin, end, x, table, row, distance):
    for i in range(begin, end):
        best, at = np.inf, -1
        for j in range(table.shape[0]):
            total = x.dtype.type(0)
            for k in range(table.shape[1]):
                step = x[i, k] - table[j, k]
                total += step * step
            if total < best:
                best, at = total, j
        row[i], distance[i] = at, best


@nearest.cases
def _(types):
    rng = np.random.default_rng(0)
    for n, m, c in ((0, 3, 2), (1, 1, 1), (100, 70, 3), (33, 50, 64)):
        tables = (rng.standard_normal((rows, c)).astype(types["T"]) for rows in (n, m))
        yield Case(f"{n} of {m} x {c}", dict(zip(("x", "table"), tables, strict=True)), tolerance=(1e-4, 1e-5))
