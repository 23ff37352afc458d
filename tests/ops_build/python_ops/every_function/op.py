"""Every function of formulas that takes one number, each as an output."""

import numpy as np

import opgate
from opgate.ops_build.case import Case

NAMES = [
    *("negative", "absolute", "square", "sign", "floor", "ceil", "trunc", "rint", "sqrt", "cbrt", "exp", "exp2"),
    *("expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh"),
    *("tanh", "arcsinh", "arccosh", "arctanh", "reciprocal"),
]
OWN = [opgate.sigmoid, opgate.gaussian, opgate.erf, opgate.normal_cdf]
ODD = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    -2.5,
    88.0,
    -87.5,
    100.0,
    -104.5,
    1e-30,
    -1e-4,
    3e4,
    np.inf,
    -np.inf,
    np.nan,
]
OUTPUTS = [*NAMES, *(each.__name__ for each in OWN), "power3", "root", "inverse", "clipped", "softplus", "odd"]
SIGNATURE = f"<T: f16|bf16|f32|f64> EveryFunction(x: T[...]) -> ({', '.join(f'{name}: T[...]' for name in OUTPUTS)})"


@opgate.op(SIGNATURE, "Every function of one number.")
def every_function(x):
    called = [getattr(np, name)(x) for name in NAMES] + [each(x) for each in OWN]
    composed = [x**3, x**0.5, x**-2, x.clip(-1, 2), np.logaddexp(0, x)]
    odd = np.where(np.isnan(x) | np.isinf(x) | ~(x > -1), -1.0, np.where(np.isfinite(x) & (x != 1), 2.0, 3.0))
    return (*called, *composed, odd)


every_function.formula()


@every_function.cases
def cases(types):
    rng = np.random.default_rng(3)
    # sin and the like of numbers with few digits behind the point are as exact as those numbers.
    loose = {"f4": (8e-6, 1e-37), "f8": (2e-12, 1e-300)}.get(types["T"].str[1:], (2e-2, 1e-2))
    yield Case("odd", {"x": np.array(ODD).astype(types["T"])}, tolerance=loose)
    for scale in (0.1, 1, 20):
        yield Case(f"scale {scale}", {"x": (scale * rng.standard_normal(2000)).astype(types["T"])}, tolerance=loose)
