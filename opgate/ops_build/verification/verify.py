"""Runs the cases of ops on engines and compares the outputs with the references."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.engines.comparison import difference, tolerance
from opgate.ops_build.engines.engine import Absent, CaseRefused, Engine, EngineEnded
from opgate.ops_build.op_folder import OpFolder, folder_of, run_reference
from opgate.ops_build.op_table import Op
from opgate.ops_build.verification import slopes

#: After so many cases that ended the engine's process, the other cases of the cell are not run.
MOST_ENDINGS = 3


@dataclass(slots=True)
class Cell:
    """The result for one op on one engine and device, with one choice of dtypes.

    `passed` counts cases. `failures` has a text for each case that failed. `skipped` says why no case was run.
    """

    op: str
    engine: str
    types: str
    passed: int = 0
    skipped: str | None = None
    failures: list[str] = field(default_factory=list)


#: Called before a case, with the cell that it belongs to.
Progress = Callable[[Cell, Case], None]


def ignore(cell: Cell, case: Case) -> None:
    """Tells nobody about a case."""


class References:
    """What the reference of an op computes for its cases. Each case is computed once, for all engines."""

    def __init__(self, op: Op, folder: OpFolder) -> None:
        self._op, self._folder = op, folder
        #: The file that has the reference.
        self.file = "op.py" if folder.op_file else "reference.py"
        self._outputs: dict[int, tuple[Case, dict[str, Array]]] = {}  # by the identity of the case

    def outputs(self, case: Case) -> dict[str, Array]:
        """Returns the outputs by name. Raises what the reference raises."""
        if id(case) not in self._outputs:
            self._outputs[id(case)] = (case, run_reference(self._op, self._folder.reference, case))
        return self._outputs[id(case)][1]


def verify(
    ops: Iterable[Op],
    folders: Iterable[Path],
    engines: Iterable[Engine | Absent],
    progress: Progress = ignore,
    dtypes: Collection[str] = (),
    table: Sequence[Op] = (),
) -> list[Cell]:
    """Runs all cases and returns a cell for each op, choice of dtypes and engine. `folders` hold the op folders.
    `progress` is called before each case. An op without cases fails. With `dtypes`, an op runs only with the choices
    that have one of them, if it has such choices. `table` has the ops that a gradient.py may call, by default `ops`."""
    folders, engines, ops = list(folders), list(engines), list(ops)
    cells: list[Cell] = []
    for op in ops:
        folder = folder_of(op, folders)
        choices = [*op.type_choices()]
        for types in [types for types in choices if set(types.values()).intersection(dtypes)] or choices:
            references = References(op, folder)
            try:
                cases = folder.cases(numpy_types(types))
            except Exception as error:  # whatever the author's code raises; the other ops have their turn
                cell = Cell(op.name, "cases", types_label(op, types))
                cell.failures.append(f"{type(error).__name__}: {error}")
                cells.append(cell)
                continue
            found = [verify_cell(op, types, references, cases, engine, progress) for engine in engines]
            if op.gradient and found:
                found[0].failures += _gradient_failures(op, folder, cases, slopes.References(table or ops, folders))
            cells += found
    return cells


def _gradient_failures(op: Op, folder: OpFolder, cases: Sequence[Case], references: slopes.References) -> list[str]:
    """Returns a text for each case in which the gradient.py of an op is wrong."""
    failures = []
    for case in cases:
        if not case.error:
            try:
                slopes.check_stated_gradient(op, folder, case, references)
            except Exception as error:  # whatever the author's code raises
                failures.append(f"{case.name}: gradient.py: {type(error).__name__}: {error}")
    return failures


def verify_cell(
    op: Op,
    types: Mapping[str, str],
    references: References,
    cases: Sequence[Case],
    engine: Engine | Absent,
    progress: Progress = ignore,
) -> Cell:
    """Runs cases of an op on one engine, with one choice of dtypes."""
    cell = Cell(op.name, f"{engine.name} {engine.device}", types_label(op, types))
    cell.skipped = why_not(op, types, engine)
    if not isinstance(engine, Absent) and cell.skipped is None:
        _fill(cell, op, references, cases, types, engine, progress)
    return cell


def types_label(op: Op, types: Mapping[str, str]) -> str:
    """Returns a choice of dtypes as a text for tables."""
    return " ".join(types.values()) or " ".join(op.dtypes)


def why_not(op: Op, types: Mapping[str, str], engine: Engine | Absent) -> str | None:
    """Says why the engine can't run the op here, or returns None if it can."""
    if engine.device not in op.devices:
        return f"the op has no kernel for {engine.device}"
    return engine.reason if isinstance(engine, Absent) else engine.refusal(op, types)


def _fill(
    cell: Cell,
    op: Op,
    references: References,
    cases: Sequence[Case],
    types: Mapping[str, str],
    engine: Engine,
    progress: Progress,
) -> None:
    if not cases:
        cell.failures.append("the op has no cases")
    endings = 0
    for number, case in enumerate(cases):
        progress(cell, case)
        try:
            failure = try_case(op, references, case, types, engine)
        except EngineEnded as error:
            failure = str(error)
            endings += 1
        if failure is None:
            cell.passed += 1
        else:
            cell.failures.append(f"{case.name}: {failure}")
        left = len(cases) - number - 1
        if endings == MOST_ENDINGS and left:
            cell.failures.append(f"{left} more cases were not run, because {endings} cases ended the process")
            return


def try_case(op: Op, references: References, case: Case, types: Mapping[str, str], engine: Engine) -> str | None:
    """Runs one case on an engine. Returns None if it passes, and otherwise a text that says what went wrong. Raises
    EngineEnded if the case ended the engine's process."""
    try:
        outputs = engine.run(op, case, types)
    except EngineEnded:
        raise
    except Exception as error:  # any other exception of the engine is a result of the case
        if case.error and re.search(case.error, str(error)):
            return None
        if case.error:
            return f"expected an error with /{case.error}/, got: {error}"
        return f"{error.kind if isinstance(error, CaseRefused) else type(error).__name__}: {error}"
    if case.error and case.unseen and engine.device == "cuda":
        return None
    if case.error:
        return f"expected an error with /{case.error}/, and the op took the inputs"
    try:
        expected = references.outputs(case)
    except Exception as error:
        return f"{references.file}: {type(error).__name__}: {error}"
    if failure := _unexpected(op, case, types, expected):
        return f"{references.file}: {failure}"
    for tensor in op.outputs:
        dtype = types.get(tensor.type, tensor.type)
        failure = difference(outputs[tensor.name], expected[tensor.name], tolerance(case, tensor.name, dtype))
        if failure:
            return f"output '{tensor.name}': {failure}"
    return None


def _unexpected(op: Op, case: Case, types: Mapping[str, str], outputs: Mapping[str, Array]) -> str | None:
    """Says where the reference gives something else than the case states, None if it gives that."""
    stated = case.expected or {}
    if unknown := stated.keys() - {output.name for output in op.outputs}:
        return f"the case expects '{min(unknown)}', which is no output"
    for output in op.outputs:
        if output.name not in stated:
            continue
        found = outputs[output.name]
        known = np.asarray(stated[output.name]).astype(found.dtype)
        limits = tolerance(case, output.name, types.get(output.type, output.type))
        if failure := difference(np.ma.getdata(found), known, limits):
            return f"output '{output.name}' is not what the case states: {failure}"
    return None
