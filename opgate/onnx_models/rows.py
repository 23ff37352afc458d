"""Whether the rows of a model depend on each other: found by running random rows alone and together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opgate.onnx_models.model_inputs import random_array
from opgate.onnx_models.values import Shape
from opgate.ops_build.case import Array

#: How many rows run together.
ROWS = 3
#: How far the results of rows alone and together may differ, as a part of the greatest magnitude.
TOLERANCE = 1e-4
#: The sizes that other open dims get, one after the other, until the model runs.
_SIZES = (8, 32, 224)

#: Runs a model. Maps the names of inputs to arrays, returns those of the outputs.
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class Rows:
    """Whether rows may run together. `why` says what stands against it, or what was found."""

    independent: bool
    why: str


def try_rows(inputs: Mapping[str, tuple[str, Shape]], run: Run) -> Rows:
    """Runs random rows alone and together.

    `inputs` has the dtype and the shape of each input. Floats are normally distributed, integers are 0 or 1.
    """
    fixed = [name for name, (_, shape) in inputs.items() if not shape or isinstance(shape[0], int)]
    if fixed or not inputs:
        return Rows(False, f"the first dim of '{fixed[0]}' is not open" if fixed else "it has no inputs")
    why = ""
    for size in _SIZES:
        rows = _random(inputs, size)
        try:
            together = run(rows)
            alone = [run({name: array[i : i + 1] for name, array in rows.items()}) for i in range(ROWS)]
        except Exception as error:  # those of engines share no other base
            why = why or f"it doesn't run on {ROWS} random rows: {' '.join(str(error).split())[:200]}"
            if all(isinstance(dim, int) for _, shape in inputs.values() for dim in shape[1:]):
                break
            continue
        return compared(together, alone)
    return Rows(False, why)


def _random(inputs: Mapping[str, tuple[str, Shape]], size: int) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    rows = {}
    for name, (dtype, shape) in inputs.items():
        sizes = [ROWS, *(dim if isinstance(dim, int) else size for dim in shape[1:])]
        rows[name] = random_array(sizes, dtype, rng)
        if dtype == "str":
            rows[name] = np.array([f"text {i}" for i in range(rows[name].size)], object).reshape(sizes)
    return rows


def compared(together: Mapping[str, Array], alone: Sequence[Mapping[str, Array]], axes: int = 1) -> Rows:
    """Compares the outputs of rows that ran together with those of each alone. Rows may lie along one of the first
    `axes`."""
    largest = 0.0
    for name, joined in together.items():
        parts = [each[name] for each in alone]
        if not isinstance(joined, np.ndarray):
            return Rows(False, f"the output '{name}' is no tensor")
        axis = _axis(joined, parts, axes)
        if axis is None:
            return Rows(False, f"the output '{name}' of {len(alone)} rows has the shape {list(joined.shape)}")
        expected = np.concatenate(parts, axis)
        if joined.dtype.kind != "f":
            if not np.array_equal(joined, expected):
                return Rows(False, f"the output '{name}' of rows together is not that of each alone")
            continue
        scale = float(np.abs(expected).max(initial=0)) or 1.0
        largest = max(largest, float(np.abs(joined.astype(np.float64) - expected).max(initial=0)) / scale)
    if not largest <= TOLERANCE:
        return Rows(False, f"rows together give other results than each alone, by {largest:.1e} of their magnitude")
    why = f"{len(alone)} random rows together give what each gives alone, largest difference {largest:.1e}"
    return Rows(True, f"{why} of the greatest magnitude")


def _axis(together: Array, alone: Sequence[Array], axes: int) -> int | None:
    """Returns the axis along which the outputs of rows are joined, None if there is none."""
    for axis in range(min(axes, together.ndim)):
        shape = (*together.shape[:axis], 1, *together.shape[axis + 1 :])
        if together.shape[axis] == len(alone) and all(each.shape == shape for each in alone):
            return axis
    return None
