"""Every function of formulas that takes two numbers, each as an output."""

import itertools

import numpy as np

import opgate
from opgate.ops_build.case import Case

NAMES = [
    *("add", "subtract", "multiply", "divide", "floor_divide", "remainder", "minimum", "maximum", "power", "logaddexp"),
    *("hypot", "arctan2", "copysign"),
]
TESTS = ["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"]
ODD = [0.0, -0.0, 1.0, -1.0, 2.0, -3.0, 0.5, np.inf, -np.inf, np.nan]
OUTPUTS = ", ".join(f"{name}: T[...]" for name in [*NAMES, *TESTS, "limited", "swapped"])


@opgate.op(f"<T: f32|f64> EveryFunctionOfTwo(a: T[...], b: T[...]; k: float=0.3) -> ({OUTPUTS})", "Functions of two.")
def every_function_of_two(a, b, *, k):
    tests = [np.where(getattr(np, name)(a, b), 1.0, 0.0) for name in TESTS]
    return (*(getattr(np, name)(a, b) for name in NAMES), *tests, np.maximum(a, k), np.minimum(2 * k, b) - k / 3)


every_function_of_two.formula()


@every_function_of_two.cases
def cases(types):
    rng = np.random.default_rng(4)
    close = (2e-6, 5e-7) if types["T"] == np.float32 else (1e-13, 1e-15)
    a, b = np.array(list(itertools.product(ODD, ODD))).T.astype(types["T"])
    yield Case("odd", {"a": a, "b": b}, tolerance=close)
    for scale in (1, 10):
        a, b = (scale * rng.standard_normal((2, 2000))).astype(types["T"])
        yield Case(f"scale {scale}", {"a": a, "b": b}, {"k": 1.7}, tolerance=close)
