"""Checks an ensemble before it runs.

Its models and tensors must be known, each tensor needs exactly one producer, types and shapes must fit, and the steps
must not wait for each other in a cycle.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from opgate.service.core.errors import ServingError
from opgate.service.core.spec import ModelSpec, TensorSpec
from opgate.service.core.triton_messages import ModelConfig
from opgate.service.repository.config import ConfigError

# A function that returns the specification of a model by name and version (0 or -1: the latest). Raises ServingError.
Lookup = Callable[[str, int], ModelSpec]


@dataclass(frozen=True, slots=True)
class _Source:
    """The producer of a tensor in the ensemble: its name for messages, its model, and the tensor in that model."""

    maker: str
    tensor: TensorSpec
    model: ModelSpec


def step_models(config: ModelConfig) -> list[str]:
    """Returns the names of the models that an ensemble uses."""
    return [step.model_name for step in config.ensemble_scheduling.step]


def check_ensemble(config: ModelConfig, spec: ModelSpec, lookup: Lookup) -> list[ModelSpec]:
    """Checks an ensemble and returns the specification of each step's model.

    Raises ConfigError that names the step and the tensor.
    """
    steps = config.ensemble_scheduling.step
    if not steps:
        raise ConfigError("ensemble_scheduling has no step")
    sources = {name: _Source("the ensemble's input", tensor, spec) for name, tensor in spec.inputs.items()}
    _check_steps(config)
    models = [lookup(step.model_name, step.model_version) for step in steps]
    for step, model in zip(steps, models, strict=True):
        where = f"step '{step.model_name}'"
        _check_names(where, "input", step.input_map, model.inputs)
        _check_names(where, "output", step.output_map, model.outputs)
        _check_inputs(where, step.input_map, model, spec)
        for name, tensor in step.output_map.items():
            if tensor in sources:
                raise ConfigError(f"{where}: tensor '{tensor}' is already made by {sources[tensor].maker}")
            sources[tensor] = _Source(where, model.outputs[name], model)
    for step, model in zip(steps, models, strict=True):
        for name, tensor in step.input_map.items():
            if tensor not in sources:
                raise ConfigError(f"step '{step.model_name}': nothing makes tensor '{tensor}' for its input '{name}'")
            _check_pair(sources[tensor], model, model.inputs[name], f"input '{name}' of step '{step.model_name}'")
    _check_ends(config, spec, sources)
    _check_cycles(config, set(spec.inputs))
    return models


def _check_steps(config: ModelConfig) -> None:
    for number, step in enumerate(config.ensemble_scheduling.step, 1):
        if not step.model_name:
            raise ConfigError(f"ensemble_scheduling: step {number} names no model")
        if not step.output_map:
            raise ConfigError(
                f"step '{step.model_name}': output_map is empty: remove the step, or name an output of the model"
            )


def _check_ends(config: ModelConfig, spec: ModelSpec, sources: Mapping[str, _Source]) -> None:
    """Checks that each output is made, or is an input that is handed through, and that each input is used."""
    for name, output in spec.outputs.items():
        if name not in sources:
            raise ConfigError(f"no step makes the ensemble's output '{name}'")
        if name in spec.inputs and spec.inputs[name].optional:
            raise ConfigError(f"the ensemble's output '{name}' is its optional input: remove `optional: true`")
        _check_pair(sources[name], spec, output, f"the ensemble's output '{name}'")
    used = {tensor for step in config.ensemble_scheduling.step for tensor in step.input_map.values()}
    for name in spec.inputs:
        if name not in used and name not in spec.outputs:
            raise ConfigError(f"no step uses the ensemble's input '{name}'")


def with_labels(config: ModelConfig, spec: ModelSpec, lookup: Lookup) -> ModelSpec:
    """Returns the specification of an ensemble with the labels of the models that make its outputs, for the outputs to
    which its config gives none. A model that `lookup` doesn't find gives none."""
    labels: dict[str, tuple[str, ...]] = {}
    for step in config.ensemble_scheduling.step:
        with contextlib.suppress(ServingError):
            outputs = lookup(step.model_name, step.model_version).outputs
            labels |= {tensor: outputs[name].labels for name, tensor in step.output_map.items() if name in outputs}
    own = spec.outputs.items()
    return replace(spec, outputs={name: replace(o, labels=o.labels or labels.get(name, ())) for name, o in own})


def _check_names(where: str, kind: str, mapping: Mapping[str, str], known: Mapping[str, TensorSpec]) -> None:
    for name, tensor in mapping.items():
        if name not in known:
            raise ConfigError(f"{where}: {kind}_map names '{name}', the model has {', '.join(known)}")
        if not tensor:
            raise ConfigError(f"{where}: {kind}_map of '{name}' names no tensor")


def _check_inputs(where: str, mapping: Mapping[str, str], model: ModelSpec, ensemble: ModelSpec) -> None:
    unmapped = [name for name, tensor in model.inputs.items() if not tensor.optional and name not in mapping]
    if unmapped:
        raise ConfigError(f"{where}: input_map lacks the model's input '{unmapped[0]}'")
    optional = {name for name, tensor in ensemble.inputs.items() if tensor.optional}
    if model.batched and mapping and optional.issuperset(mapping.values()):
        raise ConfigError(
            f"{where}: all its inputs are optional inputs of the ensemble, and without them the batch size is unknown"
        )


def _check_pair(source: _Source, model: ModelSpec, target: TensorSpec, where: str) -> None:
    tensor = source.tensor
    if tensor.datatype != target.datatype:
        raise ConfigError(
            f"{where}: expected {target.datatype.config_name}, {source.maker} gives {tensor.datatype.config_name}"
        )
    # As in Triton, the dims must agree. If only one of the two models batches, it is enough that the full shapes agree.
    shapes = (source.model.wire_shape(tensor), model.wire_shape(target))
    if not _agree(tensor.dims, target.dims) and not _agree(*shapes):
        raise ConfigError(f"{where}: expected dims {list(target.dims)}, {source.maker} gives {list(tensor.dims)}")
    if tensor.optional and not target.optional:
        raise ConfigError(f"{where} must be optional, because {source.maker} '{tensor.name}' is")


def _agree(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))


def _check_cycles(config: ModelConfig, available: set[str]) -> None:
    todo = list(config.ensemble_scheduling.step)
    while todo:
        ready = [step for step in todo if set(step.input_map.values()) <= available]
        if not ready:
            names = " -> ".join(step.model_name for step in todo)
            raise ConfigError(f"the steps wait for each other in a cycle: {names}")
        for step in ready:
            available |= set(step.output_map.values())
            todo.remove(step)
