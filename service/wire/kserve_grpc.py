"""Reads a ModelInferRequest into a Request, and writes the result of a Request as a ModelInferResponse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from service.errors import invalid
from service.execution.checks import Head, Limits, check_inputs, check_outputs
from service.execution.datatypes import DATATYPES, DataType
from service.execution.request import Array, Request
from service.execution.spec import ModelSpec
from service.wire.kserve_rules import check_datatype, check_output_parameters, refuse_shared_memory, request_timeout
from service.wire.tensors import check_bool, from_raw, to_raw, to_text

_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
# The types of the lists that hold narrower integers too.
_WIDE = {"int_contents": np.int32, "uint_contents": np.uint32}


# What reading or writing an element of a list costs, in bytes of JSON that cost the same, and how many bytes of raw
# contents cost as much as one.
_ELEMENT_COST = 64
_RAW_COST = 16
# Elements of a list that are read at once, because other threads wait meanwhile.
_CHUNK = 8192


def decoding_cost(message: Any) -> int:
    """Returns what `decode` costs, in bytes of JSON that cost the same."""
    cost = 0
    for item in message.inputs:
        field = _CONTENTS.get(item.datatype)
        if field is not None:
            cost += len(getattr(item.contents, field)) * _ELEMENT_COST
    strings = any(item.datatype == "BYTES" for item in message.inputs)
    return cost + sum(map(len, message.raw_input_contents)) * (_RAW_COST if strings else 1) // _RAW_COST


def encoding_cost(request: Request) -> int:
    """Returns what `encode` costs, in bytes of JSON that cost the same."""
    result = request.result or {}
    strings = sum(result[name].size for name in request.outputs if result[name].dtype == object)
    return strings * _ELEMENT_COST + sum(result[name].nbytes for name in request.outputs) // _RAW_COST


def decode(message: Any, spec: ModelSpec, limits: Limits) -> Request:
    """Checks a ModelInferRequest and returns it as a Request. Raises ServingError.

    The arrays of inputs that come as raw contents are views on these contents.
    """
    heads = []
    for item in message.inputs:
        heads.append(Head(item.name, check_datatype(item.datatype, item.name), tuple(item.shape)))
        if item.parameters:
            refuse_shared_memory(item.parameters, f"input '{item.name}'")
    fit = check_inputs(spec, heads, limits)
    raws = message.raw_input_contents
    if raws and len(raws) != len(heads):
        raise invalid(f"raw_input_contents: expected one entry for each of the {len(heads)} inputs, got {len(raws)}")
    arrays: dict[str, Array] = {}
    for i, head in enumerate(heads):
        datatype = DATATYPES[head.datatype]
        if raws:
            if message.inputs[i].HasField("contents"):
                raise invalid(f"input '{head.name}' has both contents and raw_input_contents")
            data = raws[i]
            arrays[head.name] = from_raw(data, 0, len(data), datatype, head.shape, head.name, limits)
        else:
            arrays[head.name] = _from_contents(message.inputs[i].contents, datatype, head)
    for item in message.outputs:
        if item.parameters:
            check_output_parameters(_plain(item.parameters), item.name)
    outputs = check_outputs(spec, [item.name for item in message.outputs], limits)
    timeout = request_timeout(_plain(message.parameters)) if message.parameters else 0
    return Request(arrays, fit.rows, fit.key, outputs, id=message.id, timeout_us=timeout, weight=fit.weight)


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    plain = {}
    for key, value in parameters.items():
        choice = value.WhichOneof("parameter_choice")
        plain[key] = None if choice is None else getattr(value, choice)
    return plain


def _from_contents(contents: Any, datatype: DataType, head: Head) -> Array:
    field = _CONTENTS.get(datatype.name)
    if field is None:
        raise invalid(f"input '{head.name}': {datatype.name} must come in raw_input_contents")
    values = getattr(contents, field)
    count = 1
    for size in head.shape:
        count *= size
    if len(values) != count:
        raise invalid(
            f"input '{head.name}': expected {count} elements in {field} for shape {list(head.shape)}, got {len(values)}"
        )
    if datatype.name == "BYTES":
        texts: Array = np.empty(count, np.object_)
        for i, value in enumerate(values):
            texts[i] = to_text(value, head.name, i)
        return texts.reshape(head.shape)
    array: Array = np.empty(count, _WIDE.get(field, datatype.dtype))
    for begin in range(0, count, _CHUNK):
        array[begin : begin + _CHUNK] = values[begin : begin + _CHUNK]
    if datatype.dtype.kind in "iu" and count:
        bounds = np.iinfo(datatype.dtype)
        low, high = int(array.min()), int(array.max())
        if low < bounds.min or high > bounds.max:
            raise invalid(
                f"input '{head.name}': expected {datatype.name} values of {bounds.min} to {bounds.max}, "
                f"got {low if low < bounds.min else high}"
            )
    array = array.astype(datatype.dtype, copy=False)
    if datatype.name == "BOOL":
        check_bool(array, head.name)
    return array.reshape(head.shape)


def encode(request: Request, spec: ModelSpec) -> Any:
    """Returns the ModelInferResponse of a finished request."""
    result = request.result or {}
    response = service_pb2.ModelInferResponse(model_name=spec.name, model_version=spec.version, id=request.id)
    raw = response.raw_output_contents
    for name in request.outputs:
        array = result[name]
        datatype = spec.outputs[name].datatype
        response.outputs.add(name=name, datatype=datatype.name, shape=array.shape)
        data = to_raw(array, datatype)
        raw.append(data if isinstance(data, bytes) else bytes(data))
    return response
