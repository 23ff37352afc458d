"""`opgate plan`: compiles models of a repository with TensorRT, for a Triton server on GPUs.

The target is a whole repository: the compiled models as `tensorrt_plan`, and all others as they are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opgate.commands.infer import Repository

if TYPE_CHECKING:
    from opgate.ops_build.op_table import Op
    from opgate.service.settings import Settings

#: Where NVIDIA's containers have it, if it is not on PATH.
_PLACES = ("/usr/src/tensorrt/bin", "/workspace/tensorrt/bin", "/opt/tensorrt/bin")
#: The datatypes of Triton's config that TensorRT takes as inputs and outputs.
_TYPES = frozenset({"BOOL", "BF16", "FP16", "FP32", "INT8", "INT32", "INT64", "UINT8"})

Names = Annotated[list[str], typer.Argument(help="The models to compile.", metavar="MODEL...")]
To = Annotated[Path, typer.Option("--to", help="The repository to write. Models of these names in it are replaced.")]
Trtexec = Annotated[
    str | None,
    typer.Option(help="TensorRT's compiler.", show_default="trtexec on PATH, else where NVIDIA's containers have it"),
]
Folder = Annotated[Path | None, typer.Option(help="Folder with your ops. Default: the ops of opgate.")]
Domain = Annotated[str | None, typer.Option(help="Domain of your ops. Default: the name of their folder.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", help="An option for trtexec, such as --fp16. Shapes given here replace those of the config."
    ),
]


class PlanError(Exception):
    """A model can't be compiled. The message says why."""


def plan(
    models: Names,
    to: To,
    model_repository: Repository = None,
    trtexec: Trtexec = None,
    option: Options = None,
    folder: Folder = None,
    domain: Domain = None,
) -> None:
    """Compile models with TensorRT for a Triton server, on the kind of GPU that will run them."""
    from opgate.ops_build.building.manifest import built_table
    from opgate.ops_build.building.options import BuildError, BuildOptions, out_of_tree
    from opgate.service.core.errors import ServingError
    from opgate.service.settings import Settings

    settings = Settings() if model_repository is None else Settings(model_repository=model_repository)
    try:
        source, target = settings.repository().resolve(), to.resolve()
        if target == source or source in target.parents or target in source.parents:
            raise PlanError(f"--to {to} and the model repository {source} must not lie in one another")
        names = sorted(path.name for path in source.iterdir() if path.is_dir() and not path.name.startswith("."))
        if unknown := sorted(set(models) - set(names)):
            raise PlanError(f"there is no model '{unknown[0]}' in {source}")
        compiler = _compiler(trtexec)
        built = out_of_tree(folder, domain=domain) if folder else BuildOptions()
        plugins = built.library("tensorrt")
        if not plugins.is_file():
            raise PlanError(f"{plugins} is not there: run opgate build")
        compile_one = _Compiler(settings, compiler, plugins, built_table(built), option or [])
        to.mkdir(parents=True, exist_ok=True)
        for name in models:
            typer.echo(f"{name}: compiling")
            with _replaced(to / name) as new:
                compile_one.compile(name, new)
            typer.echo(f"{name}: wrote {to / name}")
        for name in sorted(set(names) - set(models)):
            with _replaced(to / name) as new:
                shutil.copytree(source / name, new, dirs_exist_ok=True)
    except (PlanError, BuildError, ServingError, OSError, ValueError) as error:
        typer.echo(f"opgate: {error}", err=True)
        raise typer.Exit(1) from None


def _compiler(named: str | None) -> str:
    """Returns the program. Raises PlanError."""
    if named is not None:
        found = shutil.which(named)
    else:
        found = shutil.which("trtexec", path=os.pathsep.join([os.environ.get("PATH", ""), *_PLACES]))
    if found is None:
        raise PlanError(
            f"there is no program {named or 'trtexec'}: it comes with TensorRT, in NVIDIA's container too; "
            "name it with --trtexec"
        )
    return found


class _replaced:
    """A new folder that takes the place of an old one at the end of the block, unless that fails."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __enter__(self) -> Path:
        self._folder = Path(tempfile.mkdtemp(prefix=f".{self._target.name}-", dir=self._target.parent))
        self._folder.chmod(0o755)
        return self._folder

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                old = Path(tempfile.mkdtemp(prefix=".old-", dir=self._target.parent))
                if self._target.exists():
                    self._target.rename(old / "model")
                self._folder.rename(self._target)
                shutil.rmtree(old)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Compiler:
    """What all models are compiled with: the program, the plugins, the ops in them, and options of the program."""

    settings: Settings
    program: str
    plugins: Path
    ops: Sequence[Op]
    options: Sequence[str]

    def compile(self, name: str, folder: Path) -> None:
        """Writes a compiled model into a folder. Raises PlanError, ServingError, ValueError, OSError."""
        from google.protobuf import text_format

        from opgate.service.repository.loader import load_config
        from opgate.service.repository.paths import version_numbers

        source = self.settings.repository().resolve()
        config = load_config(source, name)
        if config.platform == "ensemble" or config.HasField("ensemble_scheduling"):
            steps = ", ".join(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))
            raise PlanError(f"'{name}' is an ensemble: compile the models of its steps, {steps}")
        if "pad_masks" in config.parameters:
            raise PlanError(f"'{name}' has pad_masks: Triton computes no masks, so it could not run the compiled model")
        versions = version_numbers(source / name)
        if not versions:
            raise PlanError(f"model '{name}' has no version in {source / name}")
        completed = _completed(self.settings, config, versions[-1])
        for tensor in (*completed.input, *completed.output):
            datatype = _datatype(tensor)
            if datatype not in _TYPES:
                raise PlanError(f"tensor '{tensor.name}' of model '{name}' is {datatype}, which TensorRT doesn't have")
        for version in versions:
            (folder / str(version)).mkdir()
            file = source / name / str(version) / (config.default_model_filename or "model.onnx")
            shapes = [] if any("Shapes=" in given for given in self.options) else _shapes(completed, file)
            self._run(file, folder / str(version) / "model.plan", shapes)
        for file in (source / name).iterdir():
            if file.is_file() and file.name != "config.pbtxt" and file.suffix != ".so":
                shutil.copy2(file, folder / file.name)
        (folder / "config.pbtxt").write_text(text_format.MessageToString(_for_tensorrt(completed, config)))

    def _run(self, file: Path, target: Path, shapes: Sequence[str]) -> None:
        """Compiles a file. Raises PlanError with the last lines of the compiler, ValueError."""
        from opgate.onnx_tools.for_tensorrt import NothingToRewrite, rewrite_file

        with tempfile.TemporaryDirectory() as temporary:
            # Weights may lie in files beside the model, and must lie beside the rewritten one.
            for beside in file.parent.iterdir():
                (Path(temporary) / beside.name).symlink_to(beside)
            shutil.copyfile(file, copy := Path(temporary) / "opgate_original.onnx")
            rewritten = Path(temporary) / "opgate_tensorrt.onnx"
            try:
                rewrite_file(copy, rewritten, self.ops)
            except NothingToRewrite:
                rewritten = file
            command = [self.program, f"--onnx={rewritten}", f"--saveEngine={target}", f"--staticPlugins={self.plugins}"]
            command += ["--skipInference", *shapes, *self.options]
            finished = subprocess.run(command, capture_output=True, text=True)
        if finished.returncode or not target.is_file():
            lines = (finished.stdout + finished.stderr).strip().splitlines()[-20:]
            raise PlanError(f"{self.program} ended with {finished.returncode}:\n" + "\n".join(lines))


def _completed(settings: Settings, config: Any, version: int) -> Any:
    """Returns the config with what the model file says of its tensors."""
    import asyncio

    from opgate.service.execution.scheduler import Scheduler
    from opgate.service.repository.loader import load_model, on_cpu

    model = load_model(settings.repository().resolve(), on_cpu(config), version, settings)
    assert isinstance(model.executor, Scheduler)
    asyncio.run(model.executor.close())
    return model.config


def _datatype(tensor: Any) -> str:
    from opgate.service.core.triton_messages import DataType

    return str(DataType.Name(tensor.data_type)).removeprefix("TYPE_").replace("STRING", "BYTES")


def _shapes(config: Any, file: Path) -> list[str]:
    """Returns the options for the shapes of inputs whose sizes the file leaves open: batches from one row to the
    largest. Raises PlanError if another size is unknown."""
    import onnx

    graph = onnx.load(file, load_external_data=False).graph
    is_open = {
        tensor.name: any(not size.HasField("dim_value") for size in tensor.type.tensor_type.shape.dim)
        for tensor in graph.input
    }
    parts: dict[str, list[str]] = {"min": [], "opt": [], "max": []}
    for tensor in config.input:
        dims = list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
        if -1 in dims:
            raise PlanError(
                f"input '{tensor.name}' of model '{config.name}' has the variable shape {dims}: say what sizes it may "
                f"have, with --option=--minShapes={tensor.name}:... and so for optShapes and maxShapes"
            )
        if is_open.get(tensor.name):
            most = config.max_batch_size
            for which, rows in (("min", 1), ("opt", most), ("max", most)):
                shape = [rows, *dims] if most else dims
                parts[which].append(f"{tensor.name}:{'x'.join(map(str, shape))}")
    return [f"--{which}Shapes={','.join(shapes)}" for which, shapes in parts.items() if shapes]


def _for_tensorrt(completed: Any, config: Any) -> Any:
    """Returns the config of the compiled model. `config` is as it was written, `completed` as it was on the CPU."""
    from opgate.service.core.triton_messages import ModelInstanceGroup
    from opgate.service.repository.config import BATCH_PARAMETERS, CUDA_PARAMETERS, ENGINE_PARAMETERS, SESSION_PREFIX
    from opgate.service.repository.loader import copied

    new = copied(completed)
    new.platform, new.backend = "tensorrt_plan", ""
    names = ("default_model_filename", "cc_model_filenames", "runtime", "model_operations", "instance_group")
    for name in (*names, "optimization"):
        new.ClearField(name)
    new.instance_group.extend(
        group for group in config.instance_group if group.kind == ModelInstanceGroup.KIND_GPU or group.gpus
    )
    if not new.instance_group:
        new.instance_group.add(kind=ModelInstanceGroup.KIND_GPU, count=1)
    # Options of ONNX Runtime, and of batches, which Triton forms. The others stay: Triton gives them no meaning.
    for key in list(new.parameters):
        if key.startswith(SESSION_PREFIX) or key in ENGINE_PARAMETERS | CUDA_PARAMETERS | BATCH_PARAMETERS:
            del new.parameters[key]
    return new
