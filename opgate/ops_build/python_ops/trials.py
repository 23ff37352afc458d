"""How an op in Python is tried: its function as a reference, and the cases of an op that states none."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.engines.comparison import TOLERANCES
from opgate.ops_build.op_table import Attribute, Op
from opgate.ops_build.python_ops import layout

#: An op in Python has no more inputs.
MOST_INPUTS = 32
_Types = Mapping[str, "np.dtype[Any]"]
_HALVES = frozenset({DTYPES["f16"].numpy, DTYPES["bf16"].numpy})
_NARROW = _HALVES | {DTYPES["f32"].numpy}
_ODD = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0)


class WideArray(np.ndarray[Any, np.dtype[Any]]):
    """An array of float64 in place of one with fewer digits. Its `dtype` is that in which elements are computed, so
    that a function that asks for it does what its formula does."""

    computed = np.dtype(np.float32)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.computed


def rounded(op: Op, function: Callable[..., Any], *, wide: bool) -> Callable[..., Any]:
    """Returns a function of arrays by name that computes floats in float64, or floats of 16 bits in float32 if not
    `wide`, and gives outputs of the dtypes that the signature states."""

    def of_arrays(**values: Any) -> Any:
        types: dict[str, np.dtype[Any]] = {}
        given = []
        for tensor in op.inputs:
            value = values.pop(tensor.name, None)
            arrays = value if tensor.variadic else [value]
            if arrays[0] is not None:
                types.setdefault(tensor.type, np.asarray(arrays[0]).dtype)
            widened = [array if array is None else _widened(np.asarray(array), wide) for array in arrays]
            given.append(widened if tensor.variadic else widened[0])
        attributes = {each.name: _single(each, values.get(each.name, each.default)) for each in op.attributes}
        with np.errstate(all="ignore"):
            results = function(*given, **attributes)
            outputs = results if isinstance(results, tuple) else (results,)
            if len(outputs) != len(op.outputs):
                names = ", ".join(output.name for output in op.outputs)
                raise TypeError(f"expected {len(op.outputs)} arrays, {names}, got {len(outputs)}")
            return tuple(
                _as_output(output.name, array, types.get(output.type) or DTYPES[output.type].numpy)
                for array, output in zip(outputs, op.outputs, strict=True)
            )

    return of_arrays


def of_whole_tensors(op: Op, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that says of whole tensors what a formula says of elements or rows: a number is the same for
    all elements, and a row without columns has zeros."""
    if not usual(op):
        return function

    def compute(*given: Any, **attributes: Any) -> Any:
        named = {tensor.name: array for tensor, array in zip(op.inputs, given, strict=True)}
        shapes = layout.shapes(op, named)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of the mean of a row without columns
            try:
                results = function(*given, **attributes)
            except ValueError:  # NumPy has no maximum of a row without columns
                if any(0 not in shape for shape in shapes):
                    raise
                results = tuple(np.zeros(shape) for shape in shapes)
        outputs = results if isinstance(results, tuple) else (results,)
        if len(outputs) != len(shapes):
            return outputs
        return tuple(map(partial(_spread, op), outputs, shapes))

    return compute


def _spread(op: Op, array: Any, shape: tuple[int, ...]) -> Any:
    plain = _plain(array)
    return np.broadcast_to(plain, shape) if plain.shape != shape and (not op.elementwise or not plain.shape) else array


def _as_output(name: str, array: Any, dtype: np.dtype[Any]) -> Array:
    found = _plain(array)
    if found.dtype.kind not in "biufV" and dtype.kind != "O":
        raise TypeError(f"output '{name}': expected an array of numbers, got {array!r}")
    if dtype.kind in "iu" and found.dtype.kind == "f" and not np.array_equal(found, np.trunc(found)):
        place = np.flatnonzero(np.asarray(found != np.trunc(found)).ravel())[0]
        raise TypeError(
            f"output '{name}': expected integers, got {np.ravel(found)[place]}: round, or state a float dtype"
        )
    return found.astype(dtype, copy=False)


def _plain(array: Any) -> Array:
    """Returns an array as NumPy's own, or masked where it is."""
    if isinstance(array, np.ma.MaskedArray):
        return array
    return array.view(np.ndarray) if isinstance(array, np.ndarray) else np.asarray(array)


def _single(attribute: Attribute, value: Any) -> Any:
    """Returns the value of an attribute as engines have it: a float has single precision."""
    if attribute.kind != "float" or value is None:
        return value
    return [float(np.float32(each)) for each in value] if attribute.list else float(np.float32(value))


def _widened(array: Array, wide: bool) -> Array:
    if wide and array.dtype in _NARROW:
        return array.astype(np.float64).view(WideArray)
    return array.astype(np.float32) if array.dtype in _HALVES else array


def usual(op: Op) -> bool:
    """Returns whether an op is one of elements or rows, whose tensors are all required."""
    plain = not any(tensor.variadic or tensor.optional for tensor in op.inputs)
    return plain and (op.elementwise or (layout.columns_of(op) is not None and layout.has_rows(op)))


def usual_cases(op: Op, types: _Types, reference: Callable[..., Any]) -> Iterator[Case]:
    """Yields cases of an op of elements or rows: shapes, odd numbers, and each choice of an attribute."""
    rng = np.random.default_rng(0)
    rows = layout.columns_of(op) is not None

    def inputs(*shape: int) -> dict[str, Array]:
        shapes = layout.input_shapes(op, shape)
        return {t.name: _some(rng, shapes[t.name], types.get(t.type), t.type) for t in op.inputs}

    of_rows = [(1,), (7,), (2, 3, 64), (5, 1000), (2, 5000), (0, 5), (300, 33)]
    of_elements = [(), (0,), (1,), (7,), (2, 3, 4), (70_001,)]
    for shape in of_rows if rows else of_elements:
        yield Case(f"normal {list(shape)}", inputs(*shape))
    for attribute in op.attributes:
        for value in attribute.choices or ((True, False) if attribute.kind == "bool" else ()):
            if value != attribute.default and not attribute.list:
                yield Case(f"{attribute.name} {value}", inputs(*((3, 65) if rows else (65,))), {attribute.name: value})
    dtypes = {tensor.name: types.get(tensor.type) or DTYPES[tensor.type].numpy for tensor in op.inputs}
    if all(dtype.kind not in "iubO" for dtype in dtypes.values()):
        if rows:
            yield from _odd_rows(op, inputs, reference)
            return
        every = len(dtypes) <= 3
        grid = np.meshgrid(*[_ODD] * len(dtypes)) if every else rng.choice(_ODD, (len(dtypes), 400))
        values = {name: axis.ravel().astype(dtypes[name]) for name, axis in zip(dtypes, grid, strict=True)}
        yield Case("odd numbers", values)


def _odd_rows(op: Op, inputs: Callable[..., dict[str, Array]], reference: Callable[..., Any]) -> Iterator[Case]:
    """Yields cases of rows: without columns, of large and of equal numbers, and with each odd number in its row."""
    try:
        empty = inputs(3, 0)
        reference(**empty)
        yield Case("rows of 0 elements", empty)
    except ValueError:
        pass  # NumPy has no maximum of such a row
    leading = [tensor.name for tensor in op.inputs if layout.texts(tensor)[0] == "..."]
    large = inputs(4, 40)
    yield Case("large", {name: (40 * a).astype(a.dtype) if name in leading else a for name, a in large.items()})
    equal = inputs(2, 70)
    yield Case("equal", {name: np.full_like(a, 0.7) if name in leading else a for name, a in equal.items()})
    odd = inputs(len(_ODD) + 3, 9)
    for name in leading:
        of_row = odd[name].reshape(len(odd[name]), -1)
        of_row[: len(_ODD), -1] = _ODD
        of_row[len(_ODD) :] = np.array([[-np.inf], [np.inf], [0]])
    yield Case("odd numbers", odd)


def with_output_gradients(op: Op, cases: list[Case]) -> list[Case]:
    """Makes the cases of a gradient from those of its op: with a normally distributed gradient of each output."""
    found = []
    rngs = [np.random.default_rng(1) for _ in op.outputs]
    for case in cases:
        shapes = layout.shapes(op, case.inputs)  # type: ignore[arg-type]
        dtype = np.asarray(case.inputs[op.inputs[0].name]).dtype
        gradients = {
            f"grad_{output.name}": np.asarray(rng.standard_normal(shape)).astype(dtype)
            for output, shape, rng in zip(op.outputs, shapes, rngs, strict=True)
        }
        found.append(replace(case, inputs={**gradients, **case.inputs}))
    return found


def with_tolerances(op: Op, cases: list[Case], reference: Callable[..., Any]) -> list[Case]:
    """Returns cases of rows with tolerances: terms of a sum may cancel, so that it is as exact as the greatest numbers
    of the output are. Those of other ops stay."""
    if layout.columns_of(op) is None:
        return cases
    found = []
    for case in cases:
        dtype = np.asarray(case.inputs[op.inputs[0].name]).dtype
        relative, absolute = next(TOLERANCES[name] for name, each in DTYPES.items() if each.numpy == dtype)
        epsilon = float(np.finfo(dtype if dtype == np.float64 else np.float32).eps)
        arrays = reference(**case.inputs, **case.attributes)
        outputs = [np.abs(np.ma.getdata(array).astype(np.float64)) for array in arrays]
        limits = {
            tensor.name: (relative, max(absolute, 4 * epsilon * np.max(array, initial=0, where=np.isfinite(array))))
            for tensor, array in zip(op.outputs, outputs, strict=True)
        }
        found.append(replace(case, tolerance=limits))
    return found


def _some(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any] | None, name: str) -> Array:
    dtype = dtype or DTYPES[name].numpy
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return np.asarray(3 * rng.standard_normal(shape)).astype(dtype)
