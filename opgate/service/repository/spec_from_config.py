"""Makes a ModelSpec from a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from opgate.service.core.datatypes import BY_CONFIG, DataType
from opgate.service.core.spec import (
    ENSEMBLE,
    PYTHON,
    Batching,
    BatchInputSpec,
    ModelSpec,
    QueuePolicy,
    RowStatus,
    TensorSpec,
)
from opgate.service.core.triton_messages import (
    ModelConfig,
    ModelInput,
    ModelOutput,
    ModelQueuePolicy,
    model_config_pb2,
)
from opgate.service.repository.config import ConfigError, ascending_sizes, in_python, parameter
from opgate.service.repository.paths import read_labels

Tensor: TypeAlias = ModelInput | ModelOutput

# Milliseconds of a day. No limit on a latency is longer.
_LONGEST_MS = 86_400_000


def make_spec(config: ModelConfig, version: int, repository: Path, folder: Path) -> ModelSpec:
    """Returns the ModelSpec that a config describes. Raises ConfigError that names the field."""
    inputs = _tensors(config, config.input, "input", repository, folder)
    outputs = _tensors(config, config.output, "output", repository, folder)
    if config.max_batch_size < 0:
        raise ConfigError(f"max_batch_size {config.max_batch_size}: expected 0 or more")
    return ModelSpec(
        name=config.name,
        version=str(version),
        inputs=inputs,
        outputs=outputs,
        max_batch_size=config.max_batch_size,
        batching=_batching(config),
        batch_inputs=() if in_python(config) else _batch_inputs(config, inputs),  # as in Triton
        scattered=_scattered(config, inputs, outputs),
        batch_by=_batch_by(config, inputs),
        length_buckets=_length_buckets(config, inputs),
        pad_batch=_pad_batch(config),
        row_status=_row_status(config, outputs),
        decoupled=config.model_transaction_policy.decoupled,
        platform=_platform(config),
    )


def _platform(config: ModelConfig) -> str:
    if config.HasField("ensemble_scheduling"):
        return ENSEMBLE
    return PYTHON if in_python(config) else "onnxruntime_onnx"


def stated_datatype(value: int, where: str) -> DataType:
    """Returns the datatype that a config states. Raises ConfigError if it states none, or none that is served."""
    if not value:
        raise ConfigError(f"{where}: data_type is missing")
    name = {number: name for name, number in model_config_pb2.DataType.items()}.get(value, str(value))
    if name not in BY_CONFIG:
        raise ConfigError(f"{where}: data_type {name} can't be served")
    return BY_CONFIG[name]


def _tensors(
    config: ModelConfig, declared: Sequence[Tensor], kind: str, repository: Path, folder: Path
) -> dict[str, TensorSpec]:
    specs: dict[str, TensorSpec] = {}
    for tensor in declared:
        where = f"{kind} '{tensor.name}'"
        if not tensor.name or tensor.name in specs:
            raise ConfigError(f"{kind} name '{tensor.name}' is empty or given twice")
        dims = tuple(tensor.dims)
        if not dims:
            raise ConfigError(f"{where}: dims are missing (for a scalar: dims [ 1 ] and reshape {{ shape: [] }})")
        if any(size < -1 for size in dims):
            raise ConfigError(f"{where}: dims {list(dims)} must be -1, 0 or positive")
        reshape = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None
        if reshape is not None:
            _check_reshape(where, dims, reshape)
        label = getattr(tensor, "label_filename", "")
        specs[tensor.name] = TensorSpec(
            name=tensor.name,
            datatype=stated_datatype(tensor.data_type, where),
            dims=dims,
            reshape=reshape,
            optional=bool(getattr(tensor, "optional", False)),
            ragged=bool(getattr(tensor, "allow_ragged_batch", False)) and config.max_batch_size > 0,
            labels=read_labels(repository, folder, label) if label else (),
        )
    return specs


def _check_reshape(where: str, dims: tuple[int, ...], reshape: tuple[int, ...]) -> None:
    def parts(shape: tuple[int, ...]) -> list[int]:
        """Returns the product of the sizes before, between and after the variable ones."""
        products = [1]
        for size in shape:
            if size == -1:
                products.append(1)
            else:
                products[-1] *= size
        return products

    if any(size < -1 or size == 0 for size in reshape) or parts(dims) != parts(reshape):
        raise ConfigError(f"{where}: reshape {list(reshape)} can't hold the elements of dims {list(dims)}")


def _batching(config: ModelConfig) -> Batching | None:
    max_latency_ns = _max_latency_ns(config)
    if not config.HasField("dynamic_batching"):
        return None
    block = config.dynamic_batching
    levels = block.priority_levels
    policies = block.priority_queue_policy if levels else {}
    return Batching(
        adaptive=not block.preferred_batch_size and not block.max_queue_delay_microseconds,
        preferred=tuple(sorted(block.preferred_batch_size)),
        max_delay_ns=block.max_queue_delay_microseconds * 1000,
        policy=_queue_policy(block.default_queue_policy),
        priority_levels=levels,
        default_level=block.default_priority_level if levels else 0,
        policies={level: _queue_policy(policy) for level, policy in policies.items()},
        preserve_ordering=block.preserve_ordering,
        max_latency_ns=max_latency_ns,
    )


def _queue_policy(policy: ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        max_queue_size=policy.max_queue_size,
        default_timeout_us=policy.default_timeout_microseconds,
        timeout_override=policy.allow_timeout_override,
        delay=policy.timeout_action == ModelQueuePolicy.DELAY,
    )


def _max_latency_ns(config: ModelConfig) -> int:
    text = parameter(config, "max_latency_ms")
    if not text:
        return 0
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not 0 < limit < _LONGEST_MS:
        raise ConfigError(
            f"parameter 'max_latency_ms': expected milliseconds, above 0 and below {_LONGEST_MS:g}, got '{text}'"
        )
    if not config.HasField("dynamic_batching"):
        raise ConfigError("parameter 'max_latency_ms' without dynamic_batching")
    return max(1, int(limit * 1e6))


def _batch_inputs(config: ModelConfig, inputs: Mapping[str, TensorSpec]) -> tuple[BatchInputSpec, ...]:
    specs: list[BatchInputSpec] = []
    for block in config.batch_input:
        kind = model_config_pb2.BatchInput.Kind.Name(block.kind)
        where = f"batch_input {kind}"
        if not block.target_name or len(block.source_input) != 1:
            raise ConfigError(f"{where}: expected a target_name and one source_input")
        source = block.source_input[0]
        for target in block.target_name:
            if source not in inputs:
                raise ConfigError(f"{where} '{target}': its source_input '{source}' is not an input")
            if inputs[source].optional:
                raise ConfigError(f"{where} '{target}': its source_input '{source}' may not be optional")
            if target in inputs or any(target == spec.name for spec in specs):
                raise ConfigError(f"{where}: '{target}' is an input as well")
            datatype = stated_datatype(block.data_type, f"{where} '{target}'")
            if datatype.name not in ("INT32", "INT64", "FP32"):
                raise ConfigError(
                    f"{where} '{target}': expected TYPE_INT32, TYPE_INT64 or TYPE_FP32, got {datatype.config_name}"
                )
            if config.max_batch_size < 1:
                raise ConfigError(f"{where} '{target}': max_batch_size is 0, there is no batch")
            specs.append(BatchInputSpec(kind, target, datatype, source))
    return tuple(specs)


def _scattered(
    config: ModelConfig, inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec]
) -> dict[str, str]:
    """Returns the outputs of batch_output, with the input that shapes each."""
    scattered: dict[str, str] = {}
    for block in config.batch_output:
        if not block.target_name or len(block.source_input) != 1:
            raise ConfigError("batch_output: expected a target_name and one source_input")
    pairs = [(target, block.source_input[0]) for block in config.batch_output for target in block.target_name]
    for target, source in pairs:
        where = f"batch_output '{target}'"
        if target not in outputs or target in scattered:
            raise ConfigError(f"{where} is not an output, or given twice")
        if outputs[target].reshape is not None:
            raise ConfigError(f"{where}: state the output with the dims of a row, without reshape")
        if parameter(config, "row_status_output") == target:
            raise ConfigError(f"{where}: row_status_output has one entry for each row")
        if source not in inputs or inputs[source].optional:
            raise ConfigError(f"{where}: its source_input '{source}' is not an input, or an optional one")
        if config.max_batch_size < 1:
            raise ConfigError(f"{where}: max_batch_size is 0, there is no batch")
        dims, given = outputs[target].dims, inputs[source].dims
        if any(size == -1 and i >= len(given) for i, size in enumerate(dims)):
            raise ConfigError(
                f"{where}: each variable dim of {list(dims)} gets the size of the same dim of '{source}', which has "
                f"only {list(given)}"
            )
        scattered[target] = source
    return scattered


def _batch_by(config: ModelConfig, inputs: Mapping[str, TensorSpec]) -> tuple[str, ...]:
    if "batch_by" not in config.parameters:
        return ()
    names = tuple(name.strip() for name in parameter(config, "batch_by").split(","))
    for name in names:
        if name not in inputs:
            raise ConfigError(f"parameter 'batch_by': '{name}' is not an input, the inputs are {', '.join(inputs)}")
    if config.max_batch_size < 1:
        raise ConfigError("parameter 'batch_by': max_batch_size is 0, there is no batch")
    return names


def _length_buckets(config: ModelConfig, inputs: Mapping[str, TensorSpec]) -> dict[str, tuple[int, ...]]:
    """Reads the parameter `length_buckets`, `text=64,256;words=10`."""
    found: dict[str, tuple[int, ...]] = {}
    if "length_buckets" not in config.parameters:
        return found
    if config.max_batch_size < 1:
        raise ConfigError("parameter 'length_buckets': max_batch_size is 0, there is no batch")
    for part in parameter(config, "length_buckets").split(";"):
        name, _, text = (piece.strip() for piece in part.partition("="))
        if name not in inputs:
            raise ConfigError(
                f"parameter 'length_buckets': '{name}' is not an input, the inputs are {', '.join(inputs)}"
            )
        sizes = ascending_sizes(text)
        if not sizes or name in found:
            raise ConfigError(
                f"parameter 'length_buckets': expected each input once, {name} and ascending sizes, {name}=64,256, "
                f"got '{part}'"
            )
        found[name] = sizes
    return found


def _pad_batch(config: ModelConfig) -> tuple[int, ...]:
    """Reads the parameter `pad_batch`, `1,4,8`."""
    if "pad_batch" not in config.parameters:
        return ()
    text = parameter(config, "pad_batch")
    if config.max_batch_size < 1:
        raise ConfigError("parameter 'pad_batch': max_batch_size is 0, there is no batch")
    sizes = ascending_sizes(text)
    if not sizes or sizes[-1] != config.max_batch_size:
        raise ConfigError(
            f"parameter 'pad_batch': expected ascending sizes up to max_batch_size {config.max_batch_size}, got "
            f"'{text}'"
        )
    flat = [tensor.name for tensor in config.input if tensor.allow_ragged_batch]
    if in_python(config) or config.HasField("sequence_batching") or config.batch_input or config.batch_output or flat:
        raise ConfigError(
            "parameter 'pad_batch': it can't be combined with backend python, sequence_batching, batch_input, "
            "batch_output and allow_ragged_batch"
        )
    return sizes


def _row_status(config: ModelConfig, outputs: Mapping[str, TensorSpec]) -> RowStatus | None:
    name = parameter(config, "row_status_output")
    messages: dict[int, str] = {}
    for part in filter(None, parameter(config, "row_status_messages").split(";")):
        code, _, text = part.partition("=")
        try:
            messages[int(code)] = text.strip()
        except ValueError:
            raise ConfigError(f"parameter 'row_status_messages': expected code=text;..., got '{part}'") from None
    if not name:
        if messages:
            raise ConfigError("parameter 'row_status_messages' without 'row_status_output'")
        return None
    if name not in outputs or outputs[name].datatype.dtype.kind not in "iub":
        raise ConfigError(f"parameter 'row_status_output': '{name}' is not an integer output")
    if not config.max_batch_size:
        raise ConfigError("parameter 'row_status_output': max_batch_size is 0, there are no rows")
    return RowStatus(name, messages)
