"""Exports a module into a model repository, and compares what it wrote with the module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx
import torch

from opgate.onnx_tools import foreign, repository
from opgate.onnx_tools.agreement import OTHER_SIZES, Pair, compared, complete_outputs
from opgate.onnx_tools.from_torch import factory
from opgate.onnx_tools.from_torch.exporters import ExportError, ExportSetting, export
from opgate.onnx_tools.from_torch.inputs import (
    InputSpec,
    bind,
    random_tensors,
    sizes_for,
    specs_of_examples,
)
from opgate.onnx_tools.model_inputs import InputError
from opgate.onnx_tools.unknown_nodes import unknown_ops
from opgate.ops_build.onnx import schema
from opgate.ops_build.onnx.decompose import DecompositionError, decompose
from opgate.ops_build.onnx.nodes import nodes_of, op_counts
from opgate.ops_build.op_table import Op

EXPORT = Pair("the export", "the module")

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """What is exported, and where to.

    `ops` are the ops of the loaded libraries, `libraries` the same libraries for ONNX Runtime, by domain, and `folders`
    hold the op folders. `exporter` is empty if the module decides.
    """

    reference: str
    target: Path
    setting: ExportSetting
    specs: Sequence[InputSpec]
    libraries: Mapping[str, Path]
    folders: Sequence[Path]
    sizes: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    max_batch_size: int | None = None
    version: int = 1
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class Exported:
    """The files that were written, and the lines of the report."""

    paths: list[Path]
    report: list[str]


def export_into_repository(job: Job) -> Exported:
    """Exports a module, checks the model and writes it. Raises ExportError, Disagreement, FactoryError, InputError
    and RepositoryError; then nothing was written."""
    made = factory.make(job.reference)
    specs, inputs, sizes = _inputs(job, made)
    module, names = factory.flattened(made.module, inputs, [spec.name for spec in specs])
    made = replace(made, module=module)
    with factory.functions_with_symbolic() as functions:
        outputs = factory.outputs_of(made.module, inputs)
    setting = replace(
        _chosen(job.setting, functions), outputs=_output_names(job.setting.outputs or names, len(outputs))
    )
    model = export(made.module, inputs, specs, setting)
    report = [f"exported by the exporter {setting.exporter} of PyTorch {torch.__version__}", *_rewritten(model, job)]
    used = sorted({node.domain for node in nodes_of(model)} & job.libraries.keys())
    libraries = [job.libraries[domain] for domain in used]
    report += _checked(job, made, specs, inputs, sizes, model, libraries)
    config = repository.config_text(
        model, job.target.resolve().name, [path.name for path in libraries], job.max_batch_size
    )
    paths = repository.write(model, job.target, config, job.version, overwrite=job.overwrite)
    if len(paths) == 1:
        report.append(f"{job.target / 'config.pbtxt'} is there and stays: --overwrite replaces it")
    return Exported(paths, report)


def _inputs(job: Job, made: factory.Made) -> tuple[Sequence[InputSpec], Tensors, dict[str, int]]:
    """Returns the inputs' specs, the tensors of the trace and the sizes of the open dims."""
    if made.examples is None:
        if not job.specs:
            raise InputError(f"{job.reference} gives no example inputs: state each with --input NAME:DTYPE[SIZES]")
        _check_sizes(job, job.specs)
        sizes = sizes_for(job.specs, job.sizes)
        return job.specs, random_tensors(job.specs, sizes, job.seed), sizes
    names = factory.parameter_names(made.module, len(made.examples))
    specs = job.specs or specs_of_examples(made.examples, names)
    _check_sizes(job, specs)
    sizes = dict(job.sizes)
    bind(specs, made.examples, sizes)
    return specs, made.examples, sizes


def _check_sizes(job: Job, specs: Sequence[InputSpec]) -> None:
    for dim in job.sizes:
        if not any(dim in spec.dims for spec in specs):
            raise InputError(f"--size: no input has an open dim '{dim}'")


def _output_names(stated: Sequence[str], count: int) -> tuple[str, ...]:
    """Returns a name for each output. Raises InputError if other names are stated."""
    if not stated:
        return ("output",) if count == 1 else tuple(f"output_{i}" for i in range(count))
    if len(stated) != count:
        raise InputError(f"--output: expected {count} names, one for each output of the module, got {len(stated)}")
    return tuple(stated)


def _chosen(setting: ExportSetting, functions: set[str]) -> ExportSetting:
    """Returns the setting with an exporter. Only the legacy one reads the `symbolic` of a function."""
    if not setting.exporter:
        return replace(setting, exporter="legacy" if functions else "dynamo")
    if setting.exporter == "dynamo" and functions:
        raise ExportError(
            f"the exporter dynamo ignores the symbolic of {', '.join(sorted(functions))}: use --exporter legacy"
        )
    return setting


def _rewritten(model: onnx.ModelProto, job: Job) -> list[str]:
    """Rewrites others' nodes in a model. Returns lines of the report. Raises ExportError if there is a node that nobody
    has."""
    schema.register(job.setting.ops)
    lines = []
    for node in foreign.rewrite(model):
        if node.refusal:
            raise ExportError(f"{node.name} (node '{node.node}') can't become {node.op}: {node.refusal}")
        lines.append(f"{node.name} became {node.op}{f' ({node.note})' if node.note else ''}")
    known = {(op.domain, op.name): op for op in job.setting.ops}
    for unknown in unknown_ops(model, known):
        if unknown.name.startswith("com.microsoft"):
            continue
        raise ExportError(
            f"the export has {unknown.name}, which no library has: give the library with --torch-library, map it with "
            f"--map, or let its symbolic name an op of opgate"
        )
    complete_outputs(model)
    return [*lines, *op_counts(model, job.setting.ops)]


def _checked(
    job: Job,
    made: factory.Made,
    specs: Sequence[InputSpec],
    inputs: Tensors,
    sizes: Mapping[str, int],
    model: onnx.ModelProto,
    libraries: Sequence[Path],
) -> list[str]:
    """Compares a model with the module, and returns the lines of the report. Raises Disagreement if they differ."""
    sets = {"": inputs}
    seeded = made.examples is None
    if seeded:
        sets[" on other random inputs"] = random_tensors(specs, sizes, job.seed + 1)
    lines = []
    if sizes and seeded:
        others = {dim: size * OTHER_SIZES for dim, size in sizes.items()}
        stated = ", ".join(f"{dim}={size}" for dim, size in others.items())
        larger = random_tensors(specs, others, job.seed)
        try:
            factory.outputs_of(made.module, larger)
            sets[f" at {stated}"] = larger
        except factory.FactoryError as error:
            lines.append(f"not checked at {stated}: {error}")
    elif sizes:
        lines.append("not checked at other sizes: the factory gives the inputs")
    for where, tensors in sets.items():
        expected = factory.outputs_of(made.module, tensors)
        told = f"with {', '.join(path.name for path in libraries)}" if libraries else "in ONNX Runtime"
        lines.append(f"{told}{where}: {_compared(model, libraries, specs, tensors, expected)}")
    if libraries:
        lines.append(_without_libraries(job.setting.ops, job.folders, model, specs, inputs, made))
    return lines


def _without_libraries(
    ops: Sequence[Op],
    folders: Sequence[Path],
    model: onnx.ModelProto,
    specs: Sequence[InputSpec],
    inputs: Tensors,
    made: factory.Made,
) -> str:
    """Compares the model with its ops as functions of standard operators, without the libraries."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    try:
        decomposed = decompose(plain, ops, folders)
    except (DecompositionError, FileNotFoundError) as error:
        return f"without the library: not checked, {error}"
    if decomposed.left:
        return f"without the library: not checked, {', '.join(decomposed.left)} has no decomposition"
    return f"without the library: {_compared(plain, (), specs, inputs, factory.outputs_of(made.module, inputs))}"


def _compared(
    model: onnx.ModelProto,
    libraries: Sequence[Path],
    specs: Sequence[InputSpec],
    tensors: Tensors,
    expected: Tensors,
) -> str:
    """Runs a model and returns how far its results are from those of the module. Raises Disagreement if that is
    far."""
    for spec in specs:
        if spec.dtype == "bf16":
            raise InputError(f"input '{spec.name}' is bf16, which ONNX Runtime takes from no client: state f32 or f16")
    feeds = {spec.name: tensor.numpy() for spec, tensor in zip(specs, tensors, strict=True)}
    return compared(EXPORT, model, libraries, feeds, [tensor.detach().numpy() for tensor in expected])
