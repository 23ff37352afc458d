"""The command `opgate`. Every subcommand imports what it needs when it runs, so that serving loads no build code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ops_build.building.options import BuildOptions

app = typer.Typer(
    help="Write a custom operator once, serve the models that use it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

OpsFolder = Annotated[
    Path | None, typer.Argument(help="Folder of your own ops, one subfolder each; opgate's own when left out.")
]
Output = Annotated[Path | None, typer.Option(help="Where the libraries and manifest.json go.")]
Domain = Annotated[str | None, typer.Option(help="Domain of your own ops; the folder's name when left out.")]


def _fail(error: Exception) -> typer.Exit:
    typer.echo(f"opgate: {error}", err=True)
    return typer.Exit(1)


@app.command()
def build(
    folder: OpsFolder = None,
    output: Output = None,
    domain: Domain = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="Engines to compile for; all that the machine has the toolchain of.")
    ] = None,
    arch: Annotated[str, typer.Option(help="Instruction set flags of the compiler.")] = "-march=x86-64-v3",
    cuda: Annotated[
        str, typer.Option(help="CUDA architectures, 90 or 80;90; auto: this machine's; all; empty: no CUDA.")
    ] = "auto",
    sanitize: Annotated[str, typer.Option(help="Sanitizers, as for -fsanitize: address,undefined.")] = "",
    verbose: Annotated[bool, typer.Option(help="Show the compiler's lines.")] = False,
) -> None:
    """Compile the ops for every engine that this machine has the headers of, and write the manifest."""
    from dataclasses import replace

    from ops_build.building.build import build as compile_ops
    from ops_build.building.options import ENGINES, BuildError, BuildOptions, out_of_tree

    def log(line: str) -> None:
        if verbose or not line.startswith(("[", "ninja:", "gmake")):
            typer.echo(line)
        elif line.startswith("[") and typer.get_text_stream("stdout").isatty():
            typer.echo(f"\r\033[K{line[:100]}\r", nl=False)

    try:
        options = out_of_tree(folder, output, domain) if folder else BuildOptions()
        if output:
            options = replace(options, output=output.resolve())
        elif sanitize:  # never in the place of what is served
            options = replace(options, output=options.output.parent / "sanitized")
        if engine:
            if unknown := set(engine) - set(ENGINES):
                raise BuildError(f"there is no engine {', '.join(sorted(unknown))}: expected {', '.join(ENGINES)}")
            options = replace(options, engines=tuple(engine))
        compile_ops(replace(options, arch=arch, sanitize=sanitize, cuda=cuda), log)
    except BuildError as error:
        raise _fail(error) from None


Library = Annotated[
    Path | None, typer.Option(exists=True, help="Op library; the one that `opgate build` wrote when left out.")
]
Folder = Annotated[Path | None, typer.Option(help="Where the op folders are; opgate's own when left out.")]


def _options(folder: Path | None, domain: str | None = None) -> BuildOptions:
    """How opgate's own ops, or those of a folder, were built."""
    from ops_build.building.options import BuildError, BuildOptions, out_of_tree

    try:
        return out_of_tree(folder, domain=domain) if folder else BuildOptions()
    except BuildError as error:
        raise _fail(error) from None


@app.command()
def ops(
    library: Library = None,
    folder: Folder = None,
    domain: Domain = None,
    markdown: Annotated[bool, typer.Option(help="As the page docs/ops.md.")] = False,
) -> None:
    """Print the op table: signatures, dtypes and devices."""
    from ops_build.building.manifest import built_table
    from ops_build.building.options import BuildError
    from ops_build.ops_page import markdown_table, print_table
    from ops_build.table import read_table

    try:
        options = _options(folder, domain)
        table = read_table(library) if library else built_table(options)
        if markdown:
            typer.echo(markdown_table(table, options.ops[0]), nl=False)
        else:
            print_table(table)
    except (BuildError, OSError, ValueError) as error:
        raise _fail(error) from None


@app.command()
def verify(
    names: Annotated[list[str] | None, typer.Argument(help="Ops to try; all when left out.")] = None,
    library: Annotated[
        Path | None, typer.Option(exists=True, help="Try this library alone, in ONNX Runtime on the CPU.")
    ] = None,
    folder: Folder = None,
    domain: Domain = None,
) -> None:
    """Run every case of every op on every engine, and print the matrix and why a cell can't be run here. Ends with 1
    when a cell is red or none could be run."""
    from ops_build.building.manifest import built_table, newer_sources
    from ops_build.building.options import BuildError
    from ops_build.table import read_table
    from ops_build.verification.engine import engines_of
    from ops_build.verification.report import verify_and_print

    try:
        options = _options(folder, domain)
        if library:
            from ops_build.adapters.onnxruntime.engine import OnnxRuntimeEngine

            table, engines = read_table(library), [OnnxRuntimeEngine(library)]
            green = verify_and_print(table, options.ops[0], engines, names or [])
        else:
            if older := newer_sources(options):
                typer.echo(
                    f"sources are newer than {', '.join(older)}: run opgate build to try what they say", err=True
                )
            green = verify_and_print(built_table(options), options.ops[0], engines_of(options), names or [])
    except (BuildError, OSError, ValueError) as error:
        raise _fail(error) from None
    if not green:
        raise typer.Exit(1)


@app.command()
def decompose(
    model: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="An ONNX model with nodes of the ops.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where it goes; <MODEL>_decomposed.onnx when left out.")
    ] = None,
    library: Library = None,
    folder: Folder = None,
    domain: Domain = None,
) -> None:
    """Put functions of standard operators into a model: they run where no op library is registered."""
    from ops_build.building.manifest import built_table
    from ops_build.building.options import BuildError
    from ops_build.onnx.decompose import decompose_file
    from ops_build.table import read_table

    target = output or model.with_name(f"{model.stem}_decomposed.onnx")
    try:
        options = _options(folder, domain)
        table = read_table(library) if library else built_table(options)
        decomposed = decompose_file(model, target, table, options.ops)
    except (BuildError, OSError, ValueError) as error:
        raise _fail(error) from None
    for (name, overload), nodes in decomposed.functions.items():
        typer.echo(f"{name}{f' with {overload}' if overload else ''}: {nodes} node{'s' if nodes > 1 else ''}")
    for name in decomposed.left:
        typer.echo(f"{name} has no decomposition: its nodes still need the op library")
    typer.echo(f"wrote {target}")


@app.command()
def tensorrt(
    model: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="An ONNX model that uses the ops.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="MODEL_tensorrt.onnx when left out.")] = None,
    folder: Folder = None,
    domain: Domain = None,
) -> None:
    """Write a model as TensorRT's parser and the plugin library want it: all outputs of the plugins, no inputs left out
    before others, and which values are read on the host."""
    from ops_build.adapters.tensorrt.model import rewrite_file
    from ops_build.building.manifest import built_table
    from ops_build.building.options import BuildError

    target = output or model.with_name(f"{model.stem}_tensorrt.onnx")
    try:
        rewritten = rewrite_file(model, target, built_table(_options(folder, domain)))
    except (BuildError, OSError, ValueError) as error:
        raise _fail(error) from None
    for name, count in rewritten.items():
        typer.echo(f"{name}: {count} node{'s' if count > 1 else ''}")
    typer.echo(f"wrote {target}")


@app.command()
def trust(library: Annotated[Path, typer.Argument(help="The op library to list.")]) -> None:
    """List a library in the manifest of its folder, so that the gateway loads it."""
    from service.repository.op_libraries import trust as trust_library

    try:
        typer.echo(f"listed in {trust_library(library)}")
    except FileNotFoundError:
        raise _fail(FileNotFoundError(f"{library}: there is no such file")) from None
    except (OSError, ValueError) as error:
        raise _fail(error) from None


def main() -> None:
    # `serve` and `infer` have their options where they are implemented.
    from opgate.infer import infer
    from opgate.serve import serve

    app.command()(serve)
    app.command()(infer)
    app()
