"""Whether the rows of a model depend on each other: found by running random rows alone and together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opgate.onnx_tools.model_inputs import random_array
from opgate.onnx_tools.values import Shape
from opgate.ops_build.case import Array

#: How many rows run together.
ROWS = 3
#: How far the results of rows alone and together may differ, as a part of the greatest magnitude.
TOLERANCE = 1e-4
#: The sizes that other open dims get, one after the other, until the model runs.
_SIZES = (8, 32, 224)
#: Below which number integers lie in a second try.
_LARGER = 101

#: Runs a model. Maps the names of inputs to arrays, returns those of the outputs.
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class Rows:
    """Whether rows may run together. `why` says what stands against it, or what was found."""

    independent: bool
    why: str


def try_rows(inputs: Mapping[str, tuple[str, Shape]], run: Run) -> Rows:
    """Runs random rows alone and together.

    `inputs` has the dtype and the shape of each input. Floats are normally distributed, integers are 0 or 1, and then
    up to 100 if the model runs on them. Outputs that are the same for all rows prove nothing.
    """
    fixed = [name for name, (_, shape) in inputs.items() if not shape or isinstance(shape[0], int)]
    if fixed or not inputs:
        return Rows(False, f"the first dim of '{fixed[0]}' is not open" if fixed else "it has no inputs")
    why = ""
    for size in _SIZES:
        try:
            together, alone = _tried(_random(inputs, size), run)
        except Exception as error:  # those of engines share no other base
            why = why or f"it doesn't run on {ROWS} random rows: {' '.join(str(error).split())[:200]}"
            if all(isinstance(dim, int) for _, shape in inputs.values() for dim in shape[1:]):
                break
            continue
        first = compared(together, alone)
        return _with_larger_integers(inputs, size, run, first, alone) if first.independent else first
    return Rows(False, why)


def _tried(rows: Mapping[str, Array], run: Run) -> tuple[Mapping[str, Array], list[Mapping[str, Array]]]:
    alone = [run({name: array[i : i + 1] for name, array in rows.items()}) for i in range(ROWS)]
    return run(rows), alone


def _with_larger_integers(
    inputs: Mapping[str, tuple[str, Shape]], size: int, run: Run, first: Rows, seen: list[Mapping[str, Array]]
) -> Rows:
    """Tries integers up to 100, and calls outputs that tell nothing not proved. `first` and `seen` are of integers that
    are 0 or 1. They count if the model doesn't run on larger ones, such as numbers of few words."""
    found = first
    if any(dtype.lstrip("ui").isdecimal() for dtype, _ in inputs.values()):
        try:
            together, alone = _tried(_random(inputs, size, _LARGER), run)
        except Exception:  # those of engines share no other base
            alone = []
        else:
            found = compared(together, alone)
        seen = [*seen, *alone]
    if found.independent and (name := unvaried(seen)):
        return Rows(False, f"the output '{name}' is the same for all random rows, which proves nothing")
    return found


def unvaried(alone: Sequence[Mapping[str, Array]]) -> str:
    """Returns the name of an output that tells nothing of whether rows mix, "" if there is none.

    `alone` are the outputs of rows that ran alone. Such an output holds one number everywhere, as that of a detector
    that found nothing. If no output differs between the rows, the first one is named.
    """
    names, differ = list(alone[0]), False
    for name in names:
        values = [each[name] for each in alone]
        first = values[0]
        differs = any(not np.array_equal(value, first) for value in values[1:])
        differ = differ or differs
        if not differs and first.size > 1 and (first == first.flat[0]).all():
            return name
    return "" if differ else names[0]


def _random(inputs: Mapping[str, tuple[str, Shape]], size: int, below: int = 2) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    rows = {}
    for name, (dtype, shape) in inputs.items():
        sizes = [ROWS, *(dim if isinstance(dim, int) else size for dim in shape[1:])]
        rows[name] = random_array(sizes, dtype, rng, below)
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
