"""Completes the config of a model from its file, if there is no config or the config leaves fields out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from opgate.service.core.datatypes import BY_ONNX
from opgate.service.core.triton_messages import ModelConfig, ModelInput, ModelOutput, model_config_pb2
from opgate.service.execution.session import EngineTensor
from opgate.service.repository.config import ConfigError, state_defaults
from opgate.service.repository.padding_config import mask_names
from opgate.service.repository.sequence_config import tensor_names
from opgate.service.repository.validation import NO_BATCH

Tensor: TypeAlias = ModelInput | ModelOutput

_REMEDIES = {
    "seq(": ": list only the other outputs in config.pbtxt, or export without ZipMap (skl2onnx: options={'zipmap': "
    "False})",
}


def complete(
    config: ModelConfig,
    name: str,
    inputs: Sequence[EngineTensor],
    outputs: Sequence[EngineTensor],
    default_max_batch_size: int,
    defaulted: Sequence[EngineTensor] = (),
) -> list[str]:
    """Fills in what the config lacks, from the tensors of the session. Fields that are set stay as they are.

    Returns what it added that changes how clients use the model.

    A config that states neither tensors nor max_batch_size gets `default_max_batch_size` if every tensor starts with a
    dimension that is named like a batch ("N", or a name with "batch" in it). Any other unknown first dimension is no
    batch: it may count points or words, which must not be mixed between clients.

    `defaulted` are the inputs with a default value in the file. A config gets them only if it names them.

    Raises ConfigError if a tensor of the file can't be served.
    """
    config.name = config.name or name
    if not config.backend and not config.platform:
        config.backend = "onnxruntime"
    added: list[str] = []
    bare = not config.input and not config.output
    computed = {name for batch_input in config.batch_input for name in batch_input.target_name}
    computed |= tensor_names(config) | mask_names(config)
    if bare and not config.max_batch_size and default_max_batch_size and _batches((*inputs, *outputs)):
        config.max_batch_size = default_max_batch_size
        added.append(f"max_batch_size {default_max_batch_size}")
        if not config.HasField("dynamic_batching") and not config.HasField("sequence_batching"):
            config.dynamic_batching.SetInParent()
            added.append("dynamic_batching")
    skip = 1 if config.max_batch_size else 0
    if not config.input:
        for tensor in inputs:
            if tensor.name not in computed:
                _fill(config.input.add(), tensor, skip, config.max_batch_size)
                added.append(f"input {tensor.name}")
    else:
        _types(config.input, (*inputs, *defaulted))
        added += _dims(config, config.input, (*inputs, *defaulted), "input")
    if not config.output:
        for tensor in outputs:
            if tensor.name not in computed:
                _fill(config.output.add(), tensor, skip, config.max_batch_size)
                added.append(f"output {tensor.name}")
    else:
        _types(config.output, outputs)
        added += _dims(config, config.output, outputs, "output")
    state_defaults(config)
    return added


def _batches(tensors: Sequence[EngineTensor]) -> bool:
    if any(len(tensor.shape) < 2 for tensor in tensors):
        return False
    names = {tensor.shape[0] for tensor in tensors}
    return all(isinstance(name, str) and (name == "N" or "batch" in name.lower()) for name in names)


def _fill(target: Tensor, tensor: EngineTensor, skip: int, max_batch: int) -> None:
    known = BY_ONNX.get(tensor.type)
    if known is None:
        text = f"tensor '{tensor.name}' of the model file has type {tensor.type}, which can't be served"
        raise ConfigError(text + _REMEDIES.get(tensor.type[:4], ""))
    if skip and not tensor.shape:
        raise ConfigError(
            f"tensor '{tensor.name}' of the model file is a scalar, but max_batch_size is {max_batch}: {NO_BATCH}"
        )
    target.name = tensor.name
    target.data_type = model_config_pb2.DataType.Value(known.config_name)
    _fill_dims(target, tensor, skip)


def _fill_dims(target: Tensor, tensor: EngineTensor, skip: int) -> None:
    dims = [size if isinstance(size, int) and size >= 0 else -1 for size in tensor.shape[skip:]]
    if dims:
        target.dims.extend(dims)
    else:  # config.pbtxt has no rank 0: clients send one element of rank 1, which `reshape` turns into rank 0
        target.dims.append(1)
        target.reshape.SetInParent()


def _dims(config: ModelConfig, declared: Sequence[Tensor], tensors: Sequence[EngineTensor], kind: str) -> Iterator[str]:
    """Completes tensors that state no dims, and those whose dims stand for a scalar of the file: dims of size 1.

    Yields what was added. Flat tensors with the rows of a batch are left alone, because the file doesn't have their
    dims. So are outputs for which the file may state no shape: ONNX Runtime says that it is [] then.
    """
    known = {tensor.name: tensor for tensor in tensors}
    skip = 1 if config.max_batch_size else 0
    flat = {name for batch_output in config.batch_output for name in batch_output.target_name}
    if skip:
        flat |= {tensor.name for tensor in config.input if tensor.allow_ragged_batch}
    for target in declared:
        tensor = known.get(target.name)
        if tensor is None or target.HasField("reshape") or target.name in flat:
            continue
        if skip and not tensor.shape:
            if kind == "input" and not target.dims:
                raise ConfigError(f"input '{target.name}': the model file has a scalar: {NO_BATCH}")
        elif not target.dims:
            _fill_dims(target, tensor, skip)
            yield f"dims of {kind} {target.name}"
        elif len(tensor.shape) == skip and (skip or kind == "input") and all(size == 1 for size in target.dims):
            target.reshape.SetInParent()
            yield f"reshape of {kind} {target.name}"


def _types(declared: Sequence[Tensor], tensors: Sequence[EngineTensor]) -> None:
    known = {tensor.name: BY_ONNX.get(tensor.type) for tensor in tensors}
    for target in declared:
        datatype = known.get(target.name)
        if target.data_type == model_config_pb2.TYPE_INVALID and datatype is not None:
            target.data_type = model_config_pb2.DataType.Value(datatype.config_name)
