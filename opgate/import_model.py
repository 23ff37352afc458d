"""`opgate import`: rewrites a model that somebody else exported into opgate's ops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from opgate.ops_build.onnx.import_model import Imported

Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        help="NAME=FILE.npy, NAME=JSON or NAME=f32[1,3,8,8] for an input, repeatable. Others get random numbers.",
    ),
]
Sizes = Annotated[
    list[str] | None, typer.Option("--size", help="DIM=SIZE for a dim that the model leaves open, repeatable.")
]
Seed = Annotated[int, typer.Option(help="Where the random numbers begin.")]


def import_model(
    model: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="An ONNX model.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write. Default: MODEL_imported.onnx.")
    ] = None,
    library: Annotated[
        Path | None, typer.Option(exists=True, help="Op library. Default: the library that `opgate build` wrote.")
    ] = None,
    custom_library: Annotated[
        list[Path] | None, typer.Option(exists=True, help="Library of other ops that the model uses, repeatable.")
    ] = None,
    inputs: Inputs = None,
    size: Sizes = None,
    seed: Seed = 0,
) -> None:
    """Rewrite what others' exports contain into opgate's ops: nodes of mmcv, mmdeploy, BEVFormer_tensorrt, pointops,
    torch_cluster, TensorRT and Graphcore, and standard subgraphs that one op computes.

    A subgraph is replaced only if the op gives the same results on random inputs and takes less time here. Print what
    became of each, and which engines could run what is left.
    """
    from opgate.ops_build.building.manifest import built_table
    from opgate.ops_build.building.options import BuildError, BuildOptions
    from opgate.ops_build.onnx.import_model import Setting, import_file
    from opgate.ops_build.onnx.model_inputs import sizes_of
    from opgate.ops_build.table import read_table

    target = output or model.with_name(f"{model.stem}_imported.onnx")
    try:
        options = BuildOptions()
        ops = read_table(library) if library else built_table(options)
        setting = Setting(
            ops=ops,
            library=library or options.library(),
            others=tuple(custom_library or ()),
            inputs=tuple(inputs or ()),
            sizes=sizes_of(size or ()),
            seed=seed,
        )
        imported = import_file(model, target, setting)
    except (BuildError, OSError, ValueError) as error:
        typer.echo(f"opgate: {error}", err=True)
        raise typer.Exit(1) from None
    for line in report(imported):
        typer.echo(line)
    if not imported.changed:
        typer.echo("opgate: nothing was rewritten", err=True)
        raise typer.Exit(1)
    typer.echo(f"the new model: {imported.run}")
    typer.echo(f"wrote {target}")


def report(imported: Imported) -> list[str]:
    """Returns the lines of the report: a table of the foreign nodes, one of the subgraphs, and what is left."""
    lines = []
    if imported.foreign:
        rows = [
            (node.name, node.node, f"refused: {node.refusal}" if node.refusal else f"now {node.op}", node.note)
            for node in imported.foreign
        ]
        lines += _table(("op", "node", "what became of it", "note"), rows)
    if imported.fusions:
        outcomes = [
            (
                outcome.op,
                outcome.node,
                "kept" if outcome.kept else f"not kept: {outcome.reason}",
                "" if outcome.difference is None else f"{outcome.difference:.1e}",
                *("" if seconds is None else f"{seconds * 1e6:.0f} us" for seconds in (outcome.before, outcome.after)),
            )
            for outcome in imported.fusions
        ]
        lines += _table(("subgraph", "result", "what became of it", "max difference", "before", "after"), outcomes)
    for op in imported.unknown:
        lines.append(f"{op.name} stays ({op.count} node{'s' if op.count > 1 else ''}): it needs {op.engines}")
    return lines


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    ]
