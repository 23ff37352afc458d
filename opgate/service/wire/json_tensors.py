"""Reads and writes the tensors in JSON bodies. The work on their elements is done in C++, without Python objects.

A body is read in two steps. `split` cuts the tensors out and parses the rest. `read` turns a tensor into an array when
its type and shape are known. NaN, Infinity and -Infinity are numbers here, as tritonclient writes and reads them.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import numpy as np
import orjson

from opgate.service.core.checks import Limits
from opgate.service.core.datatypes import DataType
from opgate.service.core.errors import Kind, ServingError, invalid, json_kind
from opgate.service.core.request import Array
from opgate.service.core.tensors import Bytes, empty, view
from opgate.service.native import json_tensors as native
from opgate.service.native.engine_strings import first_bytes

# Everything in a JSON body but its tensors: names, shapes, parameters.
MAX_REST_BYTES = 1 << 20
# Elements that are written at once, to bound the memory for them and the time without other threads.
_CHUNK = 65536
# From so many floats of these types to so many orjson writes them, in two thirds of the time. It has no text for NaN
# and infinities, and lets no other thread run meanwhile.
_FEW, _MANY, _OF_ORJSON = 64, 4096, frozenset(("FP16", "FP32", "FP64"))


class JsonValue(NamedTuple):
    """A tensor in a JSON body: where it begins and ends, and the shape of its nested lists, None if they are uneven."""

    body: Bytes
    begin: int
    end: int
    shape: tuple[int, ...] | None


def parse_object(data: bytes | memoryview) -> dict[str, Any]:
    """Returns a JSON object as a dict. Raises ServingError (INVALID) if the data is anything else."""
    try:
        message = loads(data)
    except ValueError as error:
        raise invalid(f"the request is not valid JSON: {error}") from None
    if not isinstance(message, dict):
        raise invalid(f"expected a JSON object, got {json_kind(message)}")
    return message


def loads(data: bytes | memoryview) -> Any:
    """Returns a JSON value, which may have NaN and infinities as Python writes them. Raises ValueError if the data is
    none."""
    try:
        return orjson.loads(data)  # it refuses NaN and infinities
    except orjson.JSONDecodeError:
        text = bytes(data)
        if b"NaN" not in text and b"Infinity" not in text:
            raise
    try:
        found = json.loads(text.decode(), parse_int=_integer, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    json.dumps(found, ensure_ascii=False).encode()  # refuses half of a surrogate pair, as orjson does
    return found


def _integer(text: str) -> int | float:
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 64 else _finite(text)  # as orjson has them


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is too large for a float of 64 bits")
    return number


def split(body: Bytes, length: int, members: bool, limits: Limits) -> tuple[bytes, list[JsonValue]]:
    """Returns the JSON text in the first `length` bytes of a body, with a number in place of each tensor, and the
    tensors.

    The number is the index of the tensor. Tensors are all members of the object if `members`, otherwise the member
    "data" of each object in the list "inputs".

    Raises ServingError: TOO_LARGE over a limit, INVALID if a tensor has no end.
    """
    if length > limits.max_json_bytes:
        raise too_much_json(length, limits)
    try:
        rest, values = native.split(body, length, members, limits.max_json_depth, MAX_REST_BYTES, limits.max_tensors)
    except native.Refused as refused:
        problem, begin, end = refused.args
        if problem == "depth":
            raise invalid(f"the request's JSON is nested more than {limits.max_json_depth} deep") from None
        if problem == "rest":
            text = f"the request's JSON without its tensors is over the limit of {MAX_REST_BYTES} bytes"
            raise ServingError(Kind.TOO_LARGE, text) from None
        if problem == "count":
            text = f"the request has more inputs than the limit of {limits.max_tensors}"
            raise ServingError(Kind.TOO_LARGE, text) from None
        raise invalid(f"the request is not valid JSON: {_excerpt(body, begin, end)} has no end") from None
    return rest, [JsonValue(body, *value) for value in values]


def members(body: Bytes, limits: Limits) -> dict[str, JsonValue]:
    """Returns the members of a JSON object as tensors. Raises ServingError as `split` does."""
    rest, values = split(body, len(body), True, limits)
    return {name: values[index] for name, index in parse_object(rest).items()}


# So many elements are read to find out what is wrong with them.
_FEW = 1 << 16


def from_text(text: str, name: str, limits: Limits) -> JsonValue:
    """Returns the tensor in a JSON text. Raises ServingError as `split` does, INVALID if the text is no JSON."""
    try:
        values = members(b'{"": ' + text.encode("utf-8", "surrogatepass") + b"}", limits)
    except ServingError as error:
        raise ServingError(error.kind, f"input '{name}': {error.message}") from None
    if len(values) != 1:
        raise invalid(f"input '{name}': expected a single JSON value, got '{text[:40]}'")
    return values[""]


def too_much_json(length: int, limits: Limits) -> ServingError:
    """Returns the error for a JSON text of `length` bytes, which is over the limit."""
    text = (
        f"the request has {length} bytes of JSON, the limit is {limits.max_json_bytes}; "
        "send large tensors as binary data"
    )
    return ServingError(Kind.TOO_LARGE, text)


def read(
    value: JsonValue, datatype: DataType, shape: tuple[int, ...] | None, name: str, limits: Limits, nulls: bool = False
) -> Array:
    """Returns the array of a tensor in JSON, whose lists are nested or flat.

    `shape` is the shape of the array; None takes the shape of the nested lists. With `nulls` null is NaN.
    Raises ServingError: INVALID, which says what value or structure doesn't fit, or TOO_LARGE for a long string.
    """
    if value.shape is None:
        raise invalid(f"input '{name}': expected evenly nested lists of {datatype.name} values, got uneven ones")
    count = math.prod(value.shape)
    if shape is not None:
        if count != math.prod(shape):
            if count <= _FEW and datatype.name != "BYTES":  # a list that is no JSON has no number of elements
                read(value, datatype, None, name, limits, nulls)
            text = f"expected {math.prod(shape)} elements for shape {list(shape)}, got {count}"
            raise invalid(f"input '{name}': {text}")
        if len(value.shape) > 1 and value.shape != shape:
            text = f"expected data nested as shape {list(shape)} or flat, got {list(value.shape)}"
            raise invalid(f"input '{name}': {text}")
    elif count > (most := limits.max_strings if datatype.name == "BYTES" else limits.max_elements):
        text = f"input '{name}': {count} elements are over the limit of {most}"
        raise ServingError(Kind.TOO_LARGE, text)
    array = empty((count,), datatype.dtype)
    try:
        if datatype.name == "BYTES":
            array[:] = native.strings(value.body, value.begin, value.end, limits.max_string_bytes)
        else:
            native.fill(value.body, value.begin, value.end, datatype.name, array, count, nulls)
    except native.Refused as refused:
        raise _refusal(value, datatype, name, limits, *refused.args) from None
    return array.reshape(value.shape if shape is None else shape)


def _excerpt(body: Bytes, begin: int, end: int) -> str:
    text = bytes(view(body)[begin : min(end, begin + 40)]).decode("utf-8", "replace")
    return repr(text + ("..." if end > begin + 40 else ""))


def _refusal(
    value: JsonValue, datatype: DataType, name: str, limits: Limits, problem: str, begin: int, end: int
) -> ServingError:
    got = _excerpt(value.body, begin, end)
    if problem == "length":
        text = f"input '{name}': a string of {end - begin - 2} bytes is over the limit of {limits.max_string_bytes}"
        return ServingError(Kind.TOO_LARGE, text)
    if problem == "fraction":
        return invalid(f"input '{name}': expected {datatype.name} values, got the number with a fraction {got}")
    if problem == "range" and datatype.dtype.kind in "iu" and datatype.name != "BF16":
        bounds = np.iinfo(datatype.dtype)
        return invalid(
            f"input '{name}': expected {datatype.name} values of {bounds.min} to {bounds.max}, got {got[1:-1]}"
        )
    if problem == "range":
        return invalid(f"input '{name}': {got[1:-1]} is too large for {datatype.name}")
    if problem == "kind" and (kind := _kind_of(value.body, begin, end)):
        return invalid(f"input '{name}': expected {datatype.name} values, got {kind}")
    return invalid(f"the request is not valid JSON: input '{name}' has {got} at byte {begin}")


def _kind_of(body: Bytes, begin: int, end: int) -> str:
    """Describes an element by its JSON type. Returns "" if it is no JSON."""
    first = bytes(view(body)[begin : begin + 1])
    text = _excerpt(body, begin, end)[1:-1]
    if first == b'"':
        return f"the string {text}"
    if text in ("true", "false"):
        return f"the boolean {text}"
    if first == b"{":
        return "an object"
    if first in b"-0123456789" or text in ("NaN", "Infinity"):
        return f"the number {text}"
    return "null" if text == "null" else ""


def write(array: Array, datatype: DataType, nested: bool, name: str, nulls: bool = False) -> list[bytes]:
    """Returns the array of output `name` as a JSON list, in parts: with the shape of the array if `nested`, otherwise
    flat. With `nulls` NaN is null.

    An array without dims is a single value. Raises ServingError (INVALID) for an element of BYTES that is not UTF-8.
    """
    if not nested:
        array = array.reshape(-1)
    if datatype.name == "BYTES":
        check_texts(array, name)
        return _write_strings(array)
    if not array.ndim:
        return [native.format(array, datatype.name, 0, 1, (), nulls)]
    if not array.size:
        return [orjson.dumps(array.tolist())]
    array = np.ascontiguousarray(array)
    if _FEW <= array.size <= _MANY and datatype.name in _OF_ORJSON and np.isfinite(array).all():
        return [orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)]
    shape = array.shape
    starts = range(0, array.size, _CHUNK)
    return [native.format(array, datatype.name, i, min(_CHUNK, array.size - i), shape, nulls) for i in starts]


def check_texts(array: Array, name: str) -> None:
    """Raises ServingError (INVALID) if an element of a BYTES output is not UTF-8, because JSON can't hold it."""
    index = first_bytes(np.asarray(array, order="C"))
    if index >= 0:
        problem = f"output '{name}': element {index} is not UTF-8, and JSON holds only text"
        how = "binary data (binary_data, binary_data_output) or content_type base64"
        raise invalid(f"{problem}; ask the route infer for {how}")


def _write_strings(array: Array) -> list[bytes]:
    if array.ndim == 1 and array.size > _CHUNK:
        parts = [orjson.dumps(array[i : i + _CHUNK].tolist())[1:-1] for i in range(0, array.size, _CHUNK)]
        return [b"[" + parts[0], *(b"," + part for part in parts[1:]), b"]"]
    return [orjson.dumps(array.tolist())]
