"""The bodies of `/predict`: turns a file or named values into a request of one row, a result into labelled JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from opgate.service.core.checks import Limits, TensorInfo, check_inputs
from opgate.service.core.datatypes import DATATYPES
from opgate.service.core.errors import Kind, ServingError, internal, invalid
from opgate.service.core.presentation import Presentation
from opgate.service.core.request import Array, Request
from opgate.service.core.spec import ModelSpec, TensorSpec
from opgate.service.core.tensors import element, from_raw, view
from opgate.service.wire import files
from opgate.service.wire.json_tensors import JsonValue, from_text, members, read, write
from opgate.service.wire.run_lengths import run_lengths

# What /predict takes for an input: the bytes of a file, the text of a form's field, or a member of a JSON object.
# What several rows have in common is an array, because it is read once.
Value = bytes | str | JsonValue | Array

_JSON = re.compile(r'\s*(-?\d|\[|\{|"|true|false|null|NaN|-?Infinity)')  # how JSON begins
_BEGINNING = 4096  # bytes
_TEXT, _TEXTS = re.compile(rb'\s*"'), re.compile(rb'\s*\[\s*"')
_MAGIC = ((b"\xff\xd8\xff", "image/jpeg"), (b"\x89PNG\r\n\x1a\n", "image/png"))


def file_input(spec: ModelSpec) -> TensorSpec | None:
    """Returns the input that takes the bytes of a file, such as a picture, or None if the model has no such input.

    It is the model's only required input and has the type UINT8. One of its dims is variable, and the others are 1.
    """
    required = [tensor for tensor in spec.inputs.values() if not tensor.optional]
    if len(required) != 1 or required[0].datatype.name != "UINT8":
        return None
    return required[0] if required[0].is_file else None


def file_request(spec: ModelSpec, data: bytes, limits: Limits) -> Request:
    """Returns a request whose only input is the file `data`. Raises ServingError as `of_file` does."""
    return values_request(spec, of_file(spec, data), limits)


def of_file(spec: ModelSpec, data: bytes) -> dict[str, bytes]:
    """Returns the value of the input that takes a file. Raises ServingError (MEDIA_TYPE) if the model takes none."""
    tensor = file_input(spec)
    if tensor is None:
        inputs = ", ".join(f"'{t.name}' {t.datatype.name} {list(t.dims)}" for t in spec.inputs.values())
        raise ServingError(Kind.MEDIA_TYPE, f"model '{spec.name}' takes no file, send JSON or a form with {inputs}")
    return {tensor.name: data}


def with_query(
    spec: ModelSpec, values: Mapping[str, Value | list[Value]], query: Sequence[tuple[str, str]]
) -> dict[str, Value | list[Value]]:
    """Returns the values of a body and those in the query of its URL, each of which is like a field of a form.

    Raises ServingError (INVALID) for an unknown input, and for one that is given twice.
    """
    all_values = dict(values)
    for name, text in query:
        _known(spec, name)
        if name in all_values:
            raise invalid(f"input '{name}' is given twice: in the query of the URL, and there or in the body again")
        all_values[name] = text
    return all_values


def csv_rows(spec: ModelSpec, data: bytes, limits: Limits) -> list[dict[str, Value]]:
    """Returns the values of each row of a CSV file, whose first line has the names of inputs. An empty cell is NaN for
    an input of floats.

    Raises ServingError: INVALID for a name that is no input, and for a row of another length; TOO_LARGE.
    """
    try:
        names, *rows = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)) or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise invalid(f"the CSV can't be read: {error}") from None
    if not names:
        raise invalid("expected a line of names, and lines of values, got an empty CSV")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise invalid(f"the CSV has the column '{twice[0]}' twice")
    tensors = [_known(spec, name) for name in names]
    found: list[dict[str, Value]] = []
    for number, row in enumerate(rows, 2):
        if not row:
            continue
        if len(row) != len(names):
            raise invalid(f"row {number} of the CSV has {len(row)} values, and its first row has {len(names)} names")
        found.append({tensor.name: _cell(tensor, value) for tensor, value in zip(tensors, row, strict=True)})
    _check_rows(len(found), limits)
    return found


def _cell(tensor: TensorSpec, value: str) -> Value:
    """Returns the value of a cell: a text as it is, or a number in the form of JSON, in which it may also be written
    otherwise: .5, +1, nan, or 1.0 for an integer. What is no number is left for the error that says so."""
    datatype = tensor.datatype.name
    if datatype == "BYTES":
        return value.encode()
    floats = datatype.startswith(("FP", "BF"))
    if not value:
        return "NaN" if floats else value
    try:
        number = float(value)
    except ValueError:
        return _json_text(value)
    if floats:
        return "NaN" if math.isnan(number) else json.dumps(number)
    if value.strip().lstrip("+-").isdecimal():  # as a float it may lose digits
        return str(int(value))
    return str(int(number)) if math.isfinite(number) and number == int(number) else value


def _json_text(value: str) -> str:
    """Returns a text in JSON, which is no number."""
    return value if value in ("true", "false") else json.dumps(value)


def json_rows(data: bytes, limits: Limits) -> list[dict[str, Value]]:
    """Returns the values of each object in a JSON array of objects. Raises ServingError (INVALID, TOO_LARGE)."""
    try:
        rows = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise invalid(f"the body is no JSON: {error}") from None
    _check_rows(len(rows), limits)
    if wrong := next((row for row in rows if not isinstance(row, dict)), None):
        raise invalid(f"expected a JSON object, or an array of objects, got an array with {str(wrong)[:40]}")
    return [dict(members(orjson.dumps(row), limits)) for row in rows]


def _check_rows(count: int, limits: Limits) -> None:
    if count > limits.max_tensors:
        raise ServingError(Kind.TOO_LARGE, f"the request has {count} rows, the limit is {limits.max_tensors}")


def values_request(spec: ModelSpec, values: Mapping[str, Value], limits: Limits) -> Request:
    """Returns a request of one row. Each value has the shape of the input without the batch dimension.

    Raises ServingError (INVALID, TOO_LARGE).
    """
    arrays: dict[str, Array] = {}
    for name, value in values.items():
        array = _array(_known(spec, name), value, limits)
        arrays[name] = array[None] if spec.batched else array
    infos = [TensorInfo(name, spec.inputs[name].datatype.name, array.shape) for name, array in arrays.items()]
    fit = check_inputs(spec, infos, limits)
    return Request(arrays, fit.rows, fit.key, tuple(spec.outputs), weight=fit.weight)


def rows_of(
    spec: ModelSpec, values: Mapping[str, Value | list[Value]], limits: Limits
) -> list[dict[str, Value]] | None:
    """Returns the values of each row if an input is given several times, or a file as a JSON list of texts. None if
    there is one row. What is given once belongs to every row, and is read once.

    Raises ServingError: INVALID for an unknown input, if two inputs are given unequally often, or if a file is given
    once and another input several times; TOO_LARGE if there are too many rows.
    """
    several = {name: rows for name, value in values.items() if (rows := _rows(spec, name, value, limits)) is not None}
    if not several:
        return None
    for name in values:
        _known(spec, name)
    once = {name: value for name, value in values.items() if not isinstance(value, list) and name not in several}
    counts = {name: len(rows) for name, rows in several.items()}
    counts |= {name: 1 for name in once if spec.inputs[name].is_file}
    if len(set(counts.values())) > 1:
        given = ", ".join(f"'{name}' {count} time{'s' * (count != 1)}" for name, count in counts.items())
        raise invalid(f"inputs must be given equally often, got {given}")
    count = next(iter(counts.values()))
    _check_rows(count, limits)
    shared = {name: _array(spec.inputs[name], value, limits) for name, value in once.items()}
    return [shared | {name: rows[i] for name, rows in several.items()} for i in range(count)]


def _known(spec: ModelSpec, name: str) -> TensorSpec:
    """Returns an input. Raises ServingError (INVALID) if there is none of that name."""
    tensor = spec.inputs.get(name)
    if tensor is None:
        known = ", ".join(f"'{known}'" for known in spec.inputs)
        raise invalid(f"model '{spec.name}' has no input '{name}', its inputs are {known}")
    return tensor


def _rows(spec: ModelSpec, name: str, value: Value | list[Value], limits: Limits) -> list[Value] | None:
    if isinstance(value, list):
        return value
    tensor = spec.inputs.get(name)
    if tensor is None or not tensor.is_file or not isinstance(value, JsonValue) or not _begins(value, _TEXTS):
        return None
    return list(read(value, DATATYPES["BYTES"], None, name, limits).reshape(-1))


def _begins(value: JsonValue, pattern: re.Pattern[bytes]) -> bool:
    """Returns whether a value in JSON begins as the pattern says. Only its first bytes are looked at."""
    return pattern.match(bytes(view(value.body)[value.begin : min(value.end, value.begin + _BEGINNING)])) is not None


def _text(tensor: TensorSpec, value: str | JsonValue, limits: Limits) -> str | bytes | None:
    """Returns the text that is given for a file, None if numbers are."""
    if isinstance(value, str):
        if not value.lstrip().startswith(('"', "[")):
            return value
        value = from_text(value, tensor.name, limits)
    if not _begins(value, _TEXT):
        return None
    text: str | bytes = read(value, DATATYPES["BYTES"], None, tensor.name, limits).reshape(-1)[0]
    return text


def _from_bytes(tensor: TensorSpec, data: bytes, limits: Limits) -> Array:
    if tensor.is_file:
        shape = tuple(len(data) if size == -1 else size for size in tensor.dims)
        return from_raw(data, 0, len(data), tensor.datatype, shape, tensor.name, limits)
    if tensor.datatype.name == "BYTES" and all(size in (1, -1) for size in tensor.dims):
        array = np.empty((1,) * len(tensor.dims), np.object_)
        array.reshape(-1)[0] = element(data)
        return array
    raise invalid(
        f"input '{tensor.name}': expected JSON of {tensor.datatype.name} and shape {list(tensor.dims)}, "
        f"got {len(data)} bytes"
    )


def _array(tensor: TensorSpec, value: Value, limits: Limits) -> Array:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, bytes):
        return _from_bytes(tensor, value, limits)
    if tensor.is_file and (text := _text(tensor, value, limits)) is not None:
        return _from_bytes(tensor, files.decoded(text, f"input '{tensor.name}'"), limits)
    if isinstance(value, JsonValue):
        return _from_value(tensor, value, limits)
    # A text input takes a text as it is, unless that looks like JSON.
    if tensor.datatype.name == "BYTES" and not value.lstrip().startswith(('"', "[")):
        return _from_bytes(tensor, value.encode("utf-8", "surrogatepass"), limits)
    if not _JSON.match(value):
        expected = f"expected {tensor.datatype.name}, such as 1 or [1, 2]"
        raise invalid(f"input '{tensor.name}': {expected}, got '{value[:40]}'")
    return _from_value(tensor, from_text(value, tensor.name, limits), limits)


def _from_value(tensor: TensorSpec, value: JsonValue, limits: Limits) -> Array:
    array = read(value, tensor.datatype, None, tensor.name, limits)
    if array.size == 1 and array.ndim < len(tensor.dims) and all(size in (1, -1) for size in tensor.dims):
        array = array.reshape((1,) * len(tensor.dims))
    elif array.ndim == 1 < len(tensor.dims) and tensor.dims.count(-1) <= 1:  # a flat list, as in Triton's generate
        whole = math.prod(size for size in tensor.dims if size != -1)
        if array.size and whole and (not array.size % whole if -1 in tensor.dims else array.size == whole):
            array = array.reshape(tensor.dims)
    fits = array.ndim == len(tensor.dims) and all(
        want in (-1, got) for want, got in zip(tensor.dims, array.shape, strict=True)
    )
    if not fits:
        raise invalid(
            f"input '{tensor.name}': expected {tensor.datatype.name} of shape {list(tensor.dims)}, "
            f"got shape {list(array.shape)}"
        )
    return array


def labelled(
    spec: ModelSpec, presentation: Presentation, result: Mapping[str, Array], inputs: Mapping[str, Array]
) -> bytes:
    """Returns a result of one row, for a request with these inputs, as JSON.

    The answer holds a list of records if the config has `predict_fields` or `predict_text_output`, otherwise all
    outputs by name. Raises ServingError (INVALID) for an output that is not text.
    """
    # A model in Python may find none or several things in a row. Then an output has a list of what it says of each.
    rows = {
        name: array[0] if spec.batched and array.ndim and len(array) == 1 else array for name, array in result.items()
    }
    answer: dict[str, Any] = {"model_name": spec.name, "model_version": spec.version}
    if presentation.has_records:
        needed = [output for _, output in presentation.fields]
        needed += filter(None, (presentation.count, presentation.text, *presentation.masks))
        needed += [place for _, span in presentation.spans for place in (span.begin, span.end)]
        if missing := [name for name in needed if name not in rows]:
            raise internal(f"model '{spec.name}' left out the output '{missing[0]}', which predict_fields needs")
        answer["predictions"] = _records(spec, presentation, rows, inputs)
    else:
        answer["outputs"] = {name: _json(spec.outputs[name], row) for name, row in rows.items()}
    return orjson.dumps(answer)


def _records(
    spec: ModelSpec, presentation: Presentation, rows: Mapping[str, Array], inputs: Mapping[str, Array]
) -> list[dict[str, Any]]:
    """Returns the records of a row: one for each text, or one for each entry of the outputs. A text is the whole
    output, or each of its rows if it has rows. A count below 0 means that there is no text."""

    def value(output: str, i: int) -> Any:
        if output in presentation.masks[:1]:
            masks, geometry, boxes = (rows[name] for name in presentation.masks)
            return _run_lengths(masks[i], geometry, boxes[i])
        return _json(spec.outputs[output], _element(rows[output], i))

    whole = {span.input: _whole_text(inputs, span.input) for _, span in presentation.spans}

    def record(i: int) -> dict[str, Any]:
        found = {field: value(output, i) for field, output in presentation.fields}
        for field, span in presentation.spans:
            found[field] = whole[span.input][max(0, int(rows[span.begin][i])) : max(0, int(rows[span.end][i]))]
        return found

    counts = [int(rows[presentation.count].reshape(-1)[0])] if presentation.count else []
    lengths = [len(rows[output]) for _, output in presentation.fields]
    lengths += [min(len(rows[span.begin]), len(rows[span.end])) for _, span in presentation.spans]
    if presentation.text:
        labels, texts = spec.outputs[presentation.text].labels, rows[presentation.text]

        def text(numbers: Array) -> str:
            return "".join(labels[number] for number in numbers if 0 <= number < len(labels))

        if texts.ndim == 2:
            return [{"text": text(texts[i]), **record(i)} for i in range(min([*counts, *lengths, len(texts)]))]
        if counts and counts[0] < 0:
            return []
        numbers = texts.reshape(-1)[slice(*counts) if counts else slice(None)]
        return [{"text": text(numbers), **(record(0) if all(lengths) else {})}]
    return [record(i) for i in range(min([*counts, *lengths]))]


def _whole_text(inputs: Mapping[str, Array], name: str) -> str:
    """Returns the text of an input, empty if a request left it out."""
    array = inputs.get(name)
    text = "" if array is None else array.reshape(-1)[0]
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def _run_lengths(mask: Array, geometry: Array, box: Array) -> dict[str, Any]:
    """Returns a mask as COCO's uncompressed run lengths."""
    size, counts = run_lengths(mask, geometry, box)
    return {"size": size, "counts": orjson.Fragment(orjson.dumps(counts, option=orjson.OPT_SERIALIZE_NUMPY))}


def _element(array: Array, index: int) -> Array:
    return np.asarray(array[index], array.dtype)  # a string alone would get a type of NumPy's own


def _json(tensor: TensorSpec, array: Array) -> Any:
    """Returns a tensor in a form that orjson writes, with labels in place of integers if the tensor has labels."""
    if tensor.labels and array.dtype.kind in "iu":
        known = np.array([*tensor.labels, None], np.object_)
        outside = (array < 0) | (array >= len(tensor.labels))
        texts = known[np.where(outside, len(tensor.labels), array)]
        return np.where(outside, array.astype(np.object_), texts).tolist()
    return orjson.Fragment(b"".join(write(array, tensor.datatype, True, tensor.name)))


def picture_bytes(spec: ModelSpec, result: Mapping[str, Array]) -> tuple[bytes, str]:
    """Returns the picture in a result, and its media type.

    Raises ServingError (INTERNAL) unless the result is a single UINT8 output that holds a JPEG or a PNG.
    """
    arrays = list(result.values())
    if len(arrays) != 1 or arrays[0].dtype != np.uint8:
        raise ServingError(Kind.INTERNAL, f"model '{spec.name}' is no picture model: it needs one UINT8 output")
    data = arrays[0].tobytes()
    for magic, media in _MAGIC:
        if data.startswith(magic):
            return data, media
    raise ServingError(Kind.INTERNAL, f"model '{spec.name}' answered with neither a JPEG nor a PNG")
