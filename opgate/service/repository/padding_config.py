"""Reads the parameters `pad_inputs`, `pad_masks`, `pad_outputs` and `pad_buckets` of a config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from opgate.service.core.checks import Limits
from opgate.service.core.datatypes import BY_ONNX, DataType
from opgate.service.core.spec import Cut, Mask, ModelSpec, PaddedInput, Padding, TensorSpec
from opgate.service.core.triton_messages import ModelConfig
from opgate.service.execution.session import EngineTensor
from opgate.service.repository.config import ConfigError, ascending_sizes, parameter


def mask_names(config: ModelConfig) -> set[str]:
    """Returns the inputs of the model file that the batcher computes as masks. Raises ConfigError."""
    return set(_pairs(config, "pad_masks"))


def with_padding(
    config: ModelConfig,
    spec: ModelSpec,
    inputs: Sequence[EngineTensor],
    outputs: Sequence[EngineTensor],
    limits: Limits,
) -> ModelSpec:
    """Returns the spec with the padding that its config asks for. `inputs` and `outputs` are those of the model file.

    Dims that have one name in the file are taken to have one size. Raises ConfigError.
    """
    values = _pairs(config, "pad_inputs")
    if not values:
        for key in ("pad_masks", "pad_outputs", "pad_buckets"):
            if key in config.parameters:
                raise ConfigError(f"parameter '{key}' without 'pad_inputs'")
        return spec
    if not spec.batched:
        raise ConfigError("parameter 'pad_inputs': max_batch_size is 0, there is no batch: state max_batch_size")
    padded = {name: _padded(spec, name, value, limits) for name, value in values.items()}
    names = _dim_names(spec.inputs, inputs)
    masks = tuple(_masks(config, spec, padded, inputs))
    _refuse_unpadded(padded, names)
    groups: dict[str, list[tuple[str, int]]] = {}
    for name, one in padded.items():
        for dim in one.variable:
            if (dim_name := names.get(name, {}).get(dim)) is not None:
                groups.setdefault(dim_name, []).append((name, dim))
    return replace(
        spec,
        padding=Padding(
            inputs=padded,
            masks=masks,
            cuts=_cuts(config, spec, padded, groups, _dim_names(spec.outputs, outputs)),
            buckets=_buckets(config),
            ties=tuple(tuple(group) for group in groups.values() if len(group) > 1),
        ),
    )


def _pairs(config: ModelConfig, key: str) -> dict[str, str]:
    """Returns the entries of a parameter of the form `name=text,name=text`. A text is "" if there is no equals sign."""
    pairs: dict[str, str] = {}
    if key not in config.parameters:
        return pairs
    for part in parameter(config, key).split(","):
        name, _, text = (piece.strip() for piece in part.partition("="))
        if not name or name in pairs:
            raise ConfigError(f"parameter '{key}': a name is empty or given twice in '{parameter(config, key)}'")
        pairs[name] = text
    return pairs


def _padded(spec: ModelSpec, name: str, value: str, limits: Limits) -> PaddedInput:
    where = f"parameter 'pad_inputs': '{name}'"
    tensor = spec.inputs.get(name)
    if tensor is None:
        raise ConfigError(f"{where} is not an input, the inputs are {', '.join(spec.inputs)}")
    if tensor.ragged or tensor.optional:
        raise ConfigError(f"{where} is {'allow_ragged_batch' if tensor.ragged else 'optional'}, which can't be padded")
    variable = tuple(i for i, size in enumerate(tensor.dims) if size == -1)
    if not variable:
        raise ConfigError(f"{where} has no variable dim: its dims are {list(tensor.dims)}")
    largest = min(limits.max_elements, limits.max_strings) if tensor.datatype.name == "BYTES" else limits.max_elements
    return PaddedInput(_value(where, tensor.datatype, value), variable, largest)


def _value(where: str, datatype: DataType, text: str) -> int | float | str:
    """Returns a value as the arrays of a type have it. Raises ConfigError."""
    if datatype.name == "BYTES":
        return text
    try:
        if datatype.name == "BF16":
            bits = int(_float(text, np.dtype(np.float32)).view(np.uint32))
            if bits & 0xFFFF:
                raise ValueError
            return bits >> 16
        if datatype.dtype.kind == "f":
            return float(_float(text, datatype.dtype))
        number = int(text or "0")
        least, most = (0, 1) if datatype.name == "BOOL" else _range(datatype)
        if not least <= number <= most:
            raise ValueError
    except (ValueError, OverflowError):
        raise ConfigError(f"{where}: expected a value of {datatype.config_name}, got '{text}'") from None
    return number


def _float(text: str, dtype: np.dtype[Any]) -> Any:
    """Returns a float of a type. Raises ValueError if it is too large for it."""
    number = float(text or "0")
    with np.errstate(over="ignore"):
        fitted = dtype.type(number)
    if np.isinf(fitted) and not np.isinf(number):
        raise ValueError
    return fitted


def _range(datatype: DataType) -> tuple[int, int]:
    limits = np.iinfo(datatype.dtype)
    return int(limits.min), int(limits.max)


def _dim_names(specs: Mapping[str, TensorSpec], tensors: Sequence[EngineTensor]) -> dict[str, dict[int, str]]:
    """Returns the names of the variable dims by tensor and index, which doesn't count the batch dim."""
    found: dict[str, dict[int, str]] = {}
    for tensor in tensors:
        spec = specs.get(tensor.name)
        if spec is not None and not spec.ragged and spec.reshape is None and len(tensor.shape) == len(spec.dims) + 1:
            sizes = zip(spec.dims, tensor.shape[1:], strict=True)
            found[tensor.name] = {
                i: real for i, (size, real) in enumerate(sizes) if size == -1 and isinstance(real, str)
            }
    return found


def _refuse_unpadded(padded: Mapping[str, PaddedInput], names: Mapping[str, Mapping[int, str]]) -> None:
    """Raises ConfigError if an input that is not padded has a dim that is as long as a padded one."""
    known = {dim: name for name in padded for dim in names.get(name, {}).values()}
    for name, dims in names.items():
        for dim in dims.values():
            if name not in padded and dim in known:
                raise ConfigError(
                    f"parameter 'pad_inputs': input '{name}' must be padded too, because the model file calls a dim "
                    f"'{dim}' in it and in '{known[dim]}'"
                )


def _masks(
    config: ModelConfig, spec: ModelSpec, padded: Mapping[str, PaddedInput], tensors: Sequence[EngineTensor]
) -> Iterator[Mask]:
    real = {tensor.name: tensor for tensor in tensors}
    for name, source in _pairs(config, "pad_masks").items():
        where = f"parameter 'pad_masks': '{name}'"
        if source not in padded:
            raise ConfigError(f"{where}: expected one of {', '.join(padded)} of pad_inputs, got '{source}'")
        if name in spec.inputs or any(name == target.name for target in spec.batch_inputs):
            raise ConfigError(f"{where} is an input of the config as well: remove it there, the gateway computes it")
        if name not in real:
            raise ConfigError(f"{where} is not in the model file, which has {', '.join(sorted(real))}")
        datatype = BY_ONNX.get(real[name].type)
        if datatype is None or datatype.name == "BYTES":
            raise ConfigError(f"{where}: the model file has {real[name].type}, and a mask has numbers")
        rank = 1 + len(padded[source].variable)
        if len(real[name].shape) != rank:
            raise ConfigError(
                f"{where}: expected {rank} dims, the batch and the variable dims of '{source}', the model file has "
                f"{len(real[name].shape)}"
            )
        yield Mask(name, datatype, source)


def _cuts(
    config: ModelConfig,
    spec: ModelSpec,
    padded: Mapping[str, PaddedInput],
    groups: Mapping[str, Sequence[tuple[str, int]]],
    names: Mapping[str, Mapping[int, str]],
) -> dict[str, tuple[Cut, ...]]:
    """Returns which dims of the outputs are cut: those of pad_outputs, and of other outputs those that the model file
    gives the name of a padded dim. Raises ConfigError for another variable dim: clients might get its padding."""
    stated = _pairs(config, "pad_outputs")
    cuts = {name: _stated_cuts(spec, padded, name, sources) for name, sources in stated.items()}
    for name, output in spec.outputs.items():
        if name in stated or name in spec.scattered:
            continue
        named = names.get(name, {})
        variable = [dim for dim, size in enumerate(output.dims) if size == -1]
        if loose := [dim for dim in variable if named.get(dim) not in groups]:
            what = f"'{named[loose[0]]}'" if loose[0] in named else "without a name"
            raise ConfigError(
                f"parameter 'pad_outputs' lacks output '{name}': no padded input has its variable dim {what} in the "
                f"model file. Expected {name}={next(iter(padded))} if it is as long as this input, {name} alone if "
                "padding doesn't change its size"
            )
        cuts[name] = tuple(Cut(dim, *groups[named[dim]][0]) for dim in variable)
    return {name: found for name, found in cuts.items() if found}


def _stated_cuts(spec: ModelSpec, padded: Mapping[str, PaddedInput], name: str, sources: str) -> tuple[Cut, ...]:
    where = f"parameter 'pad_outputs': '{name}'"
    if name not in spec.outputs:
        raise ConfigError(f"{where} is not an output, the outputs are {', '.join(spec.outputs)}")
    if name in spec.scattered:
        raise ConfigError(f"{where} is in batch_output, which gives each request its own size already")
    if not sources:  # it keeps its size
        return ()
    followed: list[tuple[str, int]] = []
    for source in (part.strip() for part in sources.split("+")):
        if source not in padded:
            raise ConfigError(f"{where}: expected inputs of pad_inputs, joined by +, got '{sources}'")
        followed.extend((source, dim) for dim in padded[source].variable)
    variable = [i for i, size in enumerate(spec.outputs[name].dims) if size == -1]
    if len(variable) != len(followed):
        raise ConfigError(
            f"{where} has {len(variable)} variable dims in {list(spec.outputs[name].dims)}, and '{sources}' has "
            f"{len(followed)}: expected as many"
        )
    return tuple(Cut(dim, *source) for dim, source in zip(variable, followed, strict=True))


def _buckets(config: ModelConfig) -> tuple[int, ...]:
    if "pad_buckets" not in config.parameters:
        return ()
    text = parameter(config, "pad_buckets")
    buckets = ascending_sizes(text)
    if not buckets:
        raise ConfigError(f"parameter 'pad_buckets': expected ascending sizes such as 32,64,128, got '{text}'")
    return buckets
