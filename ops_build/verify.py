"""Every case of every op on every engine present, compared with the op's reference."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ops_build.case import Array, Case
from ops_build.onnx_model import load_op_modules, numpy_types, run_reference
from ops_build.table import Op, snake_case

#: (rtol, atol) where a case says nothing: a few units in the last place of a value of order one.
TOLERANCES: Mapping[str, tuple[float, float]] = {
    "f16": (2e-3, 1e-3),
    "bf16": (1.6e-2, 1e-2),
    "f32": (1e-5, 1e-6),
    "f64": (1e-12, 1e-12),
}


class Engine(Protocol):
    """What executes an op on a device."""

    name: str

    @property
    def device(self) -> str: ...

    def refusal(self, op: Op, types: Mapping[str, str]) -> str | None:
        """Why it can't have the op with these types at all; None where it can."""

    def run(self, op: Op, case: Case, types: Mapping[str, str]) -> dict[str, Array]:
        """The outputs by name; bf16 may come as f32. Raises where the engine or the op refuses the case."""


@dataclass(frozen=True, slots=True)
class Absent:
    """An engine and device that this machine can't run, and why."""

    name: str
    device: str
    reason: str


@dataclass(slots=True)
class Cell:
    """One op on one engine and device with one choice of dtypes. `skipped` says why nothing was tried."""

    op: str
    engine: str
    types: str
    passed: int = 0
    skipped: str | None = None
    failures: list[str] = field(default_factory=list)


def op_folder(op: Op, folders: Iterable[Path]) -> Path:
    """The folder of an op: its name in snake_case. Raises FileNotFoundError."""
    tried = [folder / snake_case(op.name) for folder in folders]
    for folder in tried:
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"op {op.name} has no folder: expected {' or '.join(map(str, tried))}")


def verify(
    ops: Iterable[Op],
    folders: Iterable[Path],
    engines: Iterable[Engine | Absent],
    progress: Callable[[Cell], None] = lambda cell: None,
) -> list[Cell]:
    """Runs all cases; `progress` is called with each finished cell. An op without any case fails."""
    folders, engines = list(folders), list(engines)
    cells = []
    for op in ops:
        modules = load_op_modules(op_folder(op, folders))
        for types in op.type_choices():
            cases = list(modules.cases(numpy_types(types)))
            for engine in engines:
                name = f"{engine.name} {engine.device}"
                cell = Cell(op.name, name, " ".join(types.values()) or " ".join(op.dtypes))
                cell.skipped = why_not(op, types, engine)
                if not isinstance(engine, Absent) and cell.skipped is None:
                    _fill(cell, op, modules.reference, cases, types, engine)
                cells.append(cell)
                progress(cell)
    return cells


def why_not(op: Op, types: Mapping[str, str], engine: Engine | Absent) -> str | None:
    """Why a cell can't be run here; None where it can."""
    if engine.device not in op.devices:
        return f"the op has no kernel for {engine.device}"
    return engine.reason if isinstance(engine, Absent) else engine.refusal(op, types)


def _fill(
    cell: Cell,
    op: Op,
    reference: Callable[..., Any],
    cases: Sequence[Case],
    types: Mapping[str, str],
    engine: Engine,
) -> None:
    if not cases:
        cell.failures.append("the op has no cases")
    for case in cases:
        failure = try_case(op, reference, case, types, engine)
        if failure is None:
            cell.passed += 1
        else:
            cell.failures.append(f"{case.name}: {failure}")


def try_case(op: Op, reference: Callable[..., Any], case: Case, types: Mapping[str, str], engine: Engine) -> str | None:
    """What is wrong with one case on one engine; None when nothing is."""
    try:
        outputs = engine.run(op, case, types)
    except Exception as error:  # whatever an engine throws is the result
        if case.error and re.search(case.error, str(error)):
            return None
        return (
            f"expected an error with /{case.error}/, got: {error}" if case.error else f"{type(error).__name__}: {error}"
        )
    if case.error and case.unseen and engine.device == "cuda":
        return None
    if case.error:
        return f"expected an error with /{case.error}/, and the op took the inputs"
    try:
        expected = run_reference(op, reference, case)
    except Exception as error:
        return f"reference.py: {type(error).__name__}: {error}"
    for tensor in op.outputs:
        dtype = types.get(tensor.type, tensor.type)
        failure = difference(outputs[tensor.name], expected[tensor.name], tolerance(case, tensor.name, dtype))
        if failure:
            return f"output '{tensor.name}': {failure}"
    return None


def tolerance(case: Case, output: str, dtype: str) -> tuple[float, float]:
    default = TOLERANCES.get(dtype, (0.0, 0.0))
    if case.tolerance is None:
        return default
    if isinstance(case.tolerance, Mapping):
        return case.tolerance.get(output, default)
    return case.tolerance


def difference(actual: Array, expected: Array, tolerance: tuple[float, float]) -> str | None:
    """How `actual` differs from `expected` beyond |a - e| <= atol + rtol |e|; NaNs are equal. None when it doesn't."""
    if actual.shape != expected.shape:
        return f"expected shape {list(expected.shape)}, got {list(actual.shape)}"
    if expected.dtype.kind in "OUS" or actual.dtype.kind in "OUS":
        wrong = np.flatnonzero(actual.ravel() != expected.ravel())
        return None if wrong.size == 0 else f"{wrong.size} strings differ, first at {wrong[0]}"
    if actual.dtype != expected.dtype and expected.dtype.name != "bfloat16":
        return f"expected dtype {expected.dtype}, got {actual.dtype}"
    rtol, atol = tolerance
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    if expected.dtype.kind in "iub" and rtol == atol == 0:  # a double doesn't hold every i64
        close = actual == expected
    else:
        with np.errstate(invalid="ignore"):
            close = np.isclose(a, e, rtol=rtol, atol=atol, equal_nan=True)
    if close.all():
        return None
    places = np.argwhere(~close)
    first = tuple(int(i) for i in places[0])
    with np.errstate(invalid="ignore"):
        worst = np.nanmax(np.abs(a - e))
    return (
        f"{len(places)} of {a.size} elements differ, first at {list(first)}: "
        f"expected {e[first]:.9g}, got {a[first]:.9g}; largest difference {worst:.3g} (rtol {rtol:g}, atol {atol:g})"
    )
