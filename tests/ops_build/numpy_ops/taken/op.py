import numpy as np

import opgate
from opgate import Case


@opgate.op(
    "<T: i8|u8|bool|i64|f64> Taken(x: T[n], k: const i64[]; backwards: bool=false, edges: float[2]=[0, 1]) -> (y: T[k])",
    "k elements of x, evenly from one part of it.",
)
def taken(x, k, *, backwards, edges):
    begin, end = (edge * (len(x) - 1) for edge in edges)
    places = np.rint(np.linspace(begin, end, int(k))).astype(int)
    return x[places[::-1] if backwards else places]


@taken.check
def _(edges):
    return {"edges": (0 <= edges[0] <= edges[1] <= 1, "two numbers from 0 to 1, the lesser first")}


@taken.cases
def _(types):
    x = np.arange(20).astype(types["T"])
    for k in (0, 1, 7):
        yield Case(f"{k} of 20", {"x": x, "k": np.array(k)}, {"backwards": k == 7, "edges": [0.25, 0.5]})
    yield Case(
        "beyond the end", {"x": x, "k": np.array(2)}, {"edges": [0.5, 2.0]}, error="edges.*two numbers from 0 to 1"
    )
