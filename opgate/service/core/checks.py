"""Checks whether a request fits its model: names, types, shapes.

The checks look at no data. Their result holds for every request that announces the same tensors.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from opgate.service.core.errors import Kind, ServingError, internal, invalid
from opgate.service.core.request import Array
from opgate.service.core.spec import ModelSpec, TensorSpec, rounded


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits on one request. `opgate.service.settings` describes them."""

    max_rank: int = 16
    max_elements: int = 256 * 1024 * 1024
    max_strings: int = 128 * 1024
    max_tensors: int = 256
    max_json_bytes: int = 64 * 1024 * 1024
    max_json_depth: int = 32
    max_string_bytes: int = 16 * 1024 * 1024


class TensorInfo(NamedTuple):
    """A tensor as the client announced it, without its data."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Fit(NamedTuple):
    """The facts about a request that fits its model.

    `rows` is the batch size. Requests may share a batch only if their `key` is equal. `weight` is the number of
    elements in inputs whose sizes are not part of the key: ragged ones, and padded ones without buckets.
    """

    rows: int
    key: Hashable
    weight: int


def check_inputs(spec: ModelSpec, infos: Sequence[TensorInfo], limits: Limits) -> Fit:
    """Checks every input of one request.

    Raises ServingError (INVALID, TOO_LARGE) that names the input, the expected value and the actual one.
    """
    if len(infos) > limits.max_tensors:
        raise ServingError(Kind.TOO_LARGE, f"the request has {len(infos)} inputs, the limit is {limits.max_tensors}")
    seen = _by_name(spec, infos)
    rows: int | None = None
    first = ""
    parts: list[Hashable] = []
    weight = 0
    for tensor in spec.inputs.values():
        info = seen.get(tensor.name)
        if info is None:
            if not tensor.optional:
                raise invalid(
                    f"input '{tensor.name}' of model '{spec.name}' is missing: expected {_expected(spec, tensor)}, "
                    f"got inputs {_names(seen)}"
                )
            continue
        elements = check_tensor(spec, tensor, info, limits)
        if spec.batched:
            if rows is None:
                rows, first = info.shape[0], tensor.name
            elif rows != info.shape[0]:
                raise invalid(
                    f"inputs of model '{spec.name}' must have one batch size: '{first}' has {rows}, "
                    f"'{tensor.name}' has {info.shape[0]}"
                )
        shape = _shape_in_batch(spec, tensor, info)
        if shape is None:
            weight += elements
            parts.append(tensor.name)
        else:
            parts.append((tensor.name, shape))
    if spec.padding is not None:
        _check_ties(spec, seen)
    return Fit(rows or 1, tuple(parts), weight)


def _shape_in_batch(spec: ModelSpec, tensor: TensorSpec, info: TensorInfo) -> tuple[int, ...] | None:
    """Returns the shape, without the batch dim, that an input must have in common with the others of its batch.

    None stands for any shape. Raises ServingError (TOO_LARGE) if the input is too large in the sizes of its buckets.
    """
    if tensor.ragged:
        return None
    inner = info.shape[1:] if spec.batched else info.shape
    if spec.padding is None or tensor.name not in spec.padding.inputs:
        return inner
    if not spec.padding.buckets:
        return None
    shape = rounded(spec.padding, tensor.name, inner)
    elements = info.shape[0] * math.prod(shape)
    limit = spec.padding.inputs[tensor.name].max_elements
    if elements > limit:
        raise ServingError(
            Kind.TOO_LARGE,
            f"input '{tensor.name}' of model '{spec.name}': {elements} elements are over the limit of {limit} in shape "
            f"{[info.shape[0], *shape]}, to which shape {list(info.shape)} is padded",
        )
    return shape


def _check_ties(spec: ModelSpec, seen: Mapping[str, TensorInfo]) -> None:
    """Raises ServingError (INVALID) if dims that have one name in the model file differ.

    Padding could make them equal, so that a wrong request would be answered if it shares a batch.
    """
    assert spec.padding is not None
    for (first, i), *others in spec.padding.ties:
        size = seen[first].shape[i + 1]
        for name, j in others:
            if seen[name].shape[j + 1] != size:
                raise invalid(
                    f"inputs of model '{spec.name}' must agree: dim {i + 1} of '{first}' has {size}, "
                    f"dim {j + 1} of '{name}' has {seen[name].shape[j + 1]}"
                )


def _by_name(spec: ModelSpec, infos: Sequence[TensorInfo]) -> dict[str, TensorInfo]:
    seen: dict[str, TensorInfo] = {}
    for info in infos:
        if info.name in seen:
            raise invalid(f"input '{info.name}' of model '{spec.name}' was given twice")
        if info.name not in spec.inputs:
            raise invalid(f"model '{spec.name}' has no input '{info.name}', its inputs are {_names(spec.inputs)}")
        seen[info.name] = info
    return seen


def check_tensor(spec: ModelSpec, tensor: TensorSpec, info: TensorInfo, limits: Limits) -> int:
    """Checks one tensor and returns its number of elements. Raises ServingError (INVALID, TOO_LARGE)."""
    where = f"input '{tensor.name}' of model '{spec.name}'"
    if info.datatype != tensor.datatype.name:
        raise invalid(f"{where}: expected datatype {tensor.datatype.name}, got {info.datatype}")
    shape = info.shape
    if len(shape) > limits.max_rank:
        raise invalid(f"{where}: rank {len(shape)} is over the limit of {limits.max_rank}")
    if min(shape, default=0) < 0:
        raise invalid(f"{where}: expected {_expected(spec, tensor)}, got the negative size in shape {list(shape)}")
    elements = math.prod(shape)
    # The limit counts a size of 0 as 1. Else the other sizes could be huge, and the model may drop the dim of size 0.
    spanned = elements or math.prod(max(1, size) for size in shape)
    if spanned > limits.max_elements:
        raise ServingError(
            Kind.TOO_LARGE,
            f"{where}: {spanned} elements are over the limit of {limits.max_elements} in shape {list(shape)}",
        )
    if tensor.datatype.name == "BYTES" and spanned > limits.max_strings:
        raise ServingError(
            Kind.TOO_LARGE,
            f"{where}: {spanned} strings are over the limit of {limits.max_strings} in shape {list(shape)}",
        )
    dims = tensor.dims
    inner = shape[1:] if spec.batched else shape
    if (spec.batched and not shape) or len(inner) != len(dims):
        raise invalid(f"{where}: expected {_expected(spec, tensor)}, got shape {list(shape)}")
    for want, got in zip(dims, inner, strict=True):
        if want not in (-1, got):
            raise invalid(f"{where}: expected {_expected(spec, tensor)}, got shape {list(shape)}")
    if spec.batched and not 1 <= shape[0] <= spec.max_batch_size:
        raise invalid(
            f"{where}: expected a batch size of 1 to {spec.max_batch_size}, got {shape[0]} in shape {list(shape)}"
        )
    return elements


def check_outputs(spec: ModelSpec, names: Sequence[str], limits: Limits) -> tuple[str, ...]:
    """Returns the outputs to compute: the requested ones, or all outputs of the model if the request names none.

    Raises ServingError (INVALID, TOO_LARGE).
    """
    if not names:
        return tuple(spec.outputs)
    if len(names) > limits.max_tensors:
        raise ServingError(
            Kind.TOO_LARGE, f"the request asks for {len(names)} outputs, the limit is {limits.max_tensors}"
        )
    for name in names:
        if name not in spec.outputs:
            raise invalid(f"model '{spec.name}' has no output '{name}', its outputs are {_names(spec.outputs)}")
    if len(set(names)) != len(names):
        raise invalid(f"an output of model '{spec.name}' was asked for twice: {_names(names)}")
    return tuple(names)


def check_result(spec: ModelSpec, name: str, array: Array) -> None:
    """Raises ServingError (INTERNAL) if an output of a run doesn't have the datatype and the dims of the config.

    ONNX Runtime in this process keeps to the model file. A worker process may say anything.
    """
    check_result_type(spec, name, array)
    tensor = spec.outputs[name]
    if name in spec.scattered:
        return
    dims = tensor.dims if tensor.reshape is None else tensor.reshape
    wanted = (-1, *dims) if spec.batched else dims
    shape = array.shape
    if not shape and tensor.reshape is None and not spec.batched and all(size == 1 for size in dims):
        return  # dims of size 1 stand for a scalar too
    if len(shape) != len(wanted) or any(want not in (-1, size) for want, size in zip(wanted, shape, strict=True)):
        raise internal(f"output '{name}': expected shape {list(wanted)}, the model gave {list(shape)}")


def check_result_type(spec: ModelSpec, name: str, array: Array) -> None:
    """Raises ServingError (INTERNAL) if an output of a run doesn't have the datatype of the config."""
    datatype = spec.outputs[name].datatype
    if array.dtype != datatype.dtype:
        raise internal(f"output '{name}': expected {datatype.name}, the model gave {array.dtype}")


def _expected(spec: ModelSpec, tensor: TensorSpec) -> str:
    return f"datatype {tensor.datatype.name} and shape {spec.wire_shape(tensor)}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
