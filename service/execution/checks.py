"""Whether a request fits its model: names, types, shapes. Looks at no data, so its answer can be kept per header."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from service.errors import Kind, ServingError, invalid
from service.execution.spec import ModelSpec, TensorSpec


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask for. See `service.settings`."""

    max_rank: int = 16
    max_elements: int = 256 * 1024 * 1024
    max_tensors: int = 256
    max_json_depth: int = 32
    max_string_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Head:
    """A tensor without its data, as the client announced it."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """The batch size, what requests of one batch must have in common, and the elements of ragged inputs."""

    rows: int
    key: Hashable
    weight: int


def check_inputs(spec: ModelSpec, heads: Sequence[Head], limits: Limits) -> Fit:
    """Checks every input of one request.

    Raises ServingError (INVALID, TOO_LARGE) that names the input, what was expected and what came.
    """
    if len(heads) > limits.max_tensors:
        raise ServingError(
            Kind.TOO_LARGE, f"the request has {len(heads)} inputs, at most {limits.max_tensors} may come"
        )
    seen = _by_name(spec, heads)
    rows: int | None = None
    first = ""
    parts: list[Hashable] = []
    weight = 0
    for tensor in spec.inputs.values():
        given = seen.get(tensor.name)
        if given is None:
            if not tensor.optional:
                raise invalid(
                    f"input '{tensor.name}' of model '{spec.name}' is missing: expected {_expected(spec, tensor)}, "
                    f"got inputs {_names(seen)}"
                )
            continue
        elements = check_tensor(spec, tensor, given, limits)
        if spec.batched:
            if rows is None:
                rows, first = given.shape[0], tensor.name
            elif rows != given.shape[0]:
                raise invalid(
                    f"inputs of model '{spec.name}' must have one batch size: '{first}' has {rows}, "
                    f"'{tensor.name}' has {given.shape[0]}"
                )
        if tensor.ragged:
            weight += elements
            parts.append(tensor.name)
        else:
            parts.append((tensor.name, given.shape[1:] if spec.batched else given.shape))
    return Fit(rows or 1, tuple(parts), weight)


def _by_name(spec: ModelSpec, heads: Sequence[Head]) -> dict[str, Head]:
    seen: dict[str, Head] = {}
    for head in heads:
        if head.name in seen:
            raise invalid(f"input '{head.name}' of model '{spec.name}' was given twice")
        if head.name not in spec.inputs:
            raise invalid(f"model '{spec.name}' has no input '{head.name}', its inputs are {_names(spec.inputs)}")
        seen[head.name] = head
    return seen


def check_tensor(spec: ModelSpec, tensor: TensorSpec, head: Head, limits: Limits) -> int:
    """Checks one tensor and returns its number of elements."""
    where = f"input '{tensor.name}' of model '{spec.name}'"
    if head.datatype != tensor.datatype.name:
        raise invalid(f"{where}: expected datatype {tensor.datatype.name}, got {head.datatype}")
    shape = head.shape
    if len(shape) > limits.max_rank:
        raise invalid(f"{where}: rank {len(shape)} is over the limit of {limits.max_rank}")
    if any(size < 0 for size in shape):
        raise invalid(f"{where}: expected {_expected(spec, tensor)}, got the negative size in shape {list(shape)}")
    elements = math.prod(shape)
    # A size of 0 must not hide the others: the model may drop that dim.
    spanned = math.prod(max(1, size) for size in shape)
    if spanned > limits.max_elements:
        raise ServingError(
            Kind.TOO_LARGE,
            f"{where}: {spanned} elements are over the limit of {limits.max_elements} in shape {list(shape)}",
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
    """The outputs to make: those asked for, else all that the model has."""
    if not names:
        return tuple(spec.outputs)
    if len(names) > limits.max_tensors:
        raise ServingError(Kind.TOO_LARGE, f"{len(names)} outputs were asked for, at most {limits.max_tensors} may be")
    for name in names:
        if name not in spec.outputs:
            raise invalid(f"model '{spec.name}' has no output '{name}', its outputs are {_names(spec.outputs)}")
    if len(set(names)) != len(names):
        raise invalid(f"an output of model '{spec.name}' was asked for twice: {_names(names)}")
    return tuple(names)


def _expected(spec: ModelSpec, tensor: TensorSpec) -> str:
    return f"datatype {tensor.datatype.name} and shape {spec.wire_shape(tensor)}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
