"""The gradient of a formula in NumPy, held to differences of the function of the op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.op_table import Op
from opgate.ops_build.python_ops import layout
from opgate.ops_build.python_ops.derivative import evaluated
from opgate.ops_build.python_ops.differences import MOST_TRIED, beside_steps, check_gradient, check_row_gradient
from opgate.ops_build.python_ops.formula_source import Choice
from opgate.ops_build.python_ops.python_op import PythonOp
from opgate.ops_build.python_ops.trials import of_whole_tensors, rounded


def gradient_reference(
    op: Op, python: PythonOp, backward: Op, choices: Sequence[Choice], *, checked: bool = True
) -> Callable[..., Any]:
    """Returns the gradient `backward` of an op in NumPy. If `checked`, what it computes is held to differences of the
    op, and it raises ValueError if they differ."""

    def compute(*inputs: Any, **attributes: Any) -> Any:
        values = {tensor.name: array for tensor, array in zip(backward.inputs, inputs, strict=True)}
        choice = next(c for c in choices if all(attributes[name] == value for name, value in c.when.items()))
        dtype = values[backward.inputs[0].name].dtype
        # Where the formula overflows in the dtype, its value is what the dtype gives.
        results = choice.results.get(dtype.name) or choice.results["float64"]
        wide = {name: array.astype(np.float64) for name, array in values.items()}

        def of_arrays(arrays: Mapping[str, Array]) -> list[Array]:
            known = {**layout.with_last_axis(backward, arrays), **attributes}
            columns = layout.rows_of(backward, arrays)[1]
            return layout.as_outputs(backward, arrays, evaluated(results, known, columns))

        exact = of_arrays(wide)
        if checked and not python.surrogate:
            rows = layout.columns_of(backward) is not None
            tried = layout.few_rows(backward, wide, MOST_TRIED) if rows else values
            slopes = of_arrays(tried) if rows else exact
            named = {output.name: slope for output, slope in zip(backward.outputs, slopes, strict=True)}
            (check_row_gradient if rows else check_gradient)(op, python.function, tried, attributes, named)
        held = of_arrays(values)
        arrays = [np.where(np.isfinite(a) | ~np.isfinite(b), b, a) for a, b in zip(held, exact, strict=True)]
        unsure = beside_steps(of_arrays, wide, dtype, exact)
        return tuple(np.ma.masked_array(a, mask) for a, mask in zip(arrays, unsure, strict=True))

    return rounded(backward, of_whole_tensors(backward, compute), wide=False)
