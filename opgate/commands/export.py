"""`opgate export`: from a module of PyTorch to a model in a repository."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from opgate.onnx_tools.from_torch.export_model import Job
    from opgate.onnx_tools.from_torch.exporters import ExportSetting

from opgate.commands.import_model import MaxBatchSize, Overwrite, Seed, Sizes, Version, say_whether_served

Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", "-i", help="NAME:DTYPE[SIZES], such as x:f32[N,3,H,W], for each input in order."),
]
Outputs = Annotated[list[str] | None, typer.Option(help="Name of an output, for each in order.")]
Exporter = Annotated[
    str, typer.Option(help="dynamo or legacy. Default: legacy if a function has a symbolic, else dynamo.")
]
Mappings = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        help="NAMESPACE::NAME=DOMAIN::OP: the ONNX operator for an op of PyTorch, such as aten::asinh=Asinh.",
    ),
]
TorchLibraries = Annotated[
    list[Path] | None,
    typer.Option(exists=True, help="Your lib<domain>_torch.so, with lib<domain>_onnxruntime.so beside it. Repeatable."),
]
Folders = Annotated[list[Path] | None, typer.Option(exists=True, help="Folder with your ops. Repeatable.")]


def export(
    factory: Annotated[
        str,
        typer.Argument(help="PACKAGE.MODULE:FACTORY, which returns a torch.nn.Module, or one and its example inputs."),
    ],
    to: Annotated[Path, typer.Option(help="Folder of the model in a repository, such as model_repository/mine.")],
    inputs: Inputs = None,
    dynamic: Annotated[str, typer.Option(help="Names of dims that stay open, such as N,H,W.")] = "",
    size: Sizes = None,
    output: Outputs = None,
    exporter: Exporter = "",
    opset: Annotated[int, typer.Option(min=11, help="Version of ONNX's operators.")] = 18,
    mappings: Mappings = None,
    torch_library: TorchLibraries = None,
    folder: Folders = None,
    max_batch_size: MaxBatchSize = None,
    version: Version = 1,
    overwrite: Overwrite = False,
    seed: Seed = 0,
) -> None:
    """Export a module of PyTorch into a model repository, and compare the model with the module.

    Both run on random inputs, the model in ONNX Runtime: with the op library, and without it where every op can be
    written in standard operators. Nothing is written if they differ.
    """
    try:
        from opgate.onnx_tools.from_torch.export_model import export_into_repository
        from opgate.onnx_tools.from_torch.exporters import EXPORTERS
    except ImportError as error:
        typer.echo(f"opgate: opgate export needs PyTorch (pip install 'opgate[torch]'): {error}", err=True)
        raise typer.Exit(1) from None
    from opgate.onnx_tools.from_torch.exporters import ExportSetting, parse_mapping
    from opgate.onnx_tools.from_torch.inputs import parse_inputs
    from opgate.onnx_tools.model_inputs import sizes_of
    from opgate.onnx_tools.repository import check_free

    try:
        if exporter not in ("", *EXPORTERS):
            raise ValueError(f"--exporter: expected {' or '.join(EXPORTERS)}, got '{exporter}'")
        check_free(to, version, overwrite=overwrite)
        maps = tuple(parse_mapping(text) for text in mappings or ())
        names = [name.strip() for name in dynamic.split(",") if name.strip()]
        setting = ExportSetting(exporter, (), opset, maps, tuple(output or ()))
        specs, sizes = parse_inputs(inputs or (), names), sizes_of(size or ())
        job = _job(factory, to, setting, torch_library or [], folder or [])
        exported = export_into_repository(
            replace(
                job,
                specs=specs,
                sizes=sizes,
                seed=seed,
                max_batch_size=max_batch_size,
                version=version,
                overwrite=overwrite,
            )
        )
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        typer.echo(f"opgate: {error}", err=True)
        raise typer.Exit(1) from None
    for line in exported.report:
        typer.echo(line)
    typer.echo(f"wrote {' and '.join(map(str, exported.paths))}")
    say_whether_served(to, version)


def _job(reference: str, to: Path, setting: ExportSetting, libraries: list[Path], folders: list[Path]) -> Job:
    """Returns the export of a factory with opgate's libraries, as far as they are built, and with somebody's own."""
    from opgate.onnx_tools.from_torch.export_model import Job
    from opgate.ops_build.adapters.torch.registration import load
    from opgate.ops_build.building.options import SOURCE, BuildOptions

    options = BuildOptions()
    pairs = [(options.library("torch"), options.library("onnxruntime"))]
    pairs = [pair for pair in pairs if pair[0].is_file() and pair[1].is_file()]
    for library in libraries:
        beside = library.with_name(library.name.replace("_torch.so", "_onnxruntime.so"))
        if beside == library or not beside.is_file():
            raise ValueError(
                f"--torch-library: expected lib<domain>_torch.so with {beside.name} beside it, got {library}"
            )
        pairs.append((library, beside))
    ops = [op for library, _ in pairs for op in load(library).ops]
    by_domain = {op.domain: beside for library, beside in pairs for op in load(library).ops}
    return Job(reference, to, replace(setting, ops=ops), (), by_domain, [*folders, SOURCE / "ops"])
