"""Values for the inputs of a model: those that somebody gives, and random ones for the others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from opgate.onnx_tools.values import Shape, Values
from opgate.ops_build.case import Array
from opgate.ops_build.dtypes import DTYPES

#: The size of a dim that the model leaves open and nobody states. The first axis is usually a batch.
OPEN_SIZE = 8


class InputError(ValueError):
    """A value doesn't fit an input. The message names the input, what was expected and what came."""


def split_option(text: str, expected: str) -> tuple[str, str]:
    """Splits the text of an option, NAME=VALUE. Raises InputError."""
    name, separator, value = text.partition("=")
    if not name or not separator or not value:
        raise InputError(f"expected {expected}, got '{text}'")
    return name, value


def sizes_of(options: Iterable[str]) -> dict[str, int]:
    """Reads options of the form DIM=SIZE. Raises InputError."""
    sizes = {}
    for text in options:
        name, value = split_option(text, "DIM=SIZE")
        if not value.isdecimal() or int(value) < 1:
            raise InputError(f"expected a size of 1 or more for dim '{name}', got '{value}'")
        sizes[name] = int(value)
    return sizes


def check_sizes(model: onnx.ModelProto, sizes: Iterable[str]) -> None:
    """Raises InputError for a name that no dim in a model has."""
    graph = model.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    named = {dim.dim_param: None for value in values for dim in value.type.tensor_type.shape.dim if dim.dim_param}
    for name in sizes:
        if name not in named:
            raise InputError(f"--size: the model has no open dim '{name}': expected {', '.join(named) or 'none'}")


def feeds(
    model: onnx.ModelProto, given: Iterable[str] = (), sizes: Mapping[str, int] | None = None, seed: int = 0
) -> dict[str, Array]:
    """Returns a value for each input of a model.

    `given` has texts of the form NAME=VALUE. VALUE is the name of a .npy file, JSON, or a type and a shape such as
    f32[1,3,8,8] for random numbers. Other inputs get random numbers of their own type and shape; `sizes` says how large
    the dims are that the model leaves open. Raises InputError.
    """
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = {value.name: value for value in model.graph.input if value.name not in initializers}
    pairs = [split_option(text, "NAME=FILE.npy, NAME=JSON or NAME=f32[1,3,8,8]") for text in given]
    texts = dict(pairs)
    if len(texts) < len(pairs):
        raise InputError(f"an input has two values: {', '.join(name for name, _ in pairs)}")
    check_sizes(model, sizes or ())
    for name in texts:
        if name not in inputs:
            raise InputError(f"the model has no input '{name}': expected {', '.join(inputs) or 'none'}")
    rng = np.random.default_rng(seed)
    values = Values(model)
    opened = dict(sizes or {})
    result: dict[str, Array] = {}
    for name in sorted(inputs, key=lambda name: name not in texts):
        shape, dtype = values.shape(name), values.dtype(name)
        if dtype is None:
            raise InputError(f"input '{name}' is no tensor of a type that opgate knows")
        value = read_value(name, texts[name], dtype, rng) if name in texts else None
        if value is None:
            value = random_array(concrete(name, shape, opened), dtype, rng)
        check(name, value, shape, opened)
        result[name] = value
    return {name: result[name] for name in inputs}


def read_value(name: str, text: str, dtype: str, rng: np.random.Generator) -> Array:
    """Returns the value that a text states for an input, see `feeds`. Raises InputError."""
    described = re.fullmatch(r"(\w+)\[([\d,\s]*)\]", text)
    if described and described[1] in DTYPES:
        if described[1] != dtype:
            raise InputError(f"input '{name}': expected {dtype}, got {described[1]}")
        return random_array([int(size) for size in described[2].split(",") if size.strip()], dtype, rng)
    wanted = DTYPES[dtype].numpy
    if text.endswith(".npy"):
        try:
            array: Array = np.load(Path(text), allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"input '{name}': {text}: {error}") from None
        if array.dtype != wanted:
            raise InputError(f"input '{name}': expected {dtype}, and {text} has {array.dtype}")
        return array
    try:
        return _from_json(json.loads(text), wanted)
    except (ValueError, TypeError, OverflowError):
        raise InputError(
            f"input '{name}': expected a .npy file, a JSON list of {dtype} or {dtype}[sizes], got '{text}'"
        ) from None


def _from_json(value: Any, wanted: np.dtype[Any]) -> Array:
    array = np.asarray(value)
    if wanted == np.dtype(object):
        if array.size and array.dtype.kind != "U":
            raise ValueError
        return array.astype(object)
    whole = array.dtype.kind in "iub" and wanted.kind in "iu"
    if array.size and not whole and not np.can_cast(array.dtype, wanted, "same_kind"):
        raise ValueError
    with np.errstate(over="ignore"):
        converted = array.astype(wanted)
    if (whole and not np.array_equal(converted, array)) or (np.isinf(converted) & ~np.isinf(array)).any():
        raise OverflowError
    return converted


def concrete(name: str, shape: Shape | None, sizes: dict[str, int]) -> list[int]:
    """Returns a shape with a number for each dim. A name gets the size of `sizes`, or one that is then kept there."""
    if shape is None:
        raise InputError(f"the model doesn't state the rank of input '{name}': give a value for it")
    result = []
    for axis, size in enumerate(shape):
        if isinstance(size, int):
            result.append(size)
        else:
            usual = 1 if axis == 0 else OPEN_SIZE
            result.append(sizes.setdefault(size, usual) if size else usual)
    return result


def check(name: str, value: Array, shape: Shape | None, sizes: dict[str, int]) -> None:
    """Raises InputError if a value doesn't fit the shape of an input. Binds the names of its dims in `sizes`."""
    if shape is None:
        return
    fits = value.ndim == len(shape) and all(
        size == (sizes.setdefault(stated, size) if isinstance(stated, str) else stated or size)
        for stated, size in zip(shape, value.shape, strict=True)
    )
    if not fits:
        expected = ", ".join(
            f"{size}={sizes[size]}" if size in sizes else str(size if size is not None else "?") for size in shape
        )
        raise InputError(f"input '{name}': expected the shape [{expected}], got {list(value.shape)}")


def random_array(shape: Sequence[int], dtype: str, rng: np.random.Generator, below: int = 2) -> Array:
    """Returns normally distributed floats, integers from 0 that lie below a number, or texts."""
    numpy_type = DTYPES[dtype].numpy
    if numpy_type.kind in "iub":
        return rng.integers(0, 2 if dtype == "bool" else below, shape).astype(numpy_type)
    if dtype == "str":
        return np.full(shape, "text", dtype=object)
    return np.asarray(rng.standard_normal(shape)).astype(numpy_type)
