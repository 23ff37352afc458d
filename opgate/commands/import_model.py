"""`opgate import`: rewrites a model that somebody else exported into opgate's ops."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import onnx

    from opgate.onnx_tools.conversion import Converted
    from opgate.onnx_tools.import_model import Imported
    from opgate.ops_build.op_table import Op

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


MaxBatchSize = Annotated[
    int | None,
    typer.Option(min=0, help="Rows of a batch. Default: 8 if all first dims are N or named batch, else 0."),
]
Version = Annotated[int, typer.Option(min=1, help="The version to write.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a version and a config.pbtxt that are there.")]


def import_model(
    model: Annotated[
        Path,
        typer.Argument(exists=True, help="An ONNX model, a .tflite of LiteRT, or the folder of a SavedModel."),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write. Default: MODEL_imported.onnx.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="In place of a file, a folder of a model repository, such as models/mine.")
    ] = None,
    library: Annotated[
        Path | None, typer.Option(exists=True, help="Op library. Default: the library that `opgate build` wrote.")
    ] = None,
    custom_library: Annotated[
        list[Path] | None, typer.Option(exists=True, help="Library of other ops that the model uses, repeatable.")
    ] = None,
    inputs: Inputs = None,
    size: Sizes = None,
    signature: Annotated[
        str, typer.Option(help="Signature of a SavedModel. Default: serving_default, or the only one.")
    ] = "",
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="How far results may be from TensorFlow's or LiteRT's, as a part of the greatest magnitude. Default: "
            "0.001 for f32, less for f64, more for f16, 0 for integers.",
        ),
    ] = None,
    max_batch_size: MaxBatchSize = None,
    version: Version = 1,
    overwrite: Overwrite = False,
    seed: Seed = 0,
) -> None:
    """Rewrite what others' exports contain into opgate's ops: nodes of mmcv, mmdeploy, BEVFormer_tensorrt, pointops,
    torch_cluster, TensorRT and Graphcore, and standard subgraphs that one op computes.

    A subgraph is replaced only if the op gives the same results on random inputs and takes less time here. Print what
    became of each, and which engines could run what is left.

    A model of TensorFlow or LiteRT is first converted to ONNX, and compared with the original on random inputs.
    Nothing is written if they differ.
    """
    from onnx import save

    from opgate.onnx_tools import repository
    from opgate.onnx_tools.conversion import checked
    from opgate.onnx_tools.import_model import Setting, load
    from opgate.onnx_tools.import_model import import_model as rewrite
    from opgate.onnx_tools.model_inputs import sizes_of
    from opgate.ops_build.building.options import BuildError
    from opgate.ops_build.onnx.nodes import op_counts

    target = output or model.with_name(f"{model.stem}_imported.onnx")
    try:
        if output and to:
            raise ValueError("expected --output or --to, got both")
        if to:
            repository.check_free(to, version, overwrite=overwrite)
        libraries = _libraries(library, custom_library or [])
        ops = [op for found in libraries for op in found.ops]
        paths = tuple(found.path for found in libraries)
        setting = Setting(ops, paths[0], paths[1:], tuple(inputs or ()), sizes_of(size or ()), seed)
        converted = _converted(model, libraries, signature)
        made = converted.model if converted else load(model, None if to else target)
        imported = rewrite(made, setting, model.resolve().parent)
        lines = report(imported)
        if converted:
            lines = [f"converted by {converted.by} from {converted.engine}", *lines, *op_counts(made, ops)]
            lines += checked(converted, setting, tolerance)
        written = ""
        if to:
            config = repository.config_text(made, to.resolve().name, _names_in(made, libraries), max_batch_size)
            written = " and ".join(map(str, repository.write(made, to, config, version, overwrite=overwrite)))
        elif converted or imported.changed:
            save(made, target)
            written = str(target)
    except (BuildError, OSError, ValueError, RuntimeError) as error:
        typer.echo(f"opgate: {error}", err=True)
        raise typer.Exit(1) from None
    for line in lines:
        typer.echo(line)
    if not written:
        typer.echo("opgate: nothing was rewritten", err=True)
        raise typer.Exit(1)
    typer.echo(f"the new model: {imported.run}")
    typer.echo(f"wrote {written}")
    if to:
        say_whether_served(to, version)


def say_whether_served(folder: Path, version: int) -> None:
    """Loads a written model as the gateway does, and says why if that fails."""
    from opgate.doctor.models import why_not_served

    if reason := why_not_served(folder, version):
        typer.echo(f"opgate: the gateway can't load it yet: {reason}", err=True)
    else:
        typer.echo("the gateway loads it")


@dataclass(frozen=True, slots=True)
class _Library:
    """A library for ONNX Runtime with its ops, none if it is not one of opgate's. `others` are those of other engines
    that the same build wrote."""

    path: Path
    ops: list[Op]
    others: Callable[[str], Path]

    def of(self, engine: str) -> Path | None:
        path = self.others(engine)
        return path if path.is_file() and path != self.path else None


def _libraries(library: Path | None, custom: Sequence[Path]) -> list[_Library]:
    """Returns opgate's library, then those of others."""
    from opgate.ops_build.building.manifest import built_table
    from opgate.ops_build.building.options import BuildOptions
    from opgate.ops_build.op_table import read_table

    def beside(path: Path) -> Callable[[str], Path]:
        return lambda engine: path.with_name(re.sub(r"_onnxruntime(_cuda)?\.so$", f"_{engine}.so", path.name))

    options = BuildOptions()
    if library:
        found = [_Library(library, read_table(library), beside(library))]
    else:
        found = [_Library(options.library(), built_table(options), options.library)]
    for path in custom:
        try:
            ops = read_table(path)
        except (AttributeError, OSError):  # a library of somebody else
            ops = []
        found.append(_Library(path, ops, beside(path)))
    return found


def _names_in(model: onnx.ModelProto, libraries: Sequence[_Library]) -> list[str]:
    """Returns the file names of the libraries that a model needs: of somebody else's, all."""
    from opgate.ops_build.onnx.nodes import nodes_of

    used = {node.domain for node in nodes_of(model)}
    return [found.path.name for found in libraries if not found.ops or found.ops[0].domain in used]


def _converted(model: Path, libraries: Sequence[_Library], signature: str) -> Converted | None:
    """Returns a model of TensorFlow or LiteRT in ONNX, None if the model is of another kind."""
    from opgate.onnx_tools.conversion import quiet

    if model.suffix in (".keras", ".h5"):
        raise ValueError(f"{model} is a file of Keras: write a SavedModel with model.export('folder'), and import that")
    litert = model.suffix == ".tflite"
    if not litert and not model.is_dir():
        return None
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        with quiet():
            from opgate.onnx_tools.from_tensorflow import convert_saved_model
            from opgate.ops_build.adapters.tensorflow.registration import load

            if litert:
                from opgate.onnx_tools.from_litert import convert_litert
    except ImportError as error:
        extra, needs = ("litert", "LiteRT, TensorFlow") if litert else ("tensorflow", "TensorFlow")
        raise ValueError(f"{model} needs {needs} and tf2onnx (pip install 'opgate[{extra}]'): {error}") from None
    ops = [op for found in libraries if (path := found.of("tensorflow")) for op in load(path).ops]
    if not litert:
        return convert_saved_model(model, ops, signature)
    return convert_litert(model, ops, [path for found in libraries if (path := found.of("litert"))])


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
    lines += imported.whole
    for op in imported.unknown:
        lines.append(f"{op.name} stays ({op.count} node{'s' if op.count > 1 else ''}): it needs {op.engines}")
    return lines


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    ]
