"""Reads and writes the KServe v2 JSON body with Triton's binary extension.

`Decoder` turns an HTTP body into a Request. `encode` turns the result of a Request into an HTTP body.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from opgate.service.core.checks import Head, Limits, check_inputs, check_outputs
from opgate.service.core.datatypes import DATATYPES, DataType
from opgate.service.core.errors import Kind, ServingError, invalid, json_kind
from opgate.service.core.request import Array, Options, Request
from opgate.service.core.spec import ModelSpec
from opgate.service.core.tensors import Bytes, Parts, elements, from_raw, text_length, to_raw, view
from opgate.service.shared_memory import Regions
from opgate.service.wire import content_types
from opgate.service.wire.content_types import Content
from opgate.service.wire.json_tensors import JsonValue, read, split, write
from opgate.service.wire.kserve_rules import (
    SHARED_MEMORY,
    Output,
    check_datatype,
    find_sharing,
    flag,
    request_options,
    shared_place,
    wanted_output,
)
from opgate.service.wire.responses import refuse_decoupled
from opgate.service.wire.shared_tensors import Place, SharedInput, SharedTensors, Sharing, writing_cost

# The head of a body is its JSON. Clients that send all inputs as binary data and no id repeat it byte for byte, so the
# decoder keeps the plans of such heads: at most MAX_PLANS, of heads of at most MAX_PLAN_BYTES.
MAX_PLANS = 512
MAX_PLAN_BYTES = 4096
# Checking or copying this many bytes of binary data costs as much as reading a byte of JSON.
_BINARY_COST = 16
# Writing an element as text, or a string, costs as much as reading this many bytes of JSON.
ELEMENT_COST = 16
# An Answer keeps the heads for at most so many combinations of shapes.
_MAX_ANSWER_HEADS = 16
# No engine knows tensors of so many dims.
_MOST_DIMS = 64


@dataclass(frozen=True, slots=True)
class BinaryInput:
    """An input whose data follows the JSON. `offset` and `size` are in bytes, `offset` from the end of the JSON."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    content: Content | None
    offset: int
    size: int


class Answer:
    """How to write the answers to requests with one head: the model, its outputs as the client wants them, and for each
    whether its data follows the JSON of the answer."""

    __slots__ = ("binary", "content", "fixed", "heads", "model", "only_binary", "outputs", "shares")

    def __init__(
        self, model: ModelSpec, outputs: tuple[Output, ...], binary: tuple[bool, ...], content: str = ""
    ) -> None:
        self.model = model
        self.outputs = outputs
        self.binary = binary
        self.content = content  # the content type of the request, "" if it has none
        self.shares = any(output.place is not None for output in outputs)
        # If no output is in the JSON and none has strings, the JSON depends only on the shapes, and is kept for them.
        outside = [flag or output.place is not None for output, flag in zip(outputs, binary, strict=True)]
        self.fixed = bool(outputs) and all(outside) and all(output.datatype.itemsize for output in outputs)
        self.only_binary = self.fixed and not self.shares
        self.heads: dict[tuple[tuple[int, ...], ...], bytes] = {}


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked head: everything about a request except its data."""

    id: str
    rows: int
    key: Hashable
    weight: int
    outputs: tuple[str, ...]
    answer: Answer
    inputs: tuple[BinaryInput, ...]
    size: int  # bytes of input data after the JSON
    options: Options
    sharing: Sharing | None  # None if no tensor lies in shared memory


class Decoder:
    """Reads infer requests for one model version."""

    def __init__(self, spec: ModelSpec, limits: Limits, regions: Regions | None = None) -> None:
        """`regions` are those of shared memory, None if tensors may not lie there."""
        self._spec = spec
        self._limits = limits
        self._regions = regions
        self._plans: dict[bytes, Plan] = {}
        self._lock = threading.Lock()
        self._has_strings = any(tensor.datatype.name == "BYTES" for tensor in spec.inputs.values())

    def cost(self, size: int, header_length: int | None) -> int:
        """Returns what decoding a body of `size` bytes costs, in bytes of JSON that cost the same."""
        json = size if header_length is None else min(size, header_length)
        if self._has_strings:  # each is an object
            return size * ELEMENT_COST
        return json + (size - json) // _BINARY_COST

    def decode(self, body: Bytes, header_length: int | None) -> Request:
        """Parses and checks a body. `header_length` is Inference-Header-Content-Length, None if the client sent none.

        The arrays of binary inputs are views on the body. `request.context` is the Answer that `encode` needs. Inputs
        in shared memory are missing until `request.shared.read`. Raises ServingError.
        """
        refuse_decoupled(self._spec, "infer")
        total = len(body)
        if header_length is None:
            header_length = total
        if not 0 <= header_length <= total:
            raise invalid(f"Inference-Header-Content-Length is {header_length}, but the body has {total} bytes")
        if header_length == 0:
            return self._decode_raw(body, total)
        head = bytes(view(body)[:header_length]) if header_length <= MAX_PLAN_BYTES else None
        plan = self._plans.get(head) if head is not None else None
        arrays: dict[str, Array] = {}
        if plan is None:
            plan, arrays = self._plan(body, header_length)
            if (
                not arrays
                and not plan.id
                and plan.options.sequence is None
                and head is not None
                and (total > header_length or plan.sharing is not None)
            ):
                with self._lock:  # long bodies are decoded on threads
                    if len(self._plans) >= MAX_PLANS:
                        del self._plans[next(iter(self._plans))]
                    self._plans[head] = plan
        if plan.size != total - header_length:
            raise invalid(
                f"the inputs' binary_data_size add up to {plan.size} bytes, but {total - header_length} follow the JSON"
            )
        for part in plan.inputs:
            array = from_raw(
                body, header_length + part.offset, part.size, part.datatype, part.shape, part.name, self._limits
            )
            arrays[part.name] = array if part.content is None else part.content.read(array, part.name)
        return self._request(plan, arrays)

    def _request(self, plan: Plan, arrays: dict[str, Array]) -> Request:
        request = Request(
            arrays,
            plan.rows,
            plan.key,
            plan.outputs,
            id=plan.id,
            options=plan.options,
            weight=plan.weight,
        )
        request.context = plan.answer
        if plan.sharing is not None:
            request.shared = SharedTensors(plan.sharing, self._regions, self._limits)
        return request

    def _decode_raw(self, body: Bytes, total: int) -> Request:
        """Reads Triton's raw request. The body is the data of the model's only input, one row of it if the model
        batches. A variable size follows from the number of bytes, which may be none."""
        spec = self._spec
        if len(spec.inputs) != 1:
            given = "the body is empty" if not total else "the body is raw binary data"
            raise invalid(f"{given}, which needs a model with one input, and '{spec.name}' has {len(spec.inputs)}")
        tensor = next(iter(spec.inputs.values()))
        shape = list(tensor.dims)
        if tensor.datatype.name == "BYTES":
            if math.prod(shape) != 1 and shape != [-1]:
                raise invalid(f"input '{tensor.name}': a raw binary request can't tell the number of BYTES elements")
            data: Array = from_raw(
                len(body).to_bytes(4, "little") + bytes(body),
                0,
                total + 4,
                tensor.datatype,
                (1,),
                tensor.name,
                self._limits,
            )
            shape = [1] * len(shape)
        else:
            variable = [i for i, size in enumerate(shape) if size == -1]
            unit = math.prod(size for size in shape if size != -1) * tensor.datatype.itemsize
            if len(variable) > 1:
                raise invalid(f"input '{tensor.name}': a raw binary request can't tell several variable sizes")
            if variable:
                if total % unit:
                    raise invalid(f"input '{tensor.name}': expected a multiple of {unit} bytes, got {total}")
                shape[variable[0]] = total // unit
            data = from_raw(body, 0, total, tensor.datatype, tuple(shape), tensor.name, self._limits)
        full = (1, *shape) if spec.batched else tuple(shape)
        fit = check_inputs(spec, [Head(tensor.name, tensor.datatype.name, full)], self._limits)
        outputs = tuple(wanted_output(spec, name, {}, None, "", self._limits) for name in spec.outputs)
        answer = Answer(spec, outputs, (True,) * len(outputs))
        plan = Plan("", fit.rows, fit.key, fit.weight, tuple(spec.outputs), answer, (), 0, Options(), None)
        return self._request(plan, {tensor.name: data.reshape(full)})

    def _plan(self, body: Bytes, length: int) -> tuple[Plan, dict[str, Array]]:
        message, values = split(body, length, False, self._limits)
        arrays: dict[str, Array] = {}
        parameters = _parameters(message, "the request")
        items = _items(message, "inputs", self._limits)
        of_request = content_types.of_request(parameters, len(items))
        heads: list[Head] = []
        pending: list[tuple[dict[str, Any], dict[str, Any], Head, tuple[int, ...], Content | None]] = []
        for item in items:
            sent = _head(item)
            of_item = _parameters(item, f"input '{sent.name}'") if "parameters" in item else {}
            head, content = content_types.of_input(of_item, of_request, self._spec, sent)
            heads.append(head)
            pending.append((item, of_item, head, sent.shape, content))
        fit = check_inputs(self._spec, heads, self._limits)
        inputs: list[BinaryInput] = []
        shared: list[SharedInput] = []
        offset = 0
        for item, of_item, head, sent_shape, content in pending:
            name, shape, datatype = head.name, head.shape, DATATYPES[head.datatype]
            size, place = _source(item, of_item, name)
            if place is not None:
                shared.append(SharedInput(name, datatype, shape, content, place))
            elif size is not None:
                inputs.append(BinaryInput(name, datatype, shape, content, offset, size))
                offset += size
            else:
                value = _value(values, item["data"], name)
                if content is None:
                    arrays[name] = read(value, datatype, shape, name, self._limits)
                else:
                    array = read(value, datatype, sent_shape, name, self._limits, content.nulls)
                    arrays[name] = content.read(array.reshape(shape), name)
        outputs, binary = self._outputs(message, parameters, of_request)
        id = message.get("id", "")
        if not isinstance(id, str):
            raise invalid(f"id: expected a string, got {json_kind(id)}")
        plan = Plan(
            id,
            fit.rows,
            fit.key,
            fit.weight,
            tuple(output.name for output in outputs),
            Answer(self._spec, outputs, binary, of_request),
            tuple(inputs),
            offset,
            request_options(parameters),
            find_sharing(shared, outputs),
        )
        return plan, arrays

    def _outputs(
        self, message: Mapping[str, Any], parameters: Mapping[str, Any], of_request: str
    ) -> tuple[tuple[Output, ...], tuple[bool, ...]]:
        default = flag(parameters, "binary_data_output", False, "the request")
        wanted = _items(message, "outputs", self._limits) if message.get("outputs") is not None else []
        asked: dict[str, Mapping[str, Any]] = {}
        names: list[str] = []
        for item in wanted:
            name = item.get("name")
            if not isinstance(name, str):
                raise invalid("an entry of outputs lacks its name")
            names.append(name)
            asked[name] = _parameters(item, f"output '{name}'")
        outputs: list[Output] = []
        binary: list[bool] = []
        for name in check_outputs(self._spec, names, self._limits):
            where = f"output '{name}'"
            of_output = asked.get(name, {})
            place = shared_place(of_output, where)
            in_tail = flag(of_output, "binary_data", default and place is None, where)
            if in_tail and place is not None:
                raise invalid(f"{where}: expected either binary_data or shared_memory_region, got both")
            outputs.append(wanted_output(self._spec, name, of_output, place, of_request, self._limits))
            binary.append(in_tail)
        return tuple(outputs), tuple(binary)


def _items(message: Mapping[str, Any], key: str, limits: Limits) -> list[dict[str, Any]]:
    items = message.get(key)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise invalid(f"'{key}': expected a list of objects, got {_kind(items)}")
    if len(items) > limits.max_tensors:
        raise ServingError(Kind.TOO_LARGE, f"'{key}' has {len(items)} entries, the limit is {limits.max_tensors}")
    return items


def _kind(value: Any) -> str:
    return "nothing" if value is None else json_kind(value)


def _head(item: Mapping[str, Any]) -> Head:
    name = item.get("name")
    if not isinstance(name, str):
        raise invalid(f"an input's name: expected a string, got {_kind(name)}")
    datatype = check_datatype(item.get("datatype"), name)
    shape = item.get("shape")
    if isinstance(shape, list) and len(shape) > _MOST_DIMS:
        raise invalid(f"input '{name}': shape: expected at most {_MOST_DIMS} sizes, got {len(shape)}")
    if not isinstance(shape, list) or not all(type(size) is int and -1 << 62 < size < 1 << 62 for size in shape):
        raise invalid(f"input '{name}': shape: expected a list of integers, got {str(shape)[:80]}")
    return Head(name, datatype, tuple(shape))


def _value(values: Sequence[JsonValue], index: Any, name: str) -> JsonValue:
    if type(index) is not int or not 0 <= index < len(values):  # the key was written with escapes
        raise invalid(f"input '{name}': the key \"data\" must be written without escapes")
    return values[index]


def _parameters(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    parameters = item.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise invalid(f"{where}: parameters: expected an object, got {_kind(parameters)}")
    return parameters


def _source(item: Mapping[str, Any], parameters: Mapping[str, Any], name: str) -> tuple[int | None, Place | None]:
    """Returns the size of an input whose data follows the JSON, or where it lies in shared memory, or neither if it has
    its data in the JSON. Raises ServingError (INVALID) unless it is one of the three."""
    where = f"input '{name}'"
    place = shared_place(parameters, where)
    size = parameters.get("binary_data_size")
    if size is not None and (type(size) is not int or not 0 <= size < 1 << 62):
        raise invalid(f"{where}: binary_data_size: expected a size in bytes, got {str(size)[:40]}")
    given = [("data", "data" in item), ("binary_data_size", size is not None), (SHARED_MEMORY[0], place is not None)]
    keys = [key for key, is_given in given if is_given]
    if not keys:
        raise invalid(f"{where} has neither data nor binary_data_size nor shared_memory_region")
    if len(keys) > 1:
        raise invalid(f"{where} has both {' and '.join(keys)}")
    return size, place


def encode(request: Request) -> tuple[int | None, Parts]:
    """Returns the body of a finished request: the length of its JSON if an output is binary, else None, and the parts
    of the body. Writes the outputs that the client wants in shared memory.

    Raises ServingError: INVALID for an output that its place in shared memory can't take, or for one in JSON that is
    not text, TOO_LARGE for too many classes.
    """
    answer: Answer = request.context
    result = request.result or {}
    if not answer.fixed or request.id:
        return _encode(request, answer, result)
    arrays = [result[name] for name in request.outputs]
    shapes = tuple([array.shape for array in arrays])
    head = answer.heads.get(shapes)
    if head is None:
        length, parts = _encode(request, answer, result)
        if len(answer.heads) < _MAX_ANSWER_HEADS and len(parts[0]) <= MAX_PLAN_BYTES:
            answer.heads[shapes] = bytes(parts[0])
        return length, parts
    if answer.shares:
        for output, array in zip(answer.outputs, arrays, strict=True):
            if output.place is not None:
                request.shared.write(output.name, elements(array))
        arrays = [array for array, binary in zip(arrays, answer.binary, strict=True) if binary]
        if not arrays:
            return None, [head]
    return len(head), [head, *[elements(array) for array in arrays if array.size]]


def _encode(request: Request, answer: Answer, result: Mapping[str, Array]) -> tuple[int | None, Parts]:
    spec = answer.model
    top: dict[str, Any] = {"model_name": spec.name, "model_version": spec.version}
    if request.id:
        top["id"] = request.id
    if content_type := content_types.of_answer(answer.content, len(answer.outputs)):
        top["parameters"] = {content_types.PARAMETER: content_type}
    head: Parts = [orjson.dumps(top)[:-1] + b',"outputs":[']
    tail: Parts = []
    for i, (output, binary) in enumerate(zip(answer.outputs, answer.binary, strict=True)):
        name, datatype, classification, place, content = output
        array = result[name]
        if classification is not None or content is not None:
            array = output.answered(array)
        item: dict[str, Any] = {"name": name, "datatype": datatype.name, "shape": array.shape}
        if content is not None and content.type:
            item["parameters"] = {content_types.PARAMETER: content.type}
        comma = b"," if i else b""
        if place is not None:
            request.shared.write(name, to_raw(array, datatype))
            head.append(comma + orjson.dumps(item))
        elif binary:
            data = to_raw(array, datatype)
            item.setdefault("parameters", {})["binary_data_size"] = len(data)
            if len(data):
                tail.append(data)
            head.append(comma + orjson.dumps(item))
        else:
            nulls = content is not None and content.nulls
            head += (comma + orjson.dumps(item)[:-1] + b',"data":', *write(array, datatype, False, name, nulls), b"}")
    head.append(b"]}")
    if not any(answer.binary):
        return None, [b"".join(head)] if answer.fixed else head
    joined = b"".join(head)
    return len(joined), [joined, *tail]


def encoding_cost(request: Request) -> int:
    """Returns what `encode` costs, in bytes of JSON that cost as much to read."""
    answer: Answer = request.context
    if answer.only_binary:
        return 0
    cost = 0
    for output, binary in zip(answer.outputs, answer.binary, strict=True):
        array = (request.result or {})[output.name]
        if output.content is not None:
            cost += output.content.cost(array)
        if output.classification is not None:
            cost += output.classification.cost(array)
            continue
        if output.place is not None:
            cost += writing_cost(array.nbytes)
        if array.dtype == object or not (binary or output.place is not None):
            cost += array.size * ELEMENT_COST
        cost += text_length(array)
    return cost


def encode_counted(request: Request) -> tuple[tuple[int | None, Parts], int]:
    """Returns what `encode` returns, and the bytes of the parts. Raises ServingError as `encode` does."""
    length, parts = encode(request)
    return (length, parts), size_of(parts)


def size_of(parts: Sequence[bytes | memoryview]) -> int:
    """Returns the number of bytes in a body's parts. A memoryview among the parts must be a view of bytes."""
    return sum(len(part) for part in parts)
