"""The functions of formulas that take integers, each as an output."""

import numpy as np

import opgate
from opgate.ops_build.case import Case

NAMES = ["add", "subtract", "multiply", "floor_divide", "remainder", "minimum", "maximum"]
OUTPUTS = ", ".join(
    f"{name}: T[...]" for name in [*NAMES, "negative", "absolute", "square", "sign", "limited", "chosen"]
)
SIGNATURE = f"<T: i8|u8|i32|i64> OfIntegers(a: T[...], b: T[...]; k: int=3, twice: bool=false) -> ({OUTPUTS})"


@opgate.op(SIGNATURE, "Functions of integers.")
def of_integers(a, b, *, k, twice):
    results = [getattr(np, name)(a, b) for name in NAMES]
    chosen = a * 2 if twice else np.where((a > b) & (b != 0), a // 2, b % 7)
    return (*results, -a, abs(a), np.square(a), np.sign(a), np.clip(a, 1, k), chosen)


of_integers.formula()


@of_integers.cases
def cases(types):
    limits = np.iinfo(types["T"])
    rng = np.random.default_rng(5)
    odd = np.array([0, 1, 2, 7, limits.max, limits.max - 1, limits.min, limits.min + 1], types["T"])
    grid = np.meshgrid(odd, odd)
    yield Case("odd", {"a": grid[0].ravel(), "b": grid[1].ravel()})
    a, b = rng.integers(limits.min, limits.max, (2, 1000), types["T"], endpoint=True)
    yield Case("random", {"a": a, "b": b}, {"k": 100, "twice": True})
    if types["T"] == np.int8:
        yield Case("beyond", {"a": a, "b": b}, {"k": 300}, error="attribute 'k': expected .* -128..127, got 300")
