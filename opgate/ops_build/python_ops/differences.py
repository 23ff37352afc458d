"""Holds a gradient to differences of the function that it is the gradient of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from opgate.ops_build.case import Array
from opgate.ops_build.op_gradients import inputs_of
from opgate.ops_build.op_table import Attribute, Input, Op, Output
from opgate.ops_build.python_ops import layout
from opgate.ops_build.python_ops.expression import Over

#: A difference is taken over so much of a number, or of 1 if it is less than 1: the error of f64 divided by it is about
#: its square.
_STEP = 6e-6
#: How far a gradient may be from the differences, relative to the greater of both or of 1.
_TOLERANCE = 1e-4
#: A step is at least so high, relative to the result or to 1.
_STEP_AT_LEAST = 1e-3
#: No more elements than these are tried: the function is called twice for each input.
MOST_TRIED = 4096
#: Of a row, no more columns than these are tried, twice each.
_COLUMNS = 12


def check_gradient(
    op: Op,
    function: Callable[..., Any],
    values: Mapping[str, Array],
    attributes: Mapping[str, Any],
    gradients: Mapping[str, Array],
) -> None:
    """Raises ValueError, with the place and both numbers, where a gradient isn't the slope of the function.

    `values` are the inputs of the gradient in f64, elementwise. Elements are left out whose differences to both sides
    aren't one number: the function has no slope there, or none that f64 shows. So are all if the gradient takes not all
    inputs, for the function needs them.
    """
    names = [tensor.name for tensor in op.inputs]
    if any(name not in values for name in names):
        return
    inputs = {name: values[name].reshape(-1)[:MOST_TRIED].astype(np.float64) for name in names}
    size = next(iter(inputs.values())).size
    # An output whose gradient is not taken has no slope anywhere.
    taken = [values.get(f"grad_{output.name}", np.zeros(size)) for output in op.outputs]
    of_outputs = [gradient.reshape(-1)[:MOST_TRIED] for gradient in taken]
    own = {each.name: attributes.get(each.name, _any_value(each)) for each in op.attributes}

    def total(changed: Mapping[str, Array]) -> list[Array]:
        results = function(*(changed[name] for name in names), **own)
        arrays = results if isinstance(results, tuple) else (results,)
        return [np.broadcast_to(np.asarray(array, np.float64), (size,)) for array in arrays]

    with np.errstate(all="ignore"):
        here = total(inputs)
        for name, gradient in gradients.items():
            differences = np.zeros((2, len(here), here[0].size))
            for changed in inputs_of(name, names):
                step = _STEP * np.maximum(1, np.abs(inputs[changed]))
                for side, sign in enumerate((1, -1)):
                    moved = inputs[changed] + sign * step
                    there = total({**inputs, changed: moved})
                    differences[side] = [(b - a) / (moved - inputs[changed]) for a, b in zip(here, there, strict=True)]
                slopes = differences.mean(0)
                close = np.abs(differences[0] - differences[1]) <= _TOLERANCE / 2 * np.maximum(1, np.abs(slopes))
                expected = sum(g * slope for g, slope in zip(of_outputs, slopes, strict=True))
                given = gradient.reshape(-1)[:MOST_TRIED]
                scale = np.maximum(1, np.maximum(np.abs(expected), np.abs(given)))
                known = close.all(0) & np.isfinite(expected)
                wrong = np.flatnonzero(known & ~(np.abs(given - expected) <= _TOLERANCE * scale))
                if wrong.size:
                    at = int(wrong[0])
                    place = ", ".join(f"{n} = {inputs[n][at]:.9g}" for n in names)
                    raise ValueError(
                        f"the gradient of '{changed}' is no slope of {op.name}: at {place} it is {given[at]:.9g}, and "
                        f"differences give {expected[at]:.9g}"
                    )


def check_directions(
    op: Op,
    function: Callable[..., Any],
    values: Mapping[str, Any],
    attributes: Mapping[str, Any],
    gradients: Mapping[str, Array],
) -> None:
    """Raises ValueError, with both numbers, where a gradient isn't the slope of a function of whole tensors.

    `values` are the inputs of the gradient in f64. Each input moves in a random direction: the change of all outputs,
    weighted with their gradients, is the gradient times the direction. Nothing is tried if the gradient takes not all
    inputs, for the function needs them, or if a number is not finite.
    """
    names = [tensor.name for tensor in op.inputs]
    present = {name: values[name] for name in names if values.get(name) is not None}
    if any(name not in values for name in names):
        return
    own = {each.name: attributes.get(each.name, _any_value(each)) for each in op.attributes}

    def total(changed: Mapping[str, Array]) -> float:
        results = function(*(changed.get(name) for name in names), **own)
        arrays = results if isinstance(results, tuple) else (results,)
        weighted = zip(op.outputs, arrays, strict=True)
        parts = [np.sum(values[f"grad_{o.name}"] * a) for o, a in weighted if f"grad_{o.name}" in values]
        return float(np.sum(parts))

    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        here = total(present)
        for output, gradient in gradients.items():
            name = output.removeprefix("grad_")
            if name not in present:
                continue
            array = np.asarray(present[name], np.float64)
            direction = rng.choice((-1.0, 1.0), array.shape) * np.maximum(1, np.abs(array))
            ends = [total({**present, name: array + sign * _STEP * direction}) for sign in (1, -1)]
            products = np.asarray(gradient) * direction
            expected, given = (ends[0] - ends[1]) / (2 * _STEP), float(np.sum(products))
            sides = [(ends[0] - here) / _STEP, (here - ends[1]) / _STEP]
            scale = max(1.0, float(np.sum(np.abs(products))))
            has_slope = abs(sides[0] - sides[1]) <= _TOLERANCE / 2 * max(scale, abs(expected))
            if np.isfinite(expected) and has_slope and not abs(expected - given) <= _TOLERANCE * scale:
                raise ValueError(
                    f"the gradient of '{name}' is no slope of {op.name}: in a random direction it gives {given:.9g}, "
                    f"and differences give {expected:.9g}"
                )


def check_row_gradient(
    op: Op,
    function: Callable[..., Any],
    values: Mapping[str, Array],
    attributes: Mapping[str, Any],
    gradients: Mapping[str, Array],
) -> None:
    """The same for an op over rows, of f64 tensors with few rows. The column of an input is moved in all rows at once,
    and the change of the outputs, times their gradients, is added up over each row, or over all rows for an input that
    has one number for each column. Inputs that the gradient doesn't take have any numbers."""
    names = [tensor.name for tensor in op.inputs]
    missing = [name for name in names if name not in values]
    if missing and any(output.name in values for output in op.outputs):
        return  # the outputs are those of inputs that nobody knows here
    tensors: list[Input | Output] = [*op.inputs, *op.outputs]
    names_of_elements = [tensor.name for tensor in tensors if layout.over(op, tensor) == Over.ELEMENT]
    found = [values[n] for name in names_of_elements for n in (name, f"grad_{name}") if n in values]
    if missing and not found:
        return
    # What a gradient doesn't take it doesn't depend on.
    rng, of_shape = np.random.default_rng(2), layout.input_shapes(op, found[0].shape if found else ())
    inputs = {name: values[name] if name in values else rng.standard_normal(of_shape[name]) for name in names}
    own = {each.name: attributes.get(each.name, _any_value(each)) for each in op.attributes}
    shapes = layout.shapes(op, inputs)
    of_outputs = [values.get(f"grad_{t.name}", np.zeros(shape)) for t, shape in zip(op.outputs, shapes, strict=True)]
    count = layout.rows_of(op, inputs)[0][0] if inputs and layout.rows_of(op, inputs)[0] else 1
    if count == 0 or any(array.size == 0 for array in inputs.values()):
        return

    def results(changed: Mapping[str, Array]) -> list[Array]:
        computed = function(*(changed[name] for name in names), **own)
        arrays = computed if isinstance(computed, tuple) else (computed,)
        return [np.broadcast_to(np.asarray(a, np.float64), shape) for a, shape in zip(arrays, shapes, strict=True)]

    with np.errstate(all="ignore"):
        here = results(inputs)
        for name, gradient in gradients.items():
            for changed in inputs_of(name, names):
                tensor = next(tensor for tensor in op.inputs if tensor.name == changed)
                of_columns = layout.over(op, tensor)
                last = inputs[changed].shape[-1] if Over.COLUMN in of_columns else 1
                for column in np.unique(np.linspace(0, last - 1, _COLUMNS).astype(int)):
                    at = (..., column) if Over.COLUMN in of_columns else (...,)
                    sides = []
                    for sign in (1, -1):
                        moved = inputs[changed].copy()
                        moved[at] += sign * _STEP * np.maximum(1, np.abs(moved[at]))
                        step = np.asarray(moved[at] - inputs[changed][at]).reshape(-1)
                        there = results({**inputs, changed: moved})
                        change = sum(
                            (g * (b - a)).reshape(count, -1).sum(1)
                            for g, a, b in zip(of_outputs, here, there, strict=True)
                        )
                        sides.append((change.sum(keepdims=True) if of_columns == Over.COLUMN else change) / step)
                    expected = (sides[0] + sides[1]) / 2
                    given = np.asarray(gradient[at]).reshape(-1)
                    close = np.abs(sides[0] - sides[1]) <= _TOLERANCE / 2 * np.maximum(1, np.abs(expected))
                    scale = np.maximum(1, np.maximum(np.abs(expected), np.abs(given)))
                    known = close & np.isfinite(expected)
                    wrong = np.flatnonzero(known & ~(np.abs(given - expected) <= _TOLERANCE * scale))
                    if wrong.size:
                        row = int(wrong[0])
                        raise ValueError(
                            f"the gradient of '{changed}' is no slope of {op.name}: in row {row}, column {column} it "
                            f"is {given[row]:.9g}, and differences give {expected[row]:.9g}"
                        )


def _any_value(attribute: Attribute) -> Any:
    """Returns a value of an attribute that a gradient doesn't depend on."""
    if not attribute.required:
        return attribute.default
    value: Any = attribute.choices[0] if attribute.choices else {"int": 1, "float": 0.5, "bool": False}[attribute.kind]
    return [value] * (attribute.length or 1) if attribute.list else value


def beside_steps(
    function: Callable[[Mapping[str, Array]], list[Any]],
    values: Mapping[str, Array],
    dtype: np.dtype[Any],
    results: Sequence[Array],
) -> list[Array]:
    """Returns where results of a function of elements are beside a step: where inputs that differ by a few rounding
    errors of `dtype` give something else. How a formula rounds there says which side an engine finds."""
    epsilon = 4 * float(np.finfo(dtype).eps)
    unsure = [np.zeros(result.shape, bool) for result in results]
    with np.errstate(all="ignore"):
        for signs in ((1, 1), (-1, -1), (1, -1), (-1, 1)):
            factors = [1 + sign * epsilon for sign in signs]
            moved = {name: array * factors[place % 2] for place, (name, array) in enumerate(values.items())}
            for place, (result, there) in enumerate(zip(results, function(moved), strict=True)):
                unsure[place] |= np.abs(there - result) > _STEP_AT_LEAST * np.maximum(1, np.abs(result))
    return unsure
