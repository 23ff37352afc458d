"""The commands that build, check and give away ops. Each imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from opgate.ops_build.building.options import BuildOptions

OpsFolder = Annotated[
    Path | None, typer.Argument(help="Folder with your ops, one subfolder per op. Default: the ops of opgate.")
]
Output = Annotated[Path | None, typer.Option(help="Folder to write the libraries and manifest.json to.")]
Domain = Annotated[str | None, typer.Option(help="Domain of your ops. Default: the name of their folder.")]


def _fail(error: Exception) -> typer.Exit:
    typer.echo(f"opgate: {error}", err=True)
    return typer.Exit(1)


Engines = Annotated[
    list[str] | None, typer.Option(help="Engines to compile for. Default: all whose toolchain is installed.")
]
Arch = Annotated[
    str | None,
    typer.Option(
        envvar="OPGATE_ARCH",
        help="native: only for processors like this machine's. Or compiler flags, such as -march=x86-64-v3. "
        "Default: kernels for every processor, for AVX2 and for AVX-512; the library chooses.",
    ),
]
CudaArchitectures = Annotated[
    str,
    typer.Option(
        envvar="OPGATE_CUDA",
        help="CUDA architectures, such as 90 or 80;90. auto: this machine's GPUs, or 90 without a GPU. "
        "all: every supported one. Empty: no CUDA.",
    ),
]
Verbose = Annotated[bool, typer.Option(help="Show the output of the compiler.")]


Machine = Annotated[
    str | None,
    typer.Option(
        help="Architecture that the libraries are for: x86_64 or aarch64. Another one needs a cross compiler."
    ),
]


def build(
    folder: OpsFolder = None,
    output: Output = None,
    domain: Domain = None,
    engine: Engines = None,
    arch: Arch = None,
    cuda: CudaArchitectures = "auto",
    sanitize: Annotated[str, typer.Option(help="Sanitizers for -fsanitize, such as address,undefined.")] = "",
    machine: Machine = None,
    portable: Annotated[
        bool, typer.Option("--portable", help="Make libraries that run with glibc 2.28 and later, to give them away.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Compile the ops for every engine whose toolchain is installed, and write the manifest."""
    from dataclasses import replace

    from opgate.ops_build.building.build import build as compile_ops
    from opgate.ops_build.building.options import BuildError, for_machine

    try:
        options = _build_options(folder, output, domain, engine, arch, cuda)
        if sanitize and not output:  # so that it never overwrites the libraries that the gateway loads
            options = replace(options, output=options.output.parent / "sanitized")
        options = replace(options, sanitize=sanitize, portable=portable)
        compile_ops(for_machine(options, machine), _build_log(verbose))
    except BuildError as error:
        raise _fail(error) from None


def _build_options(
    folder: Path | None,
    output: Path | None,
    domain: str | None,
    engine: list[str] | None,
    arch: str | None,
    cuda: str,
) -> BuildOptions:
    """Returns the options of a build. Raises BuildError."""
    from dataclasses import replace

    from opgate.ops_build.building.options import ENGINES, BuildError, BuildOptions, out_of_tree

    options = out_of_tree(folder, output, domain) if folder else BuildOptions()
    if output:
        options = replace(options, output=output.resolve())
    if engine:
        if unknown := set(engine) - set(ENGINES):
            raise BuildError(f"there is no engine {', '.join(sorted(unknown))}: expected {', '.join(ENGINES)}")
        options = replace(options, engines=tuple(engine))
    if arch is not None:
        options = replace(options, arch=arch)
    return replace(options, cuda=cuda)


def _build_log(verbose: bool, quiet: bool = False, err: bool = False) -> Callable[[str], None]:
    """Returns what prints the lines of a build: those of the compiler as progress, unless `verbose`; `quiet` leaves out
    the others. It prints to stderr if `err` is set."""
    from opgate.ops_build.building.progress import CompilerProgress

    progress = CompilerProgress(typer.get_text_stream("stderr" if err else "stdout").isatty())

    def log(line: str) -> None:
        if verbose or not line.startswith(("[", "ninja:", "gmake")):
            if verbose or not quiet:
                typer.echo(line, err=err)
        elif said := progress.line(line):
            typer.echo(said, nl=not progress.terminal, err=err)

    return log


def watch(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Folder with your ops, one subfolder per op.")
    ],
    domain: Domain = None,
    engine: Engines = None,
    arch: Arch = None,
    cuda: CudaArchitectures = "auto",
    verbose: Verbose = False,
) -> None:
    """Build and verify your ops, and again what changed whenever you save a file of theirs, until Ctrl-C.

    Only the cases of ops that changed are run. With one --engine and --arch native it is fastest.
    """
    from opgate.ops_build.verification.watch import Watch, changes

    def options() -> BuildOptions:
        return _build_options(folder, None, domain, engine, arch, cuda)

    try:
        watched = Watch(options, folder, log=_build_log(verbose, quiet=True), say=typer.echo)
        for changed in changes(folder.resolve()):
            watched.run(changed)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


Library = Annotated[
    Path | None, typer.Option(exists=True, help="Op library. Default: the library that `opgate build` wrote.")
]
Folder = Annotated[Path | None, typer.Option(help="Folder with your ops. Default: the ops of opgate.")]


def _options(folder: Path | None, domain: str | None = None) -> BuildOptions:
    """Returns the options to build the ops in `folder`, or opgate's ops if it is None."""
    from opgate.ops_build.building.options import BuildError, BuildOptions, out_of_tree

    try:
        return out_of_tree(folder, domain=domain) if folder else BuildOptions()
    except BuildError as error:
        raise _fail(error) from None


def ops(
    library: Library = None,
    folder: Folder = None,
    domain: Domain = None,
    markdown: Annotated[bool, typer.Option(help="Print the page docs/ops.md.")] = False,
) -> None:
    """Print the op table: signatures, dtypes and devices."""
    from opgate.ops_build.building.manifest import built_table
    from opgate.ops_build.building.options import BuildError
    from opgate.ops_build.op_table import read_table
    from opgate.ops_build.ops_page import markdown_table, print_table

    try:
        options = _options(folder, domain)
        table = read_table(library) if library else built_table(options)
        if markdown:
            typer.echo(markdown_table(table, options.ops[0]), nl=False)
        else:
            print_table(table)
    except (BuildError, OSError, ValueError) as error:
        raise _fail(error) from None


def verify(
    names: Annotated[list[str] | None, typer.Argument(help="Ops to verify. Default: all.")] = None,
    library: Annotated[
        Path | None, typer.Option(exists=True, help="Verify only this library, in ONNX Runtime on the CPU.")
    ] = None,
    folder: Folder = None,
    domain: Domain = None,
    sanitize: Annotated[
        bool,
        typer.Option(
            "--sanitize",
            help="Also run the CPU kernels under the address, undefined-behaviour and thread sanitizers.",
        ),
    ] = False,
    emulate_cuda: Annotated[
        bool,
        typer.Option("--emulate-cuda", help="Also run the CUDA kernels without a GPU, on emulated threads."),
    ] = False,
    dtype: Annotated[
        list[str] | None, typer.Option(help="Verify an op only with this dtype, if it takes it. Repeatable.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that a case may take.")] = 60,
) -> None:
    """Run every case of every op on every engine, JAX and OpenVINO too if they are installed. Print the results as a
    matrix, and why a cell can't run here. Exit with 1 if a case fails or no case can run.

    Each engine runs in a process of its own, on tensors that lie between pages without access. So a kernel that
    crashes, loops or leaves its tensors fails its case, and the next case goes on.
    """
    from opgate.ops_build.building.manifest import built_table, newer_sources
    from opgate.ops_build.building.options import BuildError
    from opgate.ops_build.engines.engine import EngineSource
    from opgate.ops_build.op_table import read_table
    from opgate.ops_build.packaging.provenance import record
    from opgate.ops_build.runner.checks import emulated, interpreted, sanitized, with_cuda_kernels
    from opgate.ops_build.verification.report import is_green, ops_named, verify_and_print
    from opgate.ops_build.verification.sources import OneLibrary, adapters_of, callers_of
    from opgate.ops_build.verification.supervision import supervised

    log = _build_log(verbose=False, err=True)
    try:
        options = _options(folder, domain)
        sources: list[EngineSource]
        if library:
            table, sources = read_table(library), [OneLibrary(library)]
        else:
            if older := newer_sources(options):
                log(f"the sources are newer than {', '.join(older)}: run opgate build first to verify them")
            table, sources = built_table(options), [*adapters_of(options), *callers_of(options)]
        if emulate_cuda or not library:
            table = with_cuda_kernels(table, options)
        chosen = ops_named(table, names or [])
        sources += sanitized(options, log) if sanitize else []
        sources += emulated(options, log, chosen if names else ()) if emulate_cuda else []
        sources += [] if library else interpreted(options)
        with supervised(sources, time_limit=timeout) as engines:
            cells = verify_and_print(table, options.ops[0], engines, names or [], dtype or [])
        if not (library or names or dtype):
            record(options, cells)
    except (BuildError, OSError, ValueError) as error:
        raise _fail(error) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if not is_green(cells):
        raise typer.Exit(1)


def new(
    folder: Annotated[Path, typer.Argument(help="Folder of the op, named in snake_case: my_ops/scale_add.")],
    signature: Annotated[
        str | None,
        typer.Option(help="The op's signature (docs/signatures.md). Default: an elementwise op, factor * x."),
    ] = None,
    python: Annotated[bool, typer.Option("--python", help="Write an op.py: the op in Python.")] = False,
) -> None:
    """Write the folder of a new op, which builds and verifies at once.

    Without a signature it is an elementwise formula for the CPU and for CUDA, with --python in Python and else in C++.
    With one it gives zeros, until you write what it should compute: with --python in a NumPy function, which needs no
    compiler, and else in a kernel in C++ and a reference.
    """
    import shlex

    from opgate.ops_build.building.options import BuildOptions
    from opgate.ops_build.scaffold import OWN_OPS, new_op

    try:
        paths = new_op(folder, signature, BuildOptions().library(), python=python)
    except (OSError, ValueError) as error:
        raise _fail(error) from None
    for path in paths:
        typer.echo(f"wrote {folder / path.name}")
    ops = shlex.quote(str(folder.parent))
    if folder.resolve().parent == OWN_OPS:
        typer.echo(
            "next: opgate build, and opgate verify with the op's name; CONTRIBUTING.md has the lists that name it"
        )
    else:
        typer.echo(f"next: opgate build {ops}, then opgate verify --folder {ops}")


def adopt(
    library: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A library with functions of TVM-FFI.")],
    signature: Annotated[str, typer.Option(help="The op's signature (docs/signatures.md).")],
    to: Annotated[Path, typer.Option(help="Folder of the op, named in snake_case: my_ops/scale_add.")],
    symbol: Annotated[
        str | None, typer.Option(help="Name of the function, without __tvm_ffi_. Default: the op's, or the only one.")
    ] = None,
) -> None:
    """Make a function of TVM-FFI, which somebody has compiled, the CPU kernel of an op.

    It gets the inputs, the outputs and the attributes, in the signature's order. The folder gets a copy of the library,
    and an op.py in which you write what the function computes: opgate verify holds the function to it.
    """
    import shlex

    from opgate.ops_build.adopt import adopt as write_folder

    try:
        paths = write_folder(library, signature, to, symbol)
    except (OSError, ValueError, RuntimeError) as error:
        raise _fail(error) from None
    for path in paths:
        typer.echo(f"wrote {to / path.name}")
    ops = shlex.quote(str(to.parent))
    typer.echo(
        f"next: write in {to / 'op.py'} what the function computes, opgate build {ops}, opgate verify --folder {ops}"
    )


SigningKey = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="Sign the manifest with this private key of Ed25519, in PEM."),
]


def package(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Folder with your ops, built.")],
    version: Annotated[str, typer.Option(help="Version of the wheel.")] = "0.1.0",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write the wheel to.")] = Path("dist"),
    domain: Domain = None,
    key: SigningKey = None,
    machine: Machine = None,
) -> None:
    """Make a wheel of your ops, to give them away: libraries, manifest, Python functions, references and pages.

    The one who installs it runs OPGATE_OPS_PATH=$(python -m my_ops) opgate serve, or passes my_ops.op_library() to ONNX
    Runtime. Libraries that yours are linked with, beyond the C and C++ ones, must be on that machine.
    """
    from opgate.ops_build.building.old_glibc import OLDEST
    from opgate.ops_build.building.options import BuildError, for_machine
    from opgate.ops_build.packaging.package import needed_glibc
    from opgate.ops_build.packaging.package import package as make_wheel
    from opgate.signed_manifests import SigningError

    try:
        options = for_machine(_options(folder, domain), machine)
        typer.echo(f"wrote {make_wheel(options, version, output, key)}")
        if (needed := needed_glibc(options)) > OLDEST:
            typer.echo(
                f"it needs glibc {'.'.join(map(str, needed))} or later; what opgate build --portable makes needs "
                f"{'.'.join(map(str, OLDEST))}"
            )
    except (BuildError, SigningError, OSError) as error:
        raise _fail(error) from None


def sign(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Folder with manifest.json.")],
    key: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="Private key of Ed25519, in PEM.")],
) -> None:
    """Sign the manifest of a folder of op libraries, and so the libraries that it lists.

    openssl genpkey -algorithm ed25519 -out key.pem makes a key, openssl pkey -in key.pem -pubout its public half. A
    gateway with --trusted-signers takes only libraries that one of its keys has signed.
    """
    from opgate.signed_manifests import MANIFEST, SIGNATURE, SigningError
    from opgate.signed_manifests import sign as signature_of

    try:
        (folder / SIGNATURE).write_bytes(signature_of((folder / MANIFEST).read_bytes(), key))
        typer.echo(f"wrote {folder / SIGNATURE}")
    except (SigningError, OSError) as error:
        raise _fail(error) from None


def diff(
    old: Annotated[Path, typer.Argument(exists=True, help="The old version: a wheel, or a folder of opgate build.")],
    new: Annotated[Path, typer.Argument(exists=True, help="The new version.")],
) -> None:
    """Say what a new version of op libraries breaks for models and callers of the old one. Exit with 1 if it does.

    It compares what the manifests state, and loads none of the libraries.
    """
    from opgate.ops_build.building.options import BuildOptions
    from opgate.ops_build.packaging.compare import compare

    try:
        changes = compare(old, new, BuildOptions().library())
    except (OSError, ValueError) as error:
        raise _fail(error) from None
    for change in sorted(changes, key=lambda change: not change.breaks):
        typer.echo(f"{'breaks' if change.breaks else 'adds  '}  {change.text}")
    breaks = sum(change.breaks for change in changes)
    typer.echo(f"{breaks} changes break models or callers, {len(changes) - breaks} don't")
    if breaks:
        raise typer.Exit(1)


def decompose(
    model: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="An ONNX model that uses the ops.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write. Default: MODEL_decomposed.onnx.")
    ] = None,
    library: Library = None,
    folder: Folder = None,
    domain: Domain = None,
) -> None:
    """Add the ops to a model as functions of standard operators, so that it also runs without the op library."""
    from opgate.ops_build.building.manifest import built_table
    from opgate.ops_build.building.options import BuildError
    from opgate.ops_build.onnx.decompose import decompose_file
    from opgate.ops_build.op_table import read_table

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


def tensorrt(
    model: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="An ONNX model that uses the ops.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write. Default: MODEL_tensorrt.onnx.")
    ] = None,
    folder: Folder = None,
    domain: Domain = None,
) -> None:
    """Rewrite a model for TensorRT's parser and the plugin library. Each node then has every output of its plugin,
    lists no absent input, and says which inputs are read on the host."""
    from opgate.onnx_tools.for_tensorrt import rewrite_file
    from opgate.ops_build.building.manifest import built_table
    from opgate.ops_build.building.options import BuildError

    target = output or model.with_name(f"{model.stem}_tensorrt.onnx")
    try:
        rewritten = rewrite_file(model, target, built_table(_options(folder, domain)))
    except (BuildError, OSError, ValueError) as error:
        raise _fail(error) from None
    for name, count in rewritten.counts.items():
        typer.echo(f"{name}: {count} node{'s' if count > 1 else ''}")
    for op in rewritten.left:
        typer.echo(f"{op.name} is left as it is: if it is an op of yours, name its folder with --folder")
    typer.echo(f"wrote {target}")


def trust(library: Annotated[Path, typer.Argument(help="The op library to list.")]) -> None:
    """List a library in a manifest that the gateway trusts, so that the gateway loads it."""
    from opgate.service.repository.op_libraries import trust as trust_library

    try:
        typer.echo(f"listed in {trust_library(library)}")
    except FileNotFoundError:
        raise _fail(FileNotFoundError(f"{library}: there is no such file")) from None
    except (OSError, ValueError) as error:
        raise _fail(error) from None
