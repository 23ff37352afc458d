import numpy as np

import opgate


@opgate.op("<T: i8|u8|i32|i64|f16|f32> WholePower(x: T[...]; n: int=3) -> (y: T[...])", "x^n + 2^n - round(x).")
def whole_power(x, *, n):
    return np.power(x, np.asarray(n, x.dtype)) + 2**n - np.round(x)


@whole_power.formula
def _(x, *, n):
    return x**n + 2**n - round(x)


@whole_power.check
def _(*, n):
    return {"n": ((n >= 0) & (n < 6), "a power from 0 to 5")}
