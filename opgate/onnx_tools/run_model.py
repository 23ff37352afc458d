"""Runs a model with finished libraries of custom ops, in ONNX Runtime, onnx's reference evaluator or PyTorch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx.external_data_helper import load_external_data_for_model
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from opgate.onnx_tools.sessions import one_line, session
from opgate.ops_build.case import Array
from opgate.ops_build.onnx.nodes import attribute_of_node, is_standard, nodes_of
from opgate.ops_build.onnx.reference_operator import reference_operator
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.op_table import Op, read_table

ENGINES = ("onnxruntime", "reference", "torch")

#: What an engine needs for an op that it doesn't have.
_EXPECTED = {
    "reference": "a library that opgate built and --folder, where the op has a reference.py",
    "torch": "the library of the op that opgate built for torch",
}

#: Runs a model. Maps the names of inputs to arrays, returns those of the outputs.
Runner = Callable[[Mapping[str, Array]], dict[str, Array]]


class RunError(RuntimeError):
    """A model, a library or an op can't be used by the engine."""


@dataclass(frozen=True, slots=True)
class Libraries:
    """The libraries of a run. `tables` has the ops of those that opgate built; of others only the engine knows the ops.

    `folders` hold the op folders with the references.
    """

    paths: tuple[Path, ...]
    tables: Mapping[Path, Sequence[Op]]
    folders: tuple[Path, ...]


def load_model(path: Path) -> onnx.ModelProto:
    """Loads a model with its weights. Raises RunError."""
    try:
        model = onnx.load(path, format="protobuf", load_external_data=False)
    except DecodeError:
        raise RunError(f"{path} is no ONNX model") from None
    if not model.HasField("graph"):
        raise RunError(f"{path} is no ONNX model")
    try:
        load_external_data_for_model(model, str(path.resolve().parent))
    except (onnx.checker.ValidationError, OSError, ValueError) as error:
        raise RunError(f"{path}: its weights in other files can't be read: {one_line(error)}") from None
    return model


def libraries_of(model: onnx.ModelProto, paths: Sequence[Path], own: Path, folders: Sequence[Path]) -> Libraries:
    """Returns the libraries of a run: `paths`, and `own`, opgate's, if the model uses its ops and `paths` don't have
    it.

    Raises RunError.
    """
    tables: dict[Path, Sequence[Op]] = {}
    for path in paths:
        if not path.is_file():
            raise RunError(f"{path} is not there")
        try:
            tables[path] = read_table(path)
        except (OSError, ValueError):
            continue  # a library that somebody else built
    domains = {op.domain for table in tables.values() for op in table}
    used = {node.domain for node in nodes_of(model)}
    if "opgate" in used - domains and own.is_file():
        tables[own] = read_table(own)
    return Libraries(tuple(dict.fromkeys([*paths, *tables])), tables, tuple(folders))


def runner(model: onnx.ModelProto, libraries: Libraries, engine: str) -> Runner:
    """Returns what runs a model in an engine. Raises RunError and SessionError."""
    if engine == "onnxruntime":
        loaded = session(model, libraries.paths)
        names = [output.name for output in loaded.get_outputs()]
        return lambda feeds: dict(zip(names, _called(lambda: loaded.run(None, dict(feeds))), strict=True))
    operators = _reference_operators(libraries) if engine == "reference" else _torch_operators(libraries)
    have = {(operator.op_domain, operator.__name__) for operator in operators}
    functions = {(function.domain, function.name) for function in model.functions}
    for node in nodes_of(model):
        key = (node.domain, node.op_type)
        if key not in have | functions and not is_standard(node):
            expected = (
                "a library of opgate's whose folder has a reference.py"
                if engine == "reference"
                else "its library for torch"
            )
            raise RunError(f"the engine {engine} doesn't have {node.domain}::{node.op_type}: expected {expected}")
    evaluator = _called(lambda: ReferenceEvaluator(model, new_ops=operators))
    outputs = [value.name for value in model.graph.output]
    return lambda feeds: dict(zip(outputs, _called(lambda: evaluator.run(None, dict(feeds))), strict=True))


def _called(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:  # the classes of the engines' exceptions share no other base
        raise RunError(one_line(error)) from error


def _reference_operators(libraries: Libraries) -> list[type[OpRun]]:
    operators = []
    for table in libraries.tables.values():
        for op in table:
            try:
                operators.append(reference_operator(op, folder_of(op, libraries.folders).reference))
            except FileNotFoundError:
                continue
    return operators


def _torch_operators(libraries: Libraries) -> list[type[OpRun]]:
    """Returns operators that run each op in PyTorch. Standard operators stay with the evaluator."""
    try:
        from opgate.ops_build.adapters.torch.registration import load
    except ImportError as error:
        raise RunError(f"the engine torch needs PyTorch (pip install 'opgate[torch]'): {error}") from None
    try:
        loaded = [load(path) for path in libraries.tables]
    except ImportError as error:  # LoadError
        raise RunError(str(error)) from None
    return [torch_operator(op, library.overload(op)) for library in loaded for op in library.ops]


def torch_operator(op: Op, overload: Any) -> type[OpRun]:
    """Returns an operator that runs an op by its function of PyTorch, for onnx's reference evaluator."""
    import torch

    def run(self: OpRun, *inputs: Array | None, **attributes: Any) -> tuple[Array, ...]:
        tensors = [None if array is None else torch.from_numpy(array.copy()) for array in inputs]
        tensors += [None] * (len(op.inputs) - len(tensors))
        variadic = bool(op.inputs) and op.inputs[-1].variadic
        arguments = [*tensors[: len(op.inputs) - 1], tensors[len(op.inputs) - 1 :]] if variadic else tensors
        values = {a.name: attribute_of_node(a, attributes.get(a.name)) for a in op.attributes}
        outputs = overload(*arguments, **values)
        return tuple(tensor.numpy() for tensor in (outputs if isinstance(outputs, (tuple, list)) else (outputs,)))

    return type(op.name, (OpRun,), {"op_domain": op.domain, "_run": run})


def timed(run: Runner, feeds: Mapping[str, Array], iterations: int) -> tuple[dict[str, Array], float]:
    """Runs a model once and then `iterations` times. Returns the outputs, and the median of the seconds of a run."""
    outputs = run(feeds)
    seconds = []
    for _ in range(iterations):
        start = time.perf_counter()
        run(feeds)
        seconds.append(time.perf_counter() - start)
    return outputs, statistics.median(seconds) if seconds else 0.0
