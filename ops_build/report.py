"""The verification matrix, printed."""

from __future__ import annotations

import importlib
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ops_build.build import SOURCE, BuildOptions
from ops_build.table import Attribute, Op
from ops_build.verify import Absent, Cell, Engine, op_folder, verify

#: Failures of one cell that are printed: the rest is mostly the same.
SHOWN = 5


def print_table(ops: Sequence[Op]) -> None:
    """Prints ops."""
    table = Table(show_lines=True)
    for column in ("op", "signature", "dtypes", "devices"):
        table.add_column(column, overflow="fold")  # a signature is never cut
    for op in ops:
        # Plain texts: in a signature square brackets are no markup.
        signature = Text(op.signature).append(f"\n{op.doc}", style="dim")
        table.add_row(
            Text(f"{op.domain}::{op.name}\nv{op.since_version}"), signature, " ".join(op.dtypes), " ".join(op.devices)
        )
    _console().print(table)


def _console() -> Console:
    """In a file or a log nothing need be cut."""
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, 110))


def markdown_table(ops: Sequence[Op], folder: Path) -> str:
    """The page docs/ops.md: every op with its signature, attributes and where it runs."""
    lines = [
        "# Ops",
        "",
        "Made from the op table by `opgate ops --markdown`; [signatures.md](signatures.md) says how to read a",
        "signature. TensorRT takes the ops that have a CUDA kernel.",
        "",
        "| op | what it computes | dtypes | devices | decomposition |",
        "|---|---|---|---|---|",
    ]
    for op in ops:
        place = op_folder(op, [folder])
        decomposed = "yes" if (place / "decomposition.py").is_file() else "no"
        row = (
            f"[{op.name}](#{op.name.lower()})",
            op.doc.replace("|", "\\|"),
            " ".join(op.dtypes),
            "cpu cuda" if any(place.glob("*.cu")) else "cpu",  # of the sources: not every build has both
            decomposed,
        )
        lines.append(f"| {' | '.join(row)} |")
    for op in ops:
        lines += [
            "",
            f"## {op.name}",
            "",
            op.doc,
            "",
            "```",
            *textwrap.wrap(op.signature, 110, subsequent_indent="    "),
        ]
        lines += ["```", ""]
        lines += _tensors(op)
        lines += [f"| {a.name} | attribute | {_attribute_type(a)} | {_attribute_default(a)} |" for a in op.attributes]
        readme = op_folder(op, [folder]).name
        lines += ["", f"`{op.domain}::{op.name}`, since version {op.since_version}; in PyTorch "]
        lines[-1] += f"`torch.ops.{op.domain}.{readme}`."
        if folder == SOURCE / "ops":
            lines[-1] += f" [More](../ops_build/ops/{readme}/README.md)."
    return "\n".join(lines) + "\n"


def _tensors(op: Op) -> list[str]:
    lines = ["| name | is | type | |", "|---|---|---|---|"]
    for tensor in op.inputs:
        notes = [word for word in ("optional", "variadic", "const") if getattr(tensor, word)]
        note = {"optional": "may be left out", "variadic": "one or more", "const": "in host memory"}
        lines.append(f"| {tensor.name} | input | {_types(op, tensor.type)} | {', '.join(note[n] for n in notes)} |")
    for output in op.outputs:
        notes = ["may be left out"] * output.optional + ["size known after the run"] * output.data_dependent
        lines.append(f"| {output.name} | output | {_types(op, output.type)} | {', '.join(notes)} |")
    return lines


def _types(op: Op, name: str) -> str:
    return f"{name}: {' '.join(op.type_variables[name])}" if name in op.type_variables else name


def _attribute_type(attribute: Attribute) -> str:
    if attribute.choices:
        return " or ".join(attribute.choices)
    length = attribute.length if attribute.length is not None else ""
    return f"{attribute.kind}[{length}]" if attribute.list else attribute.kind


def _attribute_default(attribute: Attribute) -> str:
    return "required" if attribute.required else f"default {json.dumps(attribute.default)}"


def engines_of(options: BuildOptions) -> list[Engine | Absent]:
    """Every engine on every device that there is an adapter for, with the libraries of a build."""
    found: list[Engine | Absent] = []
    for name in options.engines:
        try:
            module = importlib.import_module(f"ops_build.adapters.{name}.engine")
        except ModuleNotFoundError as error:
            found.append(Absent(name, "cpu", f"the Python package {error.name} is not installed"))
            continue
        found += module.engines(options)
    return found


def verify_and_print(ops: Sequence[Op], folder: Path, engines: Sequence[Engine | Absent], names: Sequence[str]) -> bool:
    """Verifies ops and prints op x engine x dtype; True when every cell that this machine can run is green and there is
    one."""
    console = _console()
    unknown = set(names) - {op.name for op in ops}
    if unknown:
        console.print(f"no such op: {', '.join(sorted(unknown))}; there are {', '.join(op.name for op in ops)}")
        return False
    chosen = [op for op in ops if not names or op.name in names]
    with console.status("verifying") as status:
        cells = verify(
            chosen,
            [folder],
            engines,
            lambda cell: status.update(f"verified {cell.op} {cell.types} on {cell.engine}"),
        )
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
    return failed == 0 and passed > 0


def print_matrix(console: Console, cells: Sequence[Cell]) -> None:
    """Prints the matrix and why cells were not run."""
    reasons = reasons_of(cells)
    console.print(matrix(cells, reasons))
    for number, reason in enumerate(reasons, 1):
        console.print(Text(f"  [{number}] {reason}", style="dim"))


def reasons_of(cells: Sequence[Cell]) -> list[str]:
    """Why cells were not run, each reason once."""
    return list(dict.fromkeys(cell.skipped for cell in cells if cell.skipped))


def by_engine(cells: Sequence[Cell]) -> tuple[list[str], dict[tuple[str, str], dict[str, Cell]]]:
    """The engines, and the cells by op and dtypes, then engine."""
    rows: dict[tuple[str, str], dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.op, cell.types), {})[cell.engine] = cell
    return list(dict.fromkeys(cell.engine for cell in cells)), rows


def matrix(cells: Sequence[Cell], reasons: Sequence[str]) -> Table:
    """Op x dtypes by engine: how many cases passed of how many, or the number of the reason why none was tried."""
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
