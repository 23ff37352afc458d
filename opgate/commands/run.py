"""`opgate run`: runs a model with a finished library of custom ops, as PopRT's command line does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from opgate.onnx_tools.run_model import Libraries

from opgate.commands.import_model import Inputs, Seed, Sizes


def run(
    input_model: Annotated[
        Path, typer.Option("--input_model", "--input-model", exists=True, dir_okay=False, help="An ONNX model.")
    ],
    library: Annotated[
        list[Path] | None,
        typer.Option(
            "--custom_library_so_paths", "--custom-library-so-paths", help="Libraries of the model's ops. Repeatable."
        ),
    ] = None,
    more_libraries: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[LIBRARY]...", help="Further libraries behind --custom_library_so_paths A.so."),
    ] = None,
    shape_file: Annotated[
        list[Path] | None,
        typer.Option(
            "--custom_shape_inference",
            "--custom-shape-inference",
            exists=True,
            dir_okay=False,
            help="Python file with shape functions of the ops. It is run. Repeatable.",
        ),
    ] = None,
    execute: Annotated[bool, typer.Option("--run", help="Run the model, not only infer its shapes.")] = False,
    engine: Annotated[
        str, typer.Option(help="onnxruntime; reference: NumPy; torch: the ops in PyTorch, standard operators in NumPy.")
    ] = "onnxruntime",
    inputs: Inputs = None,
    size: Sizes = None,
    seed: Seed = 0,
    iterations: Annotated[int, typer.Option(min=0, help="How often the run is repeated for its time.")] = 20,
    save: Annotated[Path | None, typer.Option(help="Write inputs and outputs to this .npz file.")] = None,
    output_model: Annotated[
        Path | None, typer.Option("--output_model", "--output-model", help="Write the model with all shapes.")
    ] = None,
    folder: Annotated[
        list[Path] | None, typer.Option(exists=True, help="Folder with your ops, for --engine reference. Repeatable.")
    ] = None,
) -> None:
    """Infer the shapes of a model through custom ops, and run it with their libraries on given or random inputs."""
    from opgate.onnx_tools.run_model import ENGINES, libraries_of, load_model
    from opgate.ops_build.building.options import SOURCE, BuildError, BuildOptions

    try:
        if engine not in ENGINES:
            raise ValueError(f"--engine: expected {', '.join(ENGINES)}, got '{engine}'")
        if more_libraries and not library:
            raise ValueError(f"{more_libraries[0]}: expected options, such as --custom_library_so_paths A.so B.so")
        if save is not None and not execute:
            raise ValueError("--save writes the results of a run: give --run too")
        own = BuildOptions().library("torch" if engine == "torch" else "onnxruntime")
        model = load_model(input_model)
        libraries = libraries_of(
            model, [*(library or ()), *(more_libraries or ())], own, [*(folder or ()), SOURCE / "ops"]
        )
        model = _with_shapes(model, shape_file or [], libraries)
        if output_model is not None:
            import onnx

            onnx.save(model, output_model)
            typer.echo(f"wrote {output_model}")
        if execute:
            _run(model, libraries, engine, inputs or [], size or [], seed, iterations, save)
    except (BuildError, OSError, ValueError, RuntimeError, ImportError) as error:
        typer.echo(f"opgate: {error}", err=True)
        raise typer.Exit(1) from None


def _with_shapes(model: onnx.ModelProto, files: list[Path], libraries: Libraries) -> onnx.ModelProto:
    """Infers and prints shapes. Returns the model that states them."""
    from opgate.onnx_tools.shape_functions import get_shape, infer_shapes, load, unknown_shapes
    from opgate.ops_build.onnx import schema

    schema.register(op for table in libraries.tables.values() for op in table)
    functions = {name: function for file in files for name, function in load(file).items()}
    model = infer_shapes(model, functions)
    for value in model.graph.output:
        shape = get_shape(model.graph, value.name)
        typer.echo(f"shape of {value.name}: {'not known' if shape is None else shape}")
    if unknown := unknown_shapes(model):
        typer.echo(
            f"no shape function tells the shape of {', '.join(unknown[:10])}{', ...' if len(unknown) > 10 else ''}"
        )
    return model


def _run(
    model: onnx.ModelProto,
    libraries: Libraries,
    engine: str,
    inputs: list[str],
    sizes: list[str],
    seed: int,
    iterations: int,
    save: Path | None,
) -> None:
    import numpy as np

    from opgate.onnx_tools.model_inputs import feeds, sizes_of
    from opgate.onnx_tools.run_model import runner, timed

    values = feeds(model, inputs, sizes_of(sizes), seed)
    outputs, seconds = timed(runner(model, libraries, engine), values, iterations)
    for name, array in values.items():
        typer.echo(f"input {name}: {array.dtype} {list(array.shape)}")
    for name, array in outputs.items():
        typer.echo(
            f"output {name}: {array.dtype} {list(array.shape)}\n{np.array2string(array, threshold=32, precision=6)}"
        )
    if iterations:
        typer.echo(f"latency: {seconds * 1e6:.0f} us in {engine}, the median of {iterations} runs")
    if save is not None:
        _save(save, {**values, **outputs})


def _save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes an .npz file. numpy.savez doesn't take every name: "file" is an argument of its own."""
    import zipfile

    import numpy as np

    target = path if path.suffix == ".npz" else path.with_name(f"{path.name}.npz")
    with zipfile.ZipFile(target, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array)
    typer.echo(f"wrote {target}")
