"""Prints the results of verification: a table of ops and engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from opgate.ops_build.case import Case
from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.engines.engine import Absent, Engine
from opgate.ops_build.op_table import Op
from opgate.ops_build.ops_page import wide_console
from opgate.ops_build.verification.verify import Cell, verify

#: The number of failures that are printed for a cell. The others are mostly of the same kind.
SHOWN = 5


def ops_named(ops: Sequence[Op], names: Sequence[str]) -> list[Op]:
    """Returns the ops with the names, all of them without names. Raises ValueError for a name that no op has."""
    if unknown := set(names) - {op.name for op in ops}:
        raise ValueError(f"no such op: {', '.join(sorted(unknown))}; there are {', '.join(op.name for op in ops)}")
    return [op for op in ops if not names or op.name in names]


def verify_and_print(
    ops: Sequence[Op],
    folder: Path,
    engines: Sequence[Engine | Absent],
    names: Sequence[str] = (),
    dtypes: Sequence[str] = (),
) -> list[Cell]:
    """Verifies ops and prints the results by op, dtype and engine. Returns the results, none if there is nothing to
    verify.

    `names` limits the ops; without names all ops are verified. With `dtypes`, an op runs only with the choices of
    dtypes that have one of them, if it has such choices. `folder` holds their op folders. On Ctrl-C it says which
    case it was at. Raises ValueError for a name that no op has.
    """
    console = wide_console()
    chosen = ops_named(ops, names)
    if wrong := set(dtypes) - DTYPES.keys():
        console.print(f"no such dtype: {', '.join(sorted(wrong))}; there are {', '.join(DTYPES)}")
        return []
    at = ""
    with console.status("verifying") as status:

        def show(cell: Cell, case: Case) -> None:
            nonlocal at
            at = f"{cell.op} {cell.types} on {cell.engine}: {case.name}"
            status.update(Text(f"verifying {at}"))

        try:
            cells = verify(chosen, [folder], engines, show, dtypes, ops)
        except KeyboardInterrupt:
            console.print(Text(f"interrupted at {at}"))
            raise
    print_matrix(console, cells)
    for cell in cells:
        where = Text(f"{cell.op} {cell.types} on {cell.engine}", style="red")
        for failure in cell.failures[:SHOWN]:
            console.print(where.copy().append(f": {failure}", style="default"))
        if len(cell.failures) > SHOWN:
            console.print(where.append(f": and {len(cell.failures) - SHOWN} more", style="default"))
    failed = sum(len(cell.failures) for cell in cells)
    passed = sum(cell.passed for cell in cells)
    console.print(f"{passed} passed, {failed} failed, {sum(bool(cell.skipped) for cell in cells)} cells not run here")
    return cells


def is_green(cells: Sequence[Cell]) -> bool:
    """Returns whether at least one case has run and none has failed."""
    return any(cell.passed for cell in cells) and not any(cell.failures for cell in cells)


def print_matrix(console: Console, cells: Sequence[Cell]) -> None:
    """Prints the table of results, and below it the reasons for the cells that were not run."""
    reasons = reasons_of(cells)
    console.print(matrix(cells, reasons))
    for number, reason in enumerate(reasons, 1):
        console.print(Text(f"  [{number}] {reason}", style="dim"))


def reasons_of(cells: Sequence[Cell]) -> list[str]:
    """Returns the reasons for cells that were not run, each reason once."""
    return list(dict.fromkeys(cell.skipped for cell in cells if cell.skipped))


def by_engine(cells: Sequence[Cell]) -> tuple[list[str], dict[tuple[str, str], dict[str, Cell]]]:
    """Returns the names of the engines, and the cells by (op, dtypes) and then by engine."""
    rows: dict[tuple[str, str], dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.op, cell.types), {})[cell.engine] = cell
    return list(dict.fromkeys(cell.engine for cell in cells)), rows


def matrix(cells: Sequence[Cell], reasons: Sequence[str]) -> Table:
    """Returns the table of results. A row is an op with its dtypes, a column is an engine.

    A cell has the number of cases that passed and the number of all cases, or else the number of the reason why no case
    was run.
    """
    engines, by_row = by_engine(cells)
    table = Table()
    for column in ("op", "dtypes", *engines):
        table.add_column(column, no_wrap=column == "op")
    for (op, types), row in by_row.items():
        table.add_row(op, types, *(_mark(row.get(engine), reasons) for engine in engines))
    return table


def _mark(cell: Cell | None, reasons: Sequence[str]) -> Text:
    if cell is None:
        return Text("")
    if cell.skipped:
        return Text(f"[{reasons.index(cell.skipped) + 1}]", style="dim")
    return Text(f"{cell.passed}/{cell.passed + len(cell.failures)}", style="red" if cell.failures else "green")
