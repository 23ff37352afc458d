"""Reads a ModelInferRequest into a Request, and writes the result of a Request as a ModelInferResponse.

Protobuf's own library parses messages without their raw contents, so that these are not copied.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from service.errors import invalid, too_large
from service.execution.checks import Head, Limits, check_inputs, check_outputs
from service.execution.datatypes import DATATYPES, DataType
from service.execution.request import Array, Request
from service.execution.spec import ModelSpec
from service.native.protobuf import split_tail
from service.wire.kserve_rules import check_datatype, check_output_parameters, refuse_shared_memory, request_timeout
from service.wire.tensors import Bytes, check_bool, from_raw, to_raw, to_text

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
# The head of a message is what comes before its raw contents. Clients that send no id repeat it byte for byte, so the
# plans of such heads are kept: at most so many, of heads of at most so many bytes.
_MAX_PLANS = 512
_MAX_PLAN_BYTES = 4096
# A plan keeps the heads of answers for at most so many combinations of shapes.
_MAX_ANSWER_HEADS = 16
# The numbers of raw_input_contents in ModelInferRequest and of raw_output_contents in ModelInferResponse.
_RAW_INPUTS, _RAW_OUTPUTS = 7, 6
# Protobuf's libraries read no message that is larger.
_MOST_BYTES = (1 << 31) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A checked head of a ModelInferRequest whose data comes as raw contents."""

    model: str  # as the client named it
    version: str
    spec: ModelSpec
    id: str
    rows: int
    key: Hashable
    weight: int
    inputs: tuple[tuple[str, DataType, tuple[int, ...]], ...]
    outputs: tuple[str, ...]
    timeout_us: int
    has_strings: bool
    heads: dict[tuple[tuple[int, ...], ...], bytes]  # of answers, by the shapes of the outputs


class Message:
    """An encoded ModelInferRequest, in its two parts."""

    __slots__ = ("data", "head_size", "raws")

    def __init__(self, data: bytes) -> None:
        self.data = data
        found = split_tail(data, _RAW_INPUTS)
        # In the order of another encoder the raw contents may come before other fields. Then all is head.
        self.head_size, self.raws = (len(data), []) if found is None else found


class Decoder:
    """Reads ModelInferRequests. Only the event loop's thread uses it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._plans: dict[bytes, Plan] = {}

    def known(self, message: Message) -> Plan | None:
        """Returns the plan of a message whose head came before."""
        if message.head_size > _MAX_PLAN_BYTES:
            return None
        return self._plans.get(message.data[: message.head_size])

    def keep(self, message: Message, request: Request) -> None:
        """Remembers the plan of a request that was decoded."""
        plan = request.context
        if plan is None or plan.id or message.head_size > _MAX_PLAN_BYTES or not message.raws:
            return
        if len(self._plans) >= _MAX_PLANS:
            del self._plans[next(iter(self._plans))]
        self._plans[message.data[: message.head_size]] = plan

    def repeat(self, message: Message, plan: Plan) -> Request:
        """Returns the request of a message whose head has a plan. Raises ServingError."""
        return _with_raws(plan, message.data, message.raws, self._limits)

    def decode(self, message: Message, asked: Any, spec: ModelSpec) -> Request:
        """Checks a message, of which `asked` is the parsed head, and returns it as a Request. Raises ServingError."""
        return decode(asked, spec, self._limits, message.data, message.raws)


def decoding_cost(message: Message, asked: Any) -> int:
    """Returns what `decode` costs, in bytes of JSON that cost the same."""
    cost = 0
    for item in asked.inputs:
        field = _CONTENTS.get(item.datatype)
        if field is not None:
            cost += len(getattr(item.contents, field)) * _ELEMENT_COST
    strings = any(item.datatype == "BYTES" for item in asked.inputs)
    raw = sum(map(len, asked.raw_input_contents)) + len(message.data) - message.head_size
    return cost + raw * (_RAW_COST if strings else 1) // _RAW_COST


def repeating_cost(message: Message, plan: Plan) -> int:
    """Returns what `Decoder.repeat` costs, as `decoding_cost` does."""
    raw = len(message.data) - message.head_size
    return raw * (_RAW_COST if plan.has_strings else 1) // _RAW_COST


def encoding_cost(request: Request) -> int:
    """Returns what `encode` costs, in bytes of JSON that cost the same."""
    result = request.result or {}
    cost = 0
    for name in request.outputs:
        array = result[name]
        if array.dtype == object:
            cost += array.size * _ELEMENT_COST
    return cost


def decode(
    asked: Any, spec: ModelSpec, limits: Limits, data: Bytes = b"", raws: Sequence[tuple[int, int]] = ()
) -> Request:
    """Checks a ModelInferRequest and returns it as a Request. Raises ServingError.

    `raws` says where in `data` the raw contents lie that the message itself doesn't have. The arrays of inputs that
    come as raw contents are views on these contents.
    """
    heads = []
    for item in asked.inputs:
        heads.append(Head(item.name, check_datatype(item.datatype, item.name), tuple(item.shape)))
        if item.parameters:
            refuse_shared_memory(item.parameters, f"input '{item.name}'")
    fit = check_inputs(spec, heads, limits)
    own = asked.raw_input_contents
    count = len(own) + len(raws)
    if count and count != len(heads):
        raise invalid(f"raw_input_contents: expected one entry for each of the {len(heads)} inputs, got {count}")
    for item in asked.outputs:
        if item.parameters:
            check_output_parameters(_plain(item.parameters), item.name)
    plan = Plan(
        asked.model_name,
        asked.model_version,
        spec,
        asked.id,
        fit.rows,
        fit.key,
        fit.weight,
        tuple((head.name, DATATYPES[head.datatype], head.shape) for head in heads) if count else (),
        check_outputs(spec, [item.name for item in asked.outputs], limits),
        request_timeout(_plain(asked.parameters)) if asked.parameters else 0,
        any(head.datatype == "BYTES" for head in heads),
        {},
    )
    if count and any(item.HasField("contents") for item in asked.inputs):
        name = next(item.name for item in asked.inputs if item.HasField("contents"))
        raise invalid(f"input '{name}' has both contents and raw_input_contents")
    if raws:
        return _with_raws(plan, data, raws, limits)
    arrays: dict[str, Array] = {}
    for i, head in enumerate(heads):
        datatype = DATATYPES[head.datatype]
        if own:
            raw = own[i]
            arrays[head.name] = from_raw(raw, 0, len(raw), datatype, head.shape, head.name, limits)
        else:
            arrays[head.name] = _from_contents(asked.inputs[i].contents, datatype, head)
    return _request(plan, arrays)


def _with_raws(plan: Plan, data: Bytes, raws: Sequence[tuple[int, int]], limits: Limits) -> Request:
    if len(raws) != len(plan.inputs):
        raise invalid(
            f"raw_input_contents: expected one entry for each of the {len(plan.inputs)} inputs, got {len(raws)}"
        )
    arrays: dict[str, Array] = {}
    for (name, datatype, shape), (offset, size) in zip(plan.inputs, raws, strict=True):
        arrays[name] = from_raw(data, offset, size, datatype, shape, name, limits)
    return _request(plan, arrays)


def _request(plan: Plan, arrays: dict[str, Array]) -> Request:
    request = Request(
        arrays, plan.rows, plan.key, plan.outputs, id=plan.id, timeout_us=plan.timeout_us, weight=plan.weight
    )
    request.context = plan
    return request


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


def encode(request: Request) -> list[bytes | memoryview]:
    """Returns the encoded ModelInferResponse of a finished request, in parts.

    Raises ServingError (TOO_LARGE) for more bytes than a message can have.
    """
    plan: Plan = request.context
    result = request.result or {}
    arrays = [result[name] for name in request.outputs]
    shapes = tuple([array.shape for array in arrays])
    head = plan.heads.get(shapes)
    if head is None:
        head = _answer_head(request, plan, arrays)
        if not plan.id and len(plan.heads) < _MAX_ANSWER_HEADS and len(head) <= _MAX_PLAN_BYTES:
            plan.heads[shapes] = head
    parts: list[bytes | memoryview] = []
    small = head  # what goes before the next large output
    total = 0
    for name, array in zip(request.outputs, arrays, strict=True):
        data = to_raw(array, plan.spec.outputs[name].datatype)
        small += _RAW_TAG + _varint(len(data))
        total += len(data)
        if isinstance(data, bytes):
            small += data
        else:
            parts += (small, data)
            small = b""
    if total + len(head) > _MOST_BYTES:
        raise too_large(f"the answer of {total} bytes", _MOST_BYTES)
    if small:
        parts.append(small)
    return parts


_RAW_TAG = bytes([_RAW_OUTPUTS << 3 | 2])


def _answer_head(request: Request, plan: Plan, arrays: Sequence[Array]) -> bytes:
    spec = plan.spec
    response = service_pb2.ModelInferResponse(model_name=spec.name, model_version=spec.version, id=plan.id)
    for name, array in zip(request.outputs, arrays, strict=True):
        response.outputs.add(name=name, datatype=spec.outputs[name].datatype.name, shape=array.shape)
    return bytes(response.SerializeToString())


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
