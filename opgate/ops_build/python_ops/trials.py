"""How an op in Python is tried: its function as a reference, and the cases of an op that states none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.op_table import Attribute, Op

#: An op in Python has no more inputs.
MOST_INPUTS = 32
_Types = Mapping[str, "np.dtype[Any]"]
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
            arrays = [
                _as_output(output.name, array, types.get(output.type) or DTYPES[output.type].numpy)
                for array, output in zip(outputs, op.outputs, strict=True)
            ]
        if op.elementwise and not op.inputs[0].variadic:  # a number is the same for all elements
            shape = np.asarray(given[0]).shape
            arrays = [np.broadcast_to(array, shape) if array.shape == () else array for array in arrays]
        return tuple(arrays)

    return of_arrays


def _as_output(name: str, array: Any, dtype: np.dtype[Any]) -> Array:
    found = _plain(array)
    if found.dtype.kind not in "biufV" and dtype.kind != "O":
        raise TypeError(f"output '{name}': expected an array of numbers, got {array!r}")
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
    name = array.dtype.name
    if wide and name in ("float16", "bfloat16", "float32"):
        return array.astype(np.float64).view(WideArray)
    return array.astype(np.float32) if name in ("float16", "bfloat16") else array


def usual_cases(op: Op, types: _Types) -> Iterator[Case]:
    """Yields cases of an op whose tensors have the dims [...]: shapes, odd numbers, and each choice of an attribute."""
    rng = np.random.default_rng(0)

    def inputs(shape: tuple[int, ...]) -> dict[str, Array]:
        return {tensor.name: _some(rng, shape, types.get(tensor.type), tensor.type) for tensor in op.inputs}

    for shape in [(), (0,), (1,), (7,), (2, 3, 4), (70_001,)]:
        yield Case(f"normal {list(shape)}", inputs(shape))
    for attribute in op.attributes:
        for value in attribute.choices or ((True, False) if attribute.kind == "bool" else ()):
            if value != attribute.default and not attribute.list:
                yield Case(f"{attribute.name} {value}", inputs((65,)), {attribute.name: value})
    dtypes = {tensor.name: types.get(tensor.type) or DTYPES[tensor.type].numpy for tensor in op.inputs}
    if all(dtype.kind not in "iubO" for dtype in dtypes.values()):
        every = len(dtypes) <= 3
        grid = np.meshgrid(*[_ODD] * len(dtypes)) if every else rng.choice(_ODD, (len(dtypes), 400))
        values = {name: axis.ravel().astype(dtypes[name]) for name, axis in zip(dtypes, grid, strict=True)}
        yield Case("odd numbers", values)


def _some(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any] | None, name: str) -> Array:
    dtype = dtype or DTYPES[name].numpy
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return np.asarray(3 * rng.standard_normal(shape)).astype(dtype)
