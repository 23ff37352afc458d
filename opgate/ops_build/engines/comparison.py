"""Compares the outputs of an op with those of its reference."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.op_table import Op

#: (rtol, atol) by dtype, for cases without a tolerance: a few units in the last place for values of about 1.
TOLERANCES: Mapping[str, tuple[float, float]] = {
    "f16": (2e-3, 1e-3),
    "bf16": (1.6e-2, 1e-2),
    "f32": (1e-5, 1e-6),
    "f64": (1e-12, 1e-12),
}


def tolerance(case: Case, output: str, dtype: str) -> tuple[float, float]:
    """Returns (rtol, atol) for an output of a case."""
    default = TOLERANCES.get(dtype, (0.0, 0.0))
    if case.tolerance is None:
        return default
    if isinstance(case.tolerance, Mapping):
        return case.tolerance.get(output, default)
    return case.tolerance


def difference(actual: Array, expected: Array, tolerance: tuple[float, float]) -> str | None:
    """Returns a text that describes how `actual` differs from `expected`, or None if it doesn't differ.

    An element differs if |actual - expected| > atol + rtol |expected|. NaN equals NaN, and anything an element that
    `expected` masks. Shapes and dtypes must be equal,
    but bf16 may come as another dtype.
    """
    if actual.shape != expected.shape:
        return f"expected shape {list(expected.shape)}, got {list(actual.shape)}"
    if expected.dtype.kind in "OUS" or actual.dtype.kind in "OUS":
        wrong = np.flatnonzero(actual.ravel() != expected.ravel())
        return None if wrong.size == 0 else f"{wrong.size} strings differ, first at {wrong[0]}"
    if actual.dtype != expected.dtype and expected.dtype.name != "bfloat16":
        return f"expected dtype {expected.dtype}, got {actual.dtype}"
    rtol, atol = tolerance
    a, e = actual.astype(np.float64), np.ma.getdata(expected).astype(np.float64)
    if expected.dtype.kind in "iub" and rtol == atol == 0:  # a double doesn't hold every i64
        close = actual == expected
    else:
        with np.errstate(invalid="ignore"):
            close = np.isclose(a, e, rtol=rtol, atol=atol, equal_nan=True)
    close = np.asarray(close) | np.ma.getmaskarray(expected)
    if close.all():
        return None
    positions = np.argwhere(~close)
    first = tuple(int(i) for i in positions[0])
    with np.errstate(invalid="ignore"):
        worst = np.nanmax(np.abs(a - e))
    return (
        f"{len(positions)} of {a.size} elements differ, first at {list(first)}: "
        f"expected {e[first]:.9g}, got {a[first]:.9g}; largest difference {worst:.3g} (rtol {rtol:g}, atol {atol:g})"
    )


def assert_same_with_constants(
    op: Op, case: Case, types: Mapping[str, str], outputs: Mapping[str, Array], again: Mapping[str, Array]
) -> None:
    """Raises AssertionError if a second run, with all inputs but the first as constants of the model, gave something
    else."""
    for tensor in op.outputs:
        allowed = tolerance(case, tensor.name, types.get(tensor.type, tensor.type))
        failure = difference(again[tensor.name], outputs[tensor.name], allowed)
        assert failure is None, f"output '{tensor.name}' with constant inputs: {failure}"
