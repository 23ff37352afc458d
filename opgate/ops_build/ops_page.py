"""Prints the op table on a console and writes it as the page docs/ops.md."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.op_table import Attribute, Op


def print_table(ops: Sequence[Op]) -> None:
    """Prints a table of ops on the console."""
    table = Table(show_lines=True)
    for column in ("op", "signature", "dtypes", "devices"):
        table.add_column(column, overflow="fold")  # wraps a long signature instead of cutting it off
    for op in ops:
        # Text, not str: rich would read the square brackets of a signature as markup.
        signature = Text(op.signature).append(f"\n{op.doc}", style="dim")
        table.add_row(
            Text(f"{op.domain}::{op.name}\nv{op.since_version}"), signature, " ".join(op.dtypes), " ".join(op.devices)
        )
    wide_console().print(table)


def wide_console() -> Console:
    """Returns a console that is wide enough for tables also when the output goes to a file or a log."""
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, 110))


def markdown_table(ops: Sequence[Op], folder: Path) -> str:
    """Returns the page docs/ops.md: every op with its signature, attributes and devices."""
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
        op_folder = folder_of(op, [folder])
        decomposed = "yes" if op_folder.has_decomposition else "no"
        row = (
            f"[{op.name}](#{op.name.lower()})",
            op.doc.replace("|", "\\|"),
            " ".join(op.dtypes),
            "cpu cuda" if op_folder.has_cuda_kernel else "cpu",  # from the sources: a build may leave out CUDA
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
            *textwrap.wrap(op.signature, 110, subsequent_indent="    ", break_long_words=False),
        ]
        lines += ["```", ""]
        lines += _tensors(op)
        lines += [f"| {a.name} | attribute | {_attribute_type(a)} | {_attribute_default(a)} |" for a in op.attributes]
        readme = folder_of(op, [folder]).path.name
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
