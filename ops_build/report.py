"""The verification matrix, printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ops_build.adapters.onnxruntime.engine import OnnxRuntimeEngine
from ops_build.build import SOURCE
from ops_build.table import read_table
from ops_build.verify import Cell, verify

#: Failures of one cell that are printed: the rest is mostly the same.
SHOWN = 5


def print_table(library: Path) -> None:
    """Prints the ops of a library."""
    table = Table(show_lines=True)
    for column in ("op", "signature", "dtypes", "devices"):
        table.add_column(column, overflow="fold")  # a signature is never cut
    for op in read_table(library):
        # Plain texts: in a signature square brackets are no markup.
        signature = Text(op.signature).append(f"\n{op.doc}", style="dim")
        table.add_row(
            Text(f"{op.domain}::{op.name}\nv{op.since_version}"), signature, " ".join(op.dtypes), " ".join(op.devices)
        )
    Console().print(table)


def verify_and_print(library: Path, folder: Path | None, names: Sequence[str]) -> bool:
    """Verifies the ops of a library and prints op x engine x dtype; True when every cell is green."""
    console = Console()
    ops = read_table(library)
    unknown = set(names) - {op.name for op in ops}
    if unknown:
        console.print(f"no such op: {', '.join(sorted(unknown))}; there are {', '.join(op.name for op in ops)}")
        return False
    chosen = [op for op in ops if not names or op.name in names]
    with console.status("verifying") as status:
        cells = verify(
            chosen,
            [folder or SOURCE / "ops"],
            [OnnxRuntimeEngine(library)],
            lambda cell: status.update(f"verified {cell.op} {cell.types} on {cell.engine}"),
        )
    console.print(_matrix(cells))
    for cell in cells:
        where = Text(f"{cell.op} {cell.types} on {cell.engine}", style="red")
        for failure in cell.failures[:SHOWN]:
            console.print(where.copy().append(f": {failure}", style="default"))
        if len(cell.failures) > SHOWN:
            console.print(where.append(f": and {len(cell.failures) - SHOWN} more", style="default"))
    failed = sum(len(cell.failures) for cell in cells)
    console.print(f"{sum(cell.passed for cell in cells)} passed, {failed} failed")
    return failed == 0 and bool(cells)


def _matrix(cells: Sequence[Cell]) -> Table:
    engines = list(dict.fromkeys(cell.engine for cell in cells))
    rows = list(dict.fromkeys((cell.op, cell.types) for cell in cells))
    by_place = {(cell.op, cell.types, cell.engine): cell for cell in cells}
    table = Table("op", "dtypes", *engines)
    for op, types in rows:
        marks = []
        for engine in engines:
            cell = by_place[op, types, engine]
            total = cell.passed + len(cell.failures)
            marks.append(
                f"[red]{cell.passed}/{total}[/red]" if cell.failures else f"[green]{cell.passed}/{total}[/green]"
            )
        table.add_row(op, types, *marks)
    return table
