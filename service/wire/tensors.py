"""Converts tensors to and from raw bytes (little-endian, row-major) and to and from JSON values."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from service.errors import Kind, ServingError, invalid
from service.execution.checks import Limits
from service.execution.datatypes import DataType
from service.execution.request import Array

# The types that can hold a body: bytes as they came, or the aligned buffer that a large body was read into.
Bytes = bytes | bytearray | memoryview | np.ndarray[Any, Any]


def view(body: Bytes) -> memoryview:
    """Returns the bytes of a body as a memoryview, without a copy."""
    return memoryview(body)  # type: ignore[arg-type]  # NumPy's stubs hide that arrays are buffers


_LENGTH = struct.Struct("<I")


def from_raw(
    data: Bytes, offset: int, size: int, datatype: DataType, shape: tuple[int, ...], name: str, limits: Limits
) -> Array:
    """Returns `size` bytes at `offset` as an array: a view, or a copy if they are misaligned or the type is BYTES.

    Raises ServingError: INVALID if the size doesn't fit the shape or the type doesn't have such a value, TOO_LARGE if a
    string is over the limit.
    """
    count = math.prod(shape)
    if datatype.name == "BYTES":
        return _strings(view(data)[offset : offset + size], count, name, limits).reshape(shape)
    if size != count * datatype.itemsize:
        raise invalid(
            f"input '{name}': expected {count * datatype.itemsize} bytes for shape {list(shape)} of {datatype.name}, "
            f"got {size}"
        )
    array: Array = np.frombuffer(data, datatype.dtype, count, offset) if count else np.empty(0, datatype.dtype)
    if not array.flags.aligned:
        array = array.copy()
    if datatype.name == "BOOL":
        check_bool(array, name)
    return array.reshape(shape)


def check_bool(array: Array, name: str) -> None:
    """Raises ServingError (INVALID) if a byte of a BOOL tensor is neither 0 nor 1."""
    bits = array.view(np.uint8)
    if bits.size and bits.max() > 1:
        raise invalid(f"input '{name}': expected BOOL bytes 0 or 1, got {int(bits.max())}")


def _strings(data: memoryview, count: int, name: str, limits: Limits) -> Array:
    """Returns BYTES elements as str, because ONNX Runtime's strings are UTF-8 text. On the wire, each element is its
    length in 4 little-endian bytes and then its bytes."""
    at, end = 0, len(data)
    if count * _LENGTH.size > end:
        raise invalid(f"input '{name}': expected {count} BYTES elements, {end} bytes can't hold their lengths")
    array = np.empty(count, np.object_)
    for i in range(count):
        if end - at < 4:
            raise invalid(f"input '{name}': expected {count} BYTES elements, the data ends in element {i}")
        (length,) = _LENGTH.unpack_from(data, at)
        at += 4
        if length > end - at:
            raise invalid(f"input '{name}': element {i} says {length} bytes, {end - at} are left")
        if length > limits.max_string_bytes:
            raise ServingError(
                Kind.TOO_LARGE,
                f"input '{name}': element {i} has {length} bytes, the limit is {limits.max_string_bytes}",
            )
        array[i] = to_text(bytes(data[at : at + length]), name, i)
        at += length
    if at != end:
        raise invalid(f"input '{name}': {end - at} bytes are left over after {count} BYTES elements")
    return array


def to_text(data: bytes, name: str, index: int) -> str:
    """Returns UTF-8 bytes as text. Raises ServingError (INVALID) that names the input and the element's index."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(
            f"input '{name}': element {index} is not UTF-8 ({error.reason} at byte {error.start}); the model's tensor "
            "is text, send binary data to an input of type UINT8"
        ) from None


def to_raw(array: Array, datatype: DataType) -> bytes | memoryview:
    """Returns the bytes of an output. For a large contiguous array they are a view of its memory, otherwise a copy."""
    if datatype.name == "BYTES":
        parts: list[bytes] = []
        for element in array.reshape(-1).tolist():
            data = element.encode("utf-8", "surrogatepass") if isinstance(element, str) else bytes(element)
            parts += (_LENGTH.pack(len(data)), data)
        return b"".join(parts)
    if not array.size:
        return b""
    if array.nbytes <= 16384:
        return array.tobytes()
    return view(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def json_depth(data: Any, limit: int, name: str) -> int:
    """Returns how deep the lists are nested, by looking at the first element of each.

    Whether the other elements are nested alike is checked later. Raises ServingError (INVALID) beyond `limit`.
    """
    depth = 0
    while isinstance(data, list):
        depth += 1
        if depth > limit:
            raise invalid(f"input '{name}': data is nested more than {limit} deep")
        if not data:
            break
        data = data[0]
    return depth


_ACCEPTED = {"b": "b", "u": "iu", "i": "iu", "f": "iuf"}
_JSON_TYPES: dict[str, set[type]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}


def from_json(data: Any, datatype: DataType, shape: tuple[int, ...] | None, name: str, limits: Limits) -> Array:
    """Returns JSON numbers, booleans or strings as an array.

    The values are nested or flat. `shape` is the shape of the array; None takes the shape of the nested lists.
    Raises ServingError: INVALID, which says what value or structure doesn't fit, or TOO_LARGE for a long string.
    """
    depth = json_depth(data, limits.max_json_depth, name)
    if datatype.name == "BYTES":
        array = _json_strings(data, name, limits)
    else:
        array = _json_numbers(data, depth, datatype, name)
    if shape is None:
        return array
    if array.size != math.prod(shape):
        raise invalid(f"input '{name}': expected {math.prod(shape)} elements for shape {list(shape)}, got {array.size}")
    if array.ndim > 1 and array.shape != shape:
        raise invalid(f"input '{name}': expected data nested as shape {list(shape)} or flat, got {list(array.shape)}")
    return array.reshape(shape)


def _uneven(name: str, elements: str) -> ServingError:
    return invalid(f"input '{name}': expected evenly nested lists of {elements}, got uneven ones")


def _check_types(data: Any, depth: int, kind: str, datatype: DataType, name: str) -> None:
    """Raises ServingError (INVALID) if a value has a JSON type that the datatype doesn't take.

    This must happen before NumPy sees the values. Among mixed values NumPy would turn each number into a string as long
    as the longest string, and each boolean into a number.
    """
    values: Iterable[Any] = [data]
    try:
        for _ in range(depth):
            values = chain.from_iterable(values)
        types = set(map(type, values))
    except TypeError:
        types = {list}
    if list in types:
        raise _uneven(name, datatype.name)
    if not types <= _JSON_TYPES[kind]:
        raise invalid(f"input '{name}': expected {datatype.name} values, got {_first_other(data, kind)}")


def _json_numbers(data: Any, depth: int, datatype: DataType, name: str) -> Array:
    kind = "f" if datatype.name == "BF16" else datatype.dtype.kind
    _check_types(data, depth, kind, datatype, name)
    try:
        raw: Array = np.array(data)
    except (ValueError, OverflowError, TypeError):
        raise _uneven(name, datatype.name) from None
    if not raw.size:
        return raw.astype(datatype.dtype)
    if datatype.name == "UINT64" and raw.dtype.kind in "fO":
        raw = _exact_uint64(data, raw, name)
    if raw.dtype.kind not in _ACCEPTED[kind] or raw.dtype.kind == "O":
        raise invalid(f"input '{name}': expected {datatype.name} values, got {_first_other(data, kind)}")
    if kind in "iu":
        bounds = np.iinfo(datatype.dtype)
        low, high = int(raw.min()), int(raw.max())
        if low < bounds.min or high > bounds.max:
            raise invalid(
                f"input '{name}': expected {datatype.name} values of {bounds.min} to {bounds.max}, "
                f"got {low if low < bounds.min else high}"
            )
    if datatype.name == "BF16":
        return to_bf16(raw.astype(np.float32))
    if kind == "f" and datatype.itemsize < 8:
        largest = float(np.abs(raw).max())
        if largest > float(np.finfo(datatype.dtype).max):
            raise invalid(f"input '{name}': {largest} is too large for {datatype.name}")
    return raw.astype(datatype.dtype)


def _first_other(data: Any, kind: str) -> str:
    """Describes the first value that is not of the kind.

    It searches the JSON values, because NumPy has converted all elements of the array to one type.
    """
    kinds: tuple[type, ...] = (bool,) if kind == "b" else (int, float) if kind == "f" else (int,)
    waiting = [data]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting.extend(reversed(part))
        elif not isinstance(part, kinds) or (isinstance(part, bool) and kind != "b"):
            return _described(part)
    return "an integer beyond 64 bits"


def _described(value: Any) -> str:
    names = {bool: "boolean", str: "string", float: "number with a fraction", int: "integer", dict: "object"}
    return f"{names.get(type(value), 'null' if value is None else type(value).__name__)} {str(value)[:40]!r}"


def _exact_uint64(data: Any, raw: Array, name: str) -> Array:
    """Returns integers of which some are at least 2**63 and others less, because NumPy reads such a mix as floats."""
    exact = np.array(data, dtype=np.object_).reshape(-1)
    low, high = min(exact), max(exact)
    if low < 0 or high >= 1 << 64:
        raise invalid(f"input '{name}': expected UINT64 values, got {low if low < 0 else high}")
    return exact.astype(np.uint64).reshape(raw.shape)


def _json_strings(data: Any, name: str, limits: Limits) -> Array:
    flat: list[str] = []
    shape: list[int] = []

    def walk(value: Any, depth: int) -> None:
        if isinstance(value, list):
            if depth == len(shape) and flat:
                raise _uneven(name, "strings")
            if depth == len(shape):
                shape.append(len(value))
            if shape[depth] != len(value) or (
                depth + 1 == len(shape) and any(isinstance(v, list) for v in value) and flat
            ):
                raise _uneven(name, "strings")
            for part in value:
                walk(part, depth + 1)
        elif not isinstance(value, str):
            raise invalid(f"input '{name}': expected strings for BYTES, got {type(value).__name__} {str(value)[:40]!r}")
        elif depth != len(shape):
            raise _uneven(name, "strings")
        elif len(value) > limits.max_string_bytes:
            text = f"input '{name}': a string of {len(value)} characters is over the limit of {limits.max_string_bytes}"
            raise ServingError(Kind.TOO_LARGE, text)
        else:
            flat.append(value)

    walk(data, 0)
    array = np.empty(len(flat), np.object_)
    array[:] = flat
    return array.reshape(shape)


def to_bf16(values: Array) -> Array:
    """Converts float32 to the bits of bfloat16, rounded to nearest even. NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def from_bf16(bits: Array) -> Array:
    """Converts the bits of bfloat16 to float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def json_ready(array: Array, datatype: DataType) -> Array | list[Any]:
    """Returns an output in a form that orjson can write: a contiguous numeric array, or strings in nested lists."""
    if datatype.name == "BYTES":
        strings: list[Any] = [
            e if isinstance(e, str) else bytes(e).decode("utf-8", "replace") for e in array.reshape(-1)
        ]
        return _nest(strings, array.shape) if array.ndim > 1 else strings
    if datatype.name == "BF16":
        array = from_bf16(array)
    return np.ascontiguousarray(array)


def _nest(flat: list[Any], shape: Sequence[int]) -> list[Any]:
    for size in reversed(shape[1:]):
        flat = [flat[i : i + size] for i in range(0, len(flat), size)] if size else []
    return flat
