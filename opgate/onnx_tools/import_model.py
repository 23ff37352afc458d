"""Rewrites somebody else's model into opgate's ops, and reports what became of each node."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import helper
from onnx.external_data_helper import load_external_data_for_model

from opgate.onnx_tools import cleanup, foreign, grid_attention
from opgate.onnx_tools.foreign import Rewritten, import_opset, opset_of, replace
from opgate.onnx_tools.fusions import FUSIONS, Candidate
from opgate.onnx_tools.model_inputs import concrete, feeds, random_array
from opgate.onnx_tools.replacement_trials import Measure, Outcome, Trials, difference, medians, medians_of_whole
from opgate.onnx_tools.rewrite_text import Names, instantiate
from opgate.onnx_tools.sessions import SessionError, one_line, session
from opgate.onnx_tools.unknown_nodes import Unknown, unknown_ops
from opgate.onnx_tools.values import Values
from opgate.ops_build.case import Array
from opgate.ops_build.onnx import schema
from opgate.ops_build.onnx.decompose import load_to_rewrite
from opgate.ops_build.op_table import Op

#: The whole must take less than this part of its time before: two medians of the same runs are this far apart at times.
GAIN = 0.99


@dataclass(frozen=True, slots=True)
class Setting:
    """How a model is imported.

    `ops` and `library` are opgate's, `others` are libraries of other ops that the model uses. `inputs`, `sizes` and
    `seed` say what the trials run on, see `model_inputs.feeds`.
    """

    ops: Sequence[Op]
    library: Path
    others: tuple[Path, ...] = ()
    inputs: tuple[str, ...] = ()
    sizes: dict[str, int] = field(default_factory=dict)
    seed: int = 0
    measure: Measure = medians
    measure_whole: Measure = medians_of_whole

    @property
    def libraries(self) -> tuple[Path, ...]:
        return (self.library, *self.others)


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of a model. `run` says how the rewritten model ran on the inputs, or why it did not. `whole` says how
    long the whole takes with the ops of each kind, and how far its results have moved."""

    foreign: list[Rewritten]
    fusions: list[Outcome]
    unknown: list[Unknown]
    run: str
    ran: bool
    whole: list[str]

    @property
    def changed(self) -> bool:
        """Whether anything was rewritten."""
        return any(not node.refusal for node in self.foreign) or any(outcome.kept for outcome in self.fusions)


def load(source: Path, target: Path | None) -> onnx.ModelProto:
    """Returns the model of a file, to rewrite it. `target` is the file to write. Without one, weights that are in files
    beside it come into the model. Raises DecompositionError and OSError."""
    model = load_to_rewrite(source, target or source)
    if target is None:
        load_external_data_for_model(model, str(source.resolve().parent))
    return model


def import_model(model: onnx.ModelProto, setting: Setting, folder: Path | None = None) -> Imported:
    """Rewrites a model, in place. `folder` has the files of weights that are not in it. Raises InputError."""
    schema.register(setting.ops)
    before = cleanup.used_names(model)
    values = feeds(model, setting.inputs, setting.sizes, setting.seed)
    rewritten = foreign.rewrite(model, folder)
    outcomes: list[Outcome] = []
    whole: list[str] = []
    for find in (*(fusion.candidates for fusion in FUSIONS), grid_attention.candidates):
        original = onnx.ModelProto()
        original.CopyFrom(model)
        found = _fuse(model, setting, folder, values, find)
        if any(outcome.kept for outcome in found):
            cleanup.remove_unused(model, before)
            told, worthwhile = _compared(original, model, setting, folder, values)
            if told:
                op = found[0].op
                whole.append(f"the whole with {op}: {told}")
            if not worthwhile:
                model.CopyFrom(original)
                reason = "the whole model takes no less time"
                found = [dataclasses.replace(outcome, reason=outcome.reason or reason) for outcome in found]
        outcomes += found
    cleanup.remove_unused(model, before)
    run, ran = _run(model, setting, folder, values)
    return Imported(rewritten, outcomes, unknown_ops(model, _names(setting)), run, ran, whole)


def _fuse(
    model: onnx.ModelProto,
    setting: Setting,
    folder: Path | None,
    inputs: Mapping[str, Array],
    find: Callable[[onnx.GraphProto, Values], Iterable[Candidate]],
) -> list[Outcome]:
    """Tries the candidates that `find` finds, and puts the ops of those that are kept into the model."""
    values = Values(model, folder)
    candidates = list(find(model.graph, values))
    if not candidates:
        return []
    names = [tensor for candidate in candidates for tensor in candidate.inputs.values()]
    tensors = _tensors(model, setting, folder, inputs, list(dict.fromkeys(names)), values)
    trials = Trials(model, values, tensors, setting.libraries, folder, setting.measure)
    outcomes = []
    for candidate in candidates:
        outcome = trials.outcome(candidate)
        outcomes.append(outcome)
        if outcome.kept:
            key, tensor = candidate.output
            renamed = {**candidate.inputs, key: tensor}
            nodes = instantiate(candidate.body, renamed, [key], Names(model), opset_of(model), tensor)
            replace(model.graph, [values.producers[tensor]], nodes)
            import_opset(model)
    return outcomes


def _compared(
    original: onnx.ModelProto,
    model: onnx.ModelProto,
    setting: Setting,
    folder: Path | None,
    inputs: Mapping[str, Array],
) -> tuple[str, bool]:
    """Runs the whole model with and without ops. Returns what a report says of it, and whether the ops are worthwhile.

    An op that is quicker than what it replaces can slow the whole down: ONNX Runtime keeps convolutions in a layout of
    its own, and converts the tensors of any other node. If the model can't run on the inputs, its parts have decided.
    """
    try:
        sessions = [session(each, setting.libraries, folder) for each in (original, model)]
        results = [each.run(None, dict(inputs)) for each in sessions]
    except Exception:  # the classes of onnxruntime's exceptions share no other base; the report says why it can't run
        return "", True
    before, after = setting.measure_whole(*(partial(each.run, None, dict(inputs)) for each in sessions))
    floats = [pair for pair in zip(*results, strict=True) if getattr(pair[0], "dtype", np.dtype(object)).kind == "f"]
    apart = max((difference(*pair) for pair in floats), default=0.0)
    told = f"{before * 1e3:.3g} -> {after * 1e3:.3g} ms, results differ by {apart:.1e} at most"
    return told, after < GAIN * before


def _tensors(
    model: onnx.ModelProto,
    setting: Setting,
    folder: Path | None,
    inputs: Mapping[str, Array],
    names: Sequence[str],
    values: Values,
) -> dict[str, Array]:
    """Returns the values that tensors have in a run of the model. If the model can't run, they are random numbers of
    the inferred types and shapes."""
    tensors = {name: array for name in names if (array := values.constant(name)) is not None}
    open_names = [name for name in names if name not in tensors]
    told = onnx.ModelProto()
    told.CopyFrom(model)
    del told.graph.output[:]
    told.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in open_names)
    fed = {name: inputs[name] for name in open_names if name in inputs}
    wanted = [name for name in open_names if name not in fed]
    try:
        run = session(told, setting.libraries, folder)
        results = run.run(wanted, dict(inputs)) if wanted else []
        return tensors | fed | dict(zip(wanted, results, strict=True))
    except Exception:  # the classes of onnxruntime's exceptions share no other base
        return tensors | fed | _random(wanted, setting, values)


def _random(names: Iterable[str], setting: Setting, values: Values) -> dict[str, Array]:
    rng = np.random.default_rng(setting.seed)
    sizes = dict(setting.sizes)
    made = {}
    for name in names:
        shape, dtype = values.shape(name), values.dtype(name)
        if shape is not None and dtype is not None:
            made[name] = random_array(concrete(name, shape, sizes), dtype, rng)
    return made


def _run(
    model: onnx.ModelProto, setting: Setting, folder: Path | None, inputs: Mapping[str, Array]
) -> tuple[str, bool]:
    """Infers shapes, loads the model and runs it on the inputs. Returns what a report says of it, and whether it
    ran."""
    try:
        onnx.shape_inference.infer_shapes(model, strict_mode=not unknown_ops(model, _names(setting)))
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        return f"its shapes contradict each other: {one_line(error)}", False
    try:
        loaded = session(model, setting.libraries, folder)
    except SessionError as error:
        return f"it doesn't load: {error}", False
    try:
        loaded.run(None, dict(inputs))
    except Exception as error:  # the classes of onnxruntime's exceptions share no other base
        return f"it loads, and doesn't run on these inputs: {one_line(error)}", False
    return "it loads and runs", True


def _names(setting: Setting) -> set[tuple[str, str]]:
    return {(op.domain, op.name) for op in setting.ops}
