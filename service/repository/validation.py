"""A config against the model file it describes, and the ModelSpec that comes of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from tritonclient.grpc import model_config_pb2
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInput, ModelOutput

from service.execution.datatypes import BY_CONFIG, DataType
from service.execution.session import EngineTensor
from service.execution.spec import Batching, BatchInputSpec, ModelSpec, RowStatus, TensorSpec
from service.repository.config import ConfigError, parameter
from service.repository.paths import read_labels

Tensor: TypeAlias = ModelInput | ModelOutput


def make_spec(config: ModelConfig, version: int, repository: Path, folder: Path) -> ModelSpec:
    """The values that execution needs. Raises ConfigError that names the field."""
    inputs = _tensors(config.input, "input", repository, folder)
    outputs = _tensors(config.output, "output", repository, folder)
    if config.max_batch_size < 0:
        raise ConfigError(f"max_batch_size {config.max_batch_size}: expected 0 or more")
    return ModelSpec(
        name=config.name,
        version=str(version),
        inputs=inputs,
        outputs=outputs,
        max_batch_size=config.max_batch_size,
        batching=_batching(config),
        batch_inputs=_batch_inputs(config, inputs),
        row_status=_row_status(config, outputs),
        instances=max(1, sum(group.count for group in config.instance_group)),
        platform="ensemble" if config.HasField("ensemble_scheduling") else "onnxruntime_onnx",
    )


def _datatype(value: int, where: str) -> DataType:
    name = model_config_pb2.DataType.Name(value)
    if name not in BY_CONFIG:
        raise ConfigError(f"{where}: data_type {name} can't be served")
    return BY_CONFIG[name]


def _tensors(declared: Sequence[Tensor], kind: str, repository: Path, folder: Path) -> dict[str, TensorSpec]:
    made: dict[str, TensorSpec] = {}
    for tensor in declared:
        where = f"{kind} '{tensor.name}'"
        if not tensor.name or tensor.name in made:
            raise ConfigError(f"{kind} name '{tensor.name}' is empty or given twice")
        dims = tuple(tensor.dims)
        if not dims:
            raise ConfigError(f"{where}: dims are missing (for a scalar: dims [ 1 ] and reshape {{ shape: [] }})")
        if any(size < -1 or size == 0 for size in dims):
            raise ConfigError(f"{where}: dims {list(dims)} must be -1 or positive")
        reshape = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None
        if reshape is not None:
            _check_reshape(where, dims, reshape)
        label = getattr(tensor, "label_filename", "")
        made[tensor.name] = TensorSpec(
            name=tensor.name,
            datatype=_datatype(tensor.data_type, where),
            dims=dims,
            reshape=reshape,
            optional=bool(getattr(tensor, "optional", False)),
            ragged=bool(getattr(tensor, "allow_ragged_batch", False)),
            labels=read_labels(repository, folder, label) if label else (),
        )
    return made


def _check_reshape(where: str, dims: tuple[int, ...], reshape: tuple[int, ...]) -> None:
    def parts(shape: tuple[int, ...]) -> list[int]:
        """Elements between the variable sizes, which must agree piece by piece."""
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
    if not config.HasField("dynamic_batching"):
        return None
    block = config.dynamic_batching
    policy = block.default_queue_policy
    return Batching(
        adaptive=not block.preferred_batch_size and not block.max_queue_delay_microseconds,
        preferred=tuple(sorted(block.preferred_batch_size)),
        max_delay_ns=block.max_queue_delay_microseconds * 1000,
        max_queue_size=policy.max_queue_size,
        default_timeout_us=policy.default_timeout_microseconds,
        timeout_override=policy.allow_timeout_override,
    )


def _batch_inputs(config: ModelConfig, inputs: Mapping[str, TensorSpec]) -> tuple[BatchInputSpec, ...]:
    made = []
    for block in config.batch_input:
        kind = model_config_pb2.BatchInput.Kind.Name(block.kind)
        where = f"batch_input {kind}"
        if len(block.target_name) != 1 or len(block.source_input) != 1:
            raise ConfigError(f"{where}: expected one target_name and one source_input")
        target, source = block.target_name[0], block.source_input[0]
        if source not in inputs:
            raise ConfigError(f"{where} '{target}': its source_input '{source}' is not an input")
        if inputs[source].optional:
            raise ConfigError(f"{where} '{target}': its source_input '{source}' may not be optional")
        if target in inputs:
            raise ConfigError(f"{where}: '{target}' is an input as well")
        datatype = _datatype(block.data_type, f"{where} '{target}'")
        if datatype.name not in ("INT32", "INT64", "FP32"):
            raise ConfigError(
                f"{where} '{target}': expected TYPE_INT32, TYPE_INT64 or TYPE_FP32, got {datatype.config_name}"
            )
        if config.max_batch_size < 1:
            raise ConfigError(f"{where} '{target}': max_batch_size is 0, there is no batch")
        made.append(BatchInputSpec(kind, target, datatype, source))
    return tuple(made)


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


def check_against_engine(
    spec: ModelSpec,
    inputs: Sequence[EngineTensor],
    outputs: Sequence[EngineTensor],
    defaulted: Sequence[EngineTensor],
) -> None:
    """Compares the config with the opened file. Raises ConfigError naming tensor, expectation and what the file has.

    `defaulted` are the inputs with a default value in the file: only these can be optional.
    """
    real = {tensor.name: tensor for tensor in (*inputs, *defaulted)}
    needed = {tensor.name for tensor in inputs}
    for made in spec.batch_inputs:
        found = _find(real, made.name, "batch_input")
        _check_type("batch_input", made.name, made.datatype, found)
        if len(found.shape) != (2 if made.kind == "BATCH_ITEM_SHAPE" else 1):
            raise ConfigError(f"batch_input '{made.name}': the model file's shape {_shape(found)} has another rank")
    for tensor in spec.inputs.values():
        found = _find(real, tensor.name, "input")
        _check_type("input", tensor.name, tensor.datatype, found)
        if tensor.optional and tensor.name in needed:
            raise ConfigError(f"input '{tensor.name}': optional, but the model file has no default value for it")
        if tensor.ragged:
            if len(found.shape) != 1:
                raise ConfigError(
                    f"input '{tensor.name}': allow_ragged_batch joins rows into one flat tensor of rank 1, "
                    f"the model file has shape {_shape(found)}"
                )
        else:
            _check_shape(spec, "input", tensor, found)
    missing = needed - set(spec.inputs) - {made.name for made in spec.batch_inputs}
    if missing:
        raise ConfigError(f"the model file needs inputs that the config lacks: {', '.join(sorted(missing))}")
    real = {tensor.name: tensor for tensor in outputs}
    for tensor in spec.outputs.values():
        found = _find(real, tensor.name, "output")
        _check_type("output", tensor.name, tensor.datatype, found)
        _check_shape(spec, "output", tensor, found)


def _find(real: Mapping[str, EngineTensor], name: str, kind: str) -> EngineTensor:
    if name not in real:
        raise ConfigError(f"{kind} '{name}' is not in the model file, which has {', '.join(sorted(real))}")
    return real[name]


def _check_type(kind: str, name: str, datatype: DataType, found: EngineTensor) -> None:
    if datatype.onnx != found.type:
        raise ConfigError(f"{kind} '{name}': the config says {datatype.config_name}, the model file has {found.type}")


def _check_shape(spec: ModelSpec, kind: str, tensor: TensorSpec, found: EngineTensor) -> None:
    dims = tensor.dims if tensor.reshape is None else tensor.reshape
    want = ((-1,) if spec.batched else ()) + dims
    if kind == "output" and not found.shape and want:
        return  # the file states no shape
    fits = len(want) == len(found.shape)
    for i, (size, real) in enumerate(zip(want, found.shape, strict=False)):
        if not isinstance(real, int) or real < 0:
            continue
        if i == 0 and spec.batched:
            raise ConfigError(
                f"{kind} '{tensor.name}': max_batch_size is {spec.max_batch_size}, but the model file's shape "
                f"{_shape(found)} has a fixed first dimension; export it with a dynamic one or set max_batch_size 0"
            )
        fits = fits and (size == real or (size == -1 and kind == "output"))
    if not fits:
        raise ConfigError(
            f"{kind} '{tensor.name}': the config's shape {list(want)} doesn't fit the model file's {_shape(found)}"
        )


def _shape(tensor: EngineTensor) -> list[int | str]:
    return [-1 if size is None else size for size in tensor.shape]
