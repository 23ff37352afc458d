import os
import time

import numpy as np

import opgate
from opgate import Case

kept = []


@opgate.op(
    "Risky(x: f32[n]; what: {add|raise|refuse|shape|keep|write|exit|none|two|texts|cycle|abort|loop}=add) -> (y: f32[n])"
)
def risky(x, *, what):
    """Adds 1, or goes wrong."""
    if what == "raise":
        return helper(x)
    if what == "refuse":
        raise opgate.InvalidArgument(f"x is too small: {x.min()}")
    if what == "shape":
        return x[:1]
    if what == "keep":
        kept.append(x[1:])
    if what == "write":
        x[0] = 1
    if what == "exit":
        raise SystemExit(3)
    if what == "none":
        return None
    if what == "two":
        return x, x
    if what == "texts":
        return np.array(["a"] * len(x))
    if what == "cycle":
        cycle = [x]
        cycle.append(cycle)
    if what == "abort":
        os.abort()
    if what == "loop":
        time.sleep(3600)
    return x + 1


def helper(x):
    return 1 // 0


@risky.cases
def _(types):
    yield Case("adds", {"x": np.ones(3, np.float32)})
