"""Compares a config with the model file that it describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opgate.service.core.datatypes import DataType
from opgate.service.core.spec import BatchInputSpec, ModelSpec, TensorSpec
from opgate.service.execution.session import EngineTensor
from opgate.service.repository.config import ConfigError

#: What a config must say of a model file with a scalar.
NO_BATCH = "a scalar has no batch: set max_batch_size 0"


def check_against_engine(
    spec: ModelSpec,
    inputs: Sequence[EngineTensor],
    outputs: Sequence[EngineTensor],
    defaulted: Sequence[EngineTensor],
) -> None:
    """Compares the config with the tensors of the opened file.

    `defaulted` are the inputs with a default value in the file: only these can be optional.
    Raises ConfigError that names the tensor, what the config says and what the file has.
    """
    real = {tensor.name: tensor for tensor in (*inputs, *defaulted)}
    needed = {tensor.name for tensor in inputs}
    for batch_input in spec.batch_inputs:
        _check_batch_input(spec, batch_input, real)
    for tensor in spec.inputs.values():
        actual = _find(real, tensor.name, "input")
        _check_type("input", tensor.name, tensor.datatype, actual)
        if tensor.optional and tensor.name in needed:
            raise ConfigError(
                f"input '{tensor.name}': optional, but the model file has no default value for it: add an initializer "
                "of that name to the file, or remove `optional: true`"
            )
        if tensor.ragged:
            if len(actual.shape) != 1:
                raise ConfigError(
                    f"input '{tensor.name}': allow_ragged_batch joins rows into one flat tensor of rank 1, "
                    f"the model file has shape {_shape(actual)}"
                )
        else:
            _check_shape(spec, "input", tensor, actual)
    computed = {batch_input.name for batch_input in spec.batch_inputs}
    if spec.padding is not None:
        computed |= {mask.name for mask in spec.padding.masks}
    missing = needed - set(spec.inputs) - computed
    if missing:
        raise ConfigError(f"the model file needs inputs that the config lacks: {', '.join(sorted(missing))}")
    real = {tensor.name: tensor for tensor in outputs}
    for tensor in spec.outputs.values():
        actual = _find(real, tensor.name, "output")
        _check_type("output", tensor.name, tensor.datatype, actual)
        if tensor.name not in spec.scattered:
            _check_shape(spec, "output", tensor, actual)
        elif len(actual.shape) > 1:
            raise ConfigError(
                f"batch_output '{tensor.name}': expected a flat tensor of rank 1, the model file has shape "
                f"{_shape(actual)}"
            )


def _check_batch_input(spec: ModelSpec, batch_input: BatchInputSpec, real: Mapping[str, EngineTensor]) -> None:
    name = batch_input.name
    actual = _find(real, name, "batch_input")
    _check_type("batch_input", name, batch_input.datatype, actual)
    if len(actual.shape) != (2 if batch_input.kind == "BATCH_ITEM_SHAPE" else 1):
        raise ConfigError(f"batch_input '{name}': the model file's shape {_shape(actual)} has another rank")
    rank = len(spec.inputs[batch_input.source].dims)
    if batch_input.kind == "BATCH_ITEM_SHAPE" and isinstance(actual.shape[1], int) and actual.shape[1] != rank:
        raise ConfigError(
            f"batch_input '{name}': expected {rank} columns, one for each dim of '{batch_input.source}', the model "
            f"file has shape {_shape(actual)}"
        )


def _find(real: Mapping[str, EngineTensor], name: str, kind: str) -> EngineTensor:
    if name not in real:
        raise ConfigError(f"{kind} '{name}' is not in the model file, which has {', '.join(sorted(real))}")
    return real[name]


def _check_type(kind: str, name: str, datatype: DataType, actual: EngineTensor) -> None:
    if datatype.onnx != actual.type:
        raise ConfigError(f"{kind} '{name}': the config says {datatype.config_name}, the model file has {actual.type}")


def _check_shape(spec: ModelSpec, kind: str, tensor: TensorSpec, actual: EngineTensor) -> None:
    dims = tensor.dims if tensor.reshape is None else tensor.reshape
    want = ((-1,) if spec.batched else ()) + dims
    if kind == "output" and not actual.shape and want:
        return  # the file declares no shape for this output
    fits = len(want) == len(actual.shape)
    for i, (size, real) in enumerate(zip(want, actual.shape, strict=False)):
        if not isinstance(real, int) or real < 0:
            continue
        if i == 0 and spec.batched:
            if spec.pad_batch == (real,):
                continue  # each run gets so many rows
            raise ConfigError(
                f"{kind} '{tensor.name}': max_batch_size is {spec.max_batch_size}, but the model file's shape "
                f"{_shape(actual)} has a fixed first dimension; export it with a dynamic one, set max_batch_size 0, or "
                f"set max_batch_size and the parameter pad_batch to {real}"
            )
        fits = fits and (size == real or (size == -1 and kind == "output"))
    if not fits:
        # The dims of a batched model don't count the batch.
        batch = not spec.batched and tuple(actual.shape[1:]) == dims and not isinstance(actual.shape[0], int)
        hint = "; if its first dim is the batch, add max_batch_size to the config" if batch else ""
        if spec.batched and not actual.shape:
            hint = f": {NO_BATCH}"
        raise ConfigError(
            f"{kind} '{tensor.name}': the config's shape {list(want)} doesn't fit the model file's "
            f"{_shape(actual)}{hint}"
        )


def _shape(tensor: EngineTensor) -> list[int | str]:
    return [-1 if size is None else size for size in tensor.shape]
