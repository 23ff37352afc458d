"""`opgate inspect`: what a model consists of, what it costs, and which engines can run it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opgate.commands.import_model import Inputs, Seed, Sizes

if TYPE_CHECKING:
    from opgate.onnx_tools.inspection import Inspection
    from opgate.onnx_tools.measurement import NodeTime

#: How much of a note in the file is shown.
_LONG = 160


def inspect_model(
    model: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="An ONNX model.")],
    library: Annotated[
        list[Path] | None,
        typer.Option(exists=True, help="Library of the model's ops for ONNX Runtime. It is loaded. Repeatable."),
    ] = None,
    folder: Annotated[
        list[Path] | None,
        typer.Option(exists=True, help="Folder with your ops: references, decompositions. Repeatable."),
    ] = None,
    size: Sizes = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="Print every node, not only a line for each op.")] = False,
    time: Annotated[
        bool, typer.Option("--measure", help="Run the model on the CPU, and print how long each op takes.")
    ] = False,
    inputs: Inputs = None,
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it in JSON.")] = False,
    netron: Annotated[
        bool, typer.Option("--netron", help="Open the model in Netron, which then knows the ops too, until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of Netron's page. 0 picks a free one.")] = 0,
    browse: Annotated[bool, typer.Option("--browse/--no-browse", help="Open Netron's page in a browser.")] = True,
) -> None:
    """Print a model's ops, shapes, bytes and floating-point operations, and for each engine whether it can run it.

    A dim that the model leaves open has the size of --size DIM=SIZE, or else 1 in front and 8 elsewhere. --measure runs
    the model on random inputs, or on those of --input.
    """
    from dataclasses import asdict

    from opgate.onnx_tools.inspection import inspect
    from opgate.onnx_tools.measurement import measure
    from opgate.onnx_tools.model_inputs import feeds, sizes_of
    from opgate.onnx_tools.run_model import libraries_of, load_model
    from opgate.ops_build.building.options import SOURCE, BuildOptions
    from opgate.ops_build.onnx import schema

    try:
        loaded = load_model(model)
        folders = [*(folder or ()), SOURCE / "ops"]
        libraries = libraries_of(loaded, library or (), BuildOptions().library(), folders)
        for_torch = libraries_of(loaded, (), BuildOptions().library("torch"), folders)
        ops = [op for table in libraries.tables.values() for op in table]
        schema.register(ops)
        sizes = sizes_of(size or [])
        found = inspect(loaded, libraries, for_torch, sizes)
        times = measure(loaded, libraries, feeds(loaded, inputs or [], sizes, seed)) if time else []
        if as_json:
            import json

            measured = {"measured": [asdict(one) for one in times]} if time else {}
            typer.echo(json.dumps({**asdict(found), **measured}, indent=2))
        else:
            _print(found, nodes)
            if time:
                _print_times(times, nodes)
        if netron:
            _show(model, ops, port, browse)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        typer.echo(f"opgate: {error}", err=True)
        raise typer.Exit(1) from None


def _show(model: Path, ops: list[Any], port: int, browse: bool) -> None:
    from opgate.onnx_tools import netron_view

    try:
        host, found = netron_view.show(model, ops, ("127.0.0.1", port), browse=browse)
    except ModuleNotFoundError:
        raise ImportError("Netron is not installed: pip install 'opgate[inspect]'") from None
    typer.echo(f"Netron shows it at http://{host}:{found} until Ctrl-C")
    netron_view.wait()


def _print(found: Inspection, nodes: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    from opgate.onnx_tools.inspection import by_op
    from opgate.ops_build.ops_page import wide_console

    console = wide_console()
    typer.echo(found.heading)
    typer.echo(f"weights: {found.weights:,} numbers, {found.weight_bytes:,} bytes")
    for key, value in found.metadata:
        typer.echo(f"metadata {key}: {_shortened(value)}")
    for kind, tensors in (("input", found.inputs), ("output", found.outputs)):
        for tensor in tensors:
            typer.echo(f"{kind} {tensor}")
    if found.rows:
        typer.echo(f"rows {found.rows}")
    table = Table()
    rows: list[tuple[str, ...]]
    if nodes:
        columns: tuple[str, ...] = ("node", "op", "from", "outputs", "bytes", "FLOPs")
        rows = [(n.name, n.op, n.origin, ", ".join(n.shapes), _number(n.bytes), _number(n.flops)) for n in found.nodes]
    else:
        columns = ("op", "from", "nodes", "bytes", "FLOPs")
        rows = [
            (
                r["op"],
                r["origin"],
                str(r["nodes"]),
                _number(r["bytes"]),
                _number(r["flops"]) + _left_out(r["uncounted"]),
            )
            for r in by_op(found.nodes)
        ]
    for column in columns:
        right = column in ("nodes", "bytes", "FLOPs")
        table.add_column(column, overflow="fold", justify="right" if right else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    flops = sum(node.flops or 0 for node in found.nodes)
    uncounted = sum(node.flops is None for node in found.nodes)
    written = sum(node.bytes or 0 for node in found.nodes)
    typer.echo(f"{len(found.nodes)} nodes write {written:,} bytes and take {flops:,} FLOPs{_left_out(uncounted)}")
    copied = sum(copy.bytes or 0 for copy in found.copies)
    typer.echo(f"on a GPU, ONNX Runtime copies {len(found.copies)} tensors between it and the CPU, {copied:,} bytes:")
    for copy in found.copies:
        size = "" if copy.bytes is None else f", {copy.bytes:,} bytes"
        typer.echo(f"  {'to it' if copy.to_gpu else 'from it'}, {copy.because}: {copy.tensor}{size}")
    engines = Table()
    for column in ("engine", "runs it", "what is missing"):
        engines.add_column(column, overflow="fold")
    for report in found.engines:
        engines.add_row(report.engine, "yes" if report.runs else "no", Text(report.missing))
    console.print(engines)


def _print_times(times: list[NodeTime], nodes: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    from opgate.onnx_tools.measurement import RUNS, by_op
    from opgate.ops_build.ops_page import wide_console

    whole = sum(node.microseconds for node in times)
    rows: list[tuple[str, ...]]
    if nodes:
        columns: tuple[str, ...] = ("node", "op", "custom", "us", "share")
        rows = [(n.name, n.op, _yes(n.custom), f"{n.microseconds:,.0f}", _share(n.microseconds, whole)) for n in times]
    else:
        columns = ("op", "custom", "nodes", "us", "share")
        rows = [
            (op.op, _yes(op.custom), str(op.nodes), f"{op.microseconds:,.0f}", f"{op.share:.1%}") for op in by_op(times)
        ]
    table = Table()
    for column in columns:
        right = column in ("nodes", "us", "share")
        table.add_column(column, overflow="fold", justify="right" if right else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    wide_console().print(table)
    typer.echo(f"the nodes take {whole:,.0f} us of a run in ONNX Runtime on the CPU, medians of {RUNS} runs")


def _yes(value: bool) -> str:
    return "yes" if value else ""


def _share(part: float, whole: float) -> str:
    return f"{part / (whole or 1):.1%}"


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONG else f"{line[:_LONG]}... ({len(text):,} characters)"


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _left_out(count: int) -> str:
    return f" (+ {count} uncounted)" if count else ""
