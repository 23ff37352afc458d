"""The model that `opgate load` loads, and the inputs of its requests: given ones, or made from the metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opgate.service.core.checks import Limits
from opgate.service.core.datatypes import DATATYPES, DataType
from opgate.service.core.errors import ServingError
from opgate.service.core.request import Array
from opgate.service.core.spec import ModelSpec, TensorSpec
from opgate.service.core.tensors import to_raw
from opgate.service.wire.friendly import file_input, file_request, values_request

#: Seconds that a server may take to describe a model, and to answer the first request.
ASK_SECONDS = 10.0
FIRST_SECONDS = 60.0


class LoadError(Exception):
    """The load can't start. The message says why."""


class RefusedError(LoadError):
    """The server says that the request is wrong, so all requests would be."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a request: an array, batch dim included, and its bytes on the wire."""

    name: str
    datatype: DataType
    array: Array
    content: bytes = field(repr=False)


def read_model(metadata: Any, config: Any | None) -> ModelSpec:
    """Makes the spec of a model from a ModelMetadataResponse and a ModelConfig. Raises LoadError.

    Without a config, the shapes are taken as they are: nobody says whether the first dim is a batch.
    """
    batched = config is not None and config.max_batch_size > 0
    optional = {tensor.name for tensor in config.input if tensor.optional} if config is not None else set()

    def spec(tensor: Any) -> TensorSpec:
        if tensor.datatype not in DATATYPES:
            raise LoadError(f"tensor '{tensor.name}' has the datatype '{tensor.datatype}', which opgate doesn't know")
        dims = tuple(tensor.shape)[1 if batched else 0 :]
        return TensorSpec(tensor.name, DATATYPES[tensor.datatype], dims, optional=tensor.name in optional)

    return ModelSpec(
        name=metadata.name,
        version=max(metadata.versions, key=lambda text: (len(text), text), default=""),
        inputs={tensor.name: spec(tensor) for tensor in metadata.inputs},
        outputs={tensor.name: spec(tensor) for tensor in metadata.outputs},
        max_batch_size=config.max_batch_size if batched else 0,  # type: ignore[union-attr]
    )


def read_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Reads a text such as name=3,224,224. Raises ValueError that says what was expected."""
    name, _, sizes = text.partition("=")
    try:
        shape = tuple(int(size) for size in sizes.split(","))
    except ValueError:
        shape = ()
    if not name or not shape or min(shape) < 0:
        raise ValueError(f"--shape: expected name=SIZE,SIZE,..., such as x=3,224,224, got '{text}'")
    return name, shape


def make_inputs(
    model: ModelSpec,
    rows: int,
    given: bytes | Mapping[str, bytes | str],
    shapes: Mapping[str, tuple[int, ...]],
) -> list[Input]:
    """Returns the inputs of a request of so many rows, which are all alike.

    `given` is a picture, or has the values of some inputs. The others are made up, the optional ones are left out.
    `shapes` has the shapes of made-up inputs without the batch dim. Raises LoadError that names the input and the
    option.
    """
    if rows > 1 and not model.batched:
        raise LoadError(f"--batch {rows}: model '{model.name}' has no batch dim")
    known = ", ".join(f"'{name}'" for name in model.inputs)
    for name in shapes:
        if name not in model.inputs:
            raise LoadError(f"--shape: model '{model.name}' has no input '{name}', its inputs are {known}")
        if not isinstance(given, bytes) and name in given:
            raise LoadError(f"--shape: input '{name}' has the shape of its value in --input")
    arrays = _given(model, given)
    for tensor in model.inputs.values():
        if tensor.name not in arrays and (not tensor.optional or tensor.name in shapes):
            array = _made(tensor, _shape(model, tensor, shapes.get(tensor.name)))
            arrays[tensor.name] = array[None] if model.batched else array
    inputs = []
    for name, array in arrays.items():
        datatype = model.inputs[name].datatype
        repeated = np.repeat(array, rows, axis=0) if rows > 1 else array
        inputs.append(Input(name, datatype, repeated, bytes(to_raw(repeated, datatype))))
    return inputs


def _given(model: ModelSpec, given: bytes | Mapping[str, bytes | str]) -> dict[str, Array]:
    """Returns the arrays of one row that /predict would make of a picture or of values."""
    try:
        if isinstance(given, bytes):
            return dict(file_request(model, given, Limits()).inputs)
        if not given:
            return {}
        if unknown := [name for name in given if name not in model.inputs]:
            known = ", ".join(f"'{name}'" for name in model.inputs)
            raise LoadError(f"--input: model '{model.name}' has no input '{unknown[0]}', its inputs are {known}")
        only = ModelSpec(
            model.name, model.version, {name: model.inputs[name] for name in given}, {}, model.max_batch_size
        )
        return dict(values_request(only, given, Limits()).inputs)
    except ServingError as error:
        option = "--file" if isinstance(given, bytes) else "--input"
        raise LoadError(f"{option}: {error.message}") from None


def _shape(model: ModelSpec, tensor: TensorSpec, shape: Sequence[int] | None) -> tuple[int, ...]:
    """Returns the shape of a made-up input without the batch dim. Raises LoadError."""
    if shape is not None:
        fits = len(shape) == len(tensor.dims) and all(
            want in (-1, got) for want, got in zip(tensor.dims, shape, strict=True)
        )
        if not fits:
            raise LoadError(
                f"--shape: input '{tensor.name}' has the shape {list(tensor.dims)} without the batch dim, "
                f"got {list(shape)}"
            )
        return tuple(shape)
    if -1 not in tensor.dims:
        return tensor.dims
    example = ",".join("8" if size < 0 else str(size) for size in tensor.dims)
    options = f"--shape {tensor.name}={example}, or a value with --input {tensor.name}=..."
    if file_input(model) is tensor:
        options = f"a file with --file FILE, {options}"
    raise LoadError(f"input '{tensor.name}' has the variable shape {list(tensor.dims)}: give {options}")


def _made(tensor: TensorSpec, shape: tuple[int, ...]) -> Array:
    """Returns the same values at every call. Integers are 0 or 1, because larger ones may be no index of the model."""
    random = np.random.default_rng(0)
    size = math.prod(shape)
    name, dtype = tensor.datatype.name, tensor.datatype.dtype
    array: Array
    if name == "BYTES":
        array = np.array([f"text {index}" for index in range(size)], np.object_)
    elif name == "UINT8":
        array = random.integers(0, 256, size, dtype)
    elif name == "BF16":  # the upper half of a float
        array = (random.random(size, np.float32).view(np.uint32) >> 16).astype(dtype)
    elif dtype.kind == "f":
        array = random.random(size).astype(dtype)
    else:
        array = random.integers(0, 2, size).astype(dtype)
    return array.reshape(shape)


def one_line(text: Any, most: int = 300) -> str:
    """Returns a text, or bytes of one, as a line of at most so many characters."""
    line = " ".join((text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)).split())
    return line if len(line) <= most else f"{line[:most]}..."
