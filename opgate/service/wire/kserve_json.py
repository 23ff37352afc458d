"""Reads and writes the KServe v2 JSON body with Triton's binary extension.

`Decoder` turns an HTTP body into a Request. `encode` turns the result of a Request into an HTTP body.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from opgate.service.core.checks import Fit, Limits, TensorInfo, check_inputs, check_outputs
from opgate.service.core.datatypes import DATATYPES, DataType
from opgate.service.core.errors import Kind, ServingError, invalid, json_kind
from opgate.service.core.request import Array, Options, Request
from opgate.service.core.spec import ModelSpec
from opgate.service.core.tensors import Bytes, Parts, elements, from_raw, text_length, to_raw, view
from opgate.service.shared_memory import Regions
from opgate.service.wire import content_types, files, kserve_rules
from opgate.service.wire.content_types import Content
from opgate.service.wire.json_tensors import JsonValue, parse_object, read, split, write
from opgate.service.wire.kserve_rules import (
    SHARED_MEMORY,
    Output,
    check_datatype,
    flag,
    request_options,
    shared_place,
    wanted_output,
)
from opgate.service.wire.request_plan import MAX_PLAN_BYTES, SHAPE, Plan, Plans, Shapes
from opgate.service.wire.responses import refuse_decoupled
from opgate.service.wire.shared_tensors import GPU_COST, Place, SharedInput, writing_cost

# Checking or copying this many bytes of binary data costs as much as reading a byte of JSON.
_BINARY_COST = 16
# Writing an element as text, or a string, costs as much as reading this many bytes of JSON.
ELEMENT_COST = 16
# Bytes of JSON that are read in no time.
_SHORT = 1 << 16
# No engine knows tensors of so many dims.
_MOST_DIMS = 64


class BinaryInput(NamedTuple):
    """An input whose data follows the JSON. `offset` and `size` are in bytes, `offset` from the end of the JSON."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    content: Content | None
    offset: int
    size: int


class JsonInput(NamedTuple):
    """An input whose data is the tensor of this number in the JSON. `sent` is the shape that the client gave it."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    content: Content | None
    number: int
    sent: tuple[int, ...]


class JsonPlan(Plan[tuple[bytes, ...]]):
    """The JSON of a body without the data of its tensors. Of answers it keeps the JSON around the data."""

    __slots__ = (
        "as_computed", "binary", "from_json", "from_tail", "has_files", "keeps_envelopes", "only_binary", "shared",
        "size", "tail",
    )  # fmt: skip

    def __init__(
        self,
        spec: ModelSpec,
        id: str,
        fit: Fit,
        answered: tuple[Output, ...],
        options: Options,
        content: str,
        binary: tuple[bool, ...],
        from_json: Sequence[JsonInput] = (),
        from_tail: Sequence[BinaryInput] = (),
        shared: Sequence[SharedInput] = (),
    ) -> None:
        """`binary` says for each output whether its data follows the JSON of the answer."""
        self.binary = binary
        super().__init__(spec, id, fit, answered, options, shared, content)
        self.from_json = from_json
        self.from_tail = from_tail
        self.shared = shared
        self.has_files = any(part.content is not None and part.content.files for part in from_json)
        self.size = sum(part.size for part in from_tail)

    def derive(self) -> None:
        """Sets what depends on the outputs."""
        super().derive()
        answered, binary = self.answered, self.binary
        self.tail = any(binary)  # whether anything follows the JSON of an answer
        # Whether the answer has what the model computed: then the JSON around it depends on the shapes alone, unless
        # it says how many bytes the strings behind it take.
        self.as_computed = all(output.classification is None and output.content is None for output in answered)
        in_json = [not (binary or output.place is not None) for output, binary in zip(answered, binary, strict=True)]
        self.keeps_envelopes = self.as_computed and all(
            inside or output.datatype.itemsize for output, inside in zip(answered, in_json, strict=True)
        )
        self.only_binary = self.keeps_envelopes and self.tail and all(binary)

    def keep_only(self, names: Container[str]) -> None:
        """Leaves out the outputs that have other names."""
        pairs = zip(self.answered, self.binary, strict=True)
        self.binary = tuple([binary for output, binary in pairs if output.name in names])
        super().keep_only(names)


class Decoder:
    """Reads infer requests for one model version."""

    def __init__(self, spec: ModelSpec, limits: Limits, regions: Regions | None = None) -> None:
        """`regions` are those of shared memory, None if tensors may not lie there."""
        self._spec = spec
        self._limits = limits
        self._regions = regions
        self._plans: Plans[JsonPlan] = Plans()
        self._has_strings = any(tensor.datatype.name == "BYTES" for tensor in spec.inputs.values())

    def cost(self, size: int, header_length: int | None) -> int:
        """Returns what decoding a body of `size` bytes costs, in bytes of JSON that cost the same."""
        json = size if header_length is None else min(size, header_length)
        if self._has_strings:  # each is an object
            return size * ELEMENT_COST
        return json + (size - json) // _BINARY_COST

    def decode(self, body: Bytes, header_length: int | None) -> Request:
        """Parses and checks a body. `header_length` is Inference-Header-Content-Length, None if the client sent none.

        The arrays of binary inputs are views on the body. `request.context` is the JsonPlan that `encode` needs. Inputs
        in shared memory are missing until `request.shared.read`. Raises ServingError.
        """
        refuse_decoupled(self._spec, "infer")
        total, stated = len(body), header_length
        if header_length is None:
            header_length = total
        if not 0 <= header_length <= total:
            raise invalid(f"Inference-Header-Content-Length is {header_length}, but the body has {total} bytes")
        if header_length == 0:
            return self._decode_raw(body, total)
        try:
            plan, values = self._planned(body, header_length)
        except ServingError as error:
            if stated is None and b'"binary_data_size"' in bytes(view(body)[:MAX_PLAN_BYTES]):
                text = f"{error.message}. A body with binary data needs the length of its JSON in the header"
                raise ServingError(error.kind, f"{text} Inference-Header-Content-Length") from None
            raise
        if plan.size != total - header_length:
            raise invalid(
                f"the inputs' binary_data_size add up to {plan.size} bytes, but {total - header_length} follow the JSON"
            )
        arrays: dict[str, Array] = {}
        for name, datatype, shape, content, number, sent in plan.from_json:
            if content is None:
                arrays[name] = read(values[number], datatype, shape, name, self._limits)
            elif content.files:
                texts = read(values[number], DATATYPES["BYTES"], sent, name, self._limits)
                arrays[name] = files.read(self._spec, self._spec.inputs[name], texts.reshape(-1).tolist())
            else:
                array = read(values[number], datatype, sent, name, self._limits, content.nulls)
                arrays[name] = content.read(array.reshape(shape), name)
        for name, datatype, shape, content, offset, size in plan.from_tail:
            array = from_raw(body, header_length + offset, size, datatype, shape, name, self._limits)
            arrays[name] = array if content is None else content.read(array, name)
        if plan.has_files:
            plan = self._with_sizes(plan, arrays)
        return plan.request(arrays, self._regions, self._limits)

    def _with_sizes(self, plan: JsonPlan, arrays: Mapping[str, Array]) -> JsonPlan:
        """Returns a plan for files as large as these. Raises ServingError as `check_inputs` does."""
        infos = [TensorInfo(name, self._spec.inputs[name].datatype.name, array.shape) for name, array in arrays.items()]
        infos += [TensorInfo(item.name, item.datatype.name, item.shape) for item in plan.shared]
        sized = copy.copy(plan)
        sized.fit = check_inputs(self._spec, infos, self._limits)
        return sized

    def _planned(self, body: Bytes, length: int) -> tuple[JsonPlan, list[JsonValue]]:
        """Returns the plan of the JSON of a body, and the tensors in it."""
        if length < len(body) and length <= MAX_PLAN_BYTES:  # if all data follows, the JSON comes again as it is
            plan = self._plans.get(bytes(view(body)[:length]))
            if plan is not None and not plan.from_json:
                return plan, []
        rest, values = split(body, length, False, self._limits)
        plan = self._plans.get(rest)
        if plan is None:
            plan = self._plan(parse_object(rest), len(values))
            self._plans.keep(rest, plan)
        return plan, values

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
                if not unit:
                    raise invalid(
                        f"input '{tensor.name}': a raw binary request can't tell a size of {list(tensor.dims)}"
                    )
                if total % unit:
                    raise invalid(f"input '{tensor.name}': expected a multiple of {unit} bytes, got {total}")
                shape[variable[0]] = total // unit
            data = from_raw(body, 0, total, tensor.datatype, tuple(shape), tensor.name, self._limits)
        full = (1, *shape) if spec.batched else tuple(shape)
        fit = check_inputs(spec, [TensorInfo(tensor.name, tensor.datatype.name, full)], self._limits)
        outputs = tuple(wanted_output(spec, name, {}, None, "", self._limits) for name in spec.outputs)
        plan = JsonPlan(spec, "", fit, outputs, Options(), "", (True,) * len(outputs))
        return plan.request({tensor.name: data.reshape(full)}, self._regions, self._limits)

    def _plan(self, message: Mapping[str, Any], values: int) -> JsonPlan:
        """Checks the JSON of a body with so many tensors, of which it has the indices."""
        parameters = _parameters(message, "the request")
        items = _items(message, "inputs", self._limits)
        of_request = content_types.of_request(parameters, len(items))
        infos: list[TensorInfo] = []
        pending: list[tuple[dict[str, Any], dict[str, Any], TensorInfo, tuple[int, ...], Content | None]] = []
        for item in items:
            sent = _info(item)
            of_item = _parameters(item, f"input '{sent.name}'") if "parameters" in item else {}
            info, content = content_types.of_input(of_item, of_request, self._spec, sent, "data" in item)
            infos.append(info)
            pending.append((item, of_item, info, sent.shape, content))
        fit = check_inputs(self._spec, infos, self._limits)
        from_json: list[JsonInput] = []
        from_tail: list[BinaryInput] = []
        shared: list[SharedInput] = []
        offset = 0
        for item, of_item, info, sent_shape, content in pending:
            what = (info.name, DATATYPES[info.datatype], info.shape, content)
            size, place = _source(item, of_item, info.name)
            if place is not None:
                shared.append(SharedInput(*what, place))
            elif size is not None:
                from_tail.append(BinaryInput(*what, offset, size))
                offset += size
            else:
                from_json.append(JsonInput(*what, _index(item["data"], values, info.name), sent_shape))
        outputs, binary = self._outputs(message, parameters, of_request)
        id = message.get("id", "")
        if not isinstance(id, str):
            raise invalid(f"id: expected a string, got {json_kind(id)}")
        options = request_options(parameters)
        return JsonPlan(self._spec, id, fit, outputs, options, of_request, binary, from_json, from_tail, shared)

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


def _info(item: Mapping[str, Any]) -> TensorInfo:
    name = item.get("name")
    if not isinstance(name, str):
        raise invalid(f"an input's name: expected a string, got {_kind(name)}")
    datatype = check_datatype(item.get("datatype"), name)
    shape = item.get("shape")
    if isinstance(shape, list) and len(shape) > _MOST_DIMS:
        raise invalid(f"input '{name}': shape: expected at most {_MOST_DIMS} sizes, got {len(shape)}")
    if not isinstance(shape, list) or not all(type(size) is int and -1 << 62 < size < 1 << 62 for size in shape):
        raise invalid(f"input '{name}': shape: expected a list of integers, got {str(shape)[:80]}")
    return TensorInfo(name, datatype, tuple(shape))


def _index(index: Any, values: int, name: str) -> int:
    if type(index) is not int or not 0 <= index < values:  # the key was written with escapes
        raise invalid(f"input '{name}': the key \"data\" must be written without escapes")
    return index


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
    result = request.result or {}
    plan: JsonPlan = request.context
    if len(result) != len(plan.outputs):
        plan = plan.of(result)
    arrays = list(map(result.__getitem__, plan.outputs))
    shapes = tuple(map(SHAPE, arrays))
    parameters = request.parameters
    # The fastest way.
    if plan.only_binary and not parameters and (envelope := plan.answer_envelope(shapes)) is not None:
        return len(envelope[0]), [envelope[0], *map(elements, arrays)]
    if not plan.as_computed:
        arrays = [output.answered(array) for output, array in zip(plan.answered, arrays, strict=True)]
        shapes = tuple(map(SHAPE, arrays))
    # The bytes of each output that is not in the JSON.
    data = [
        to_raw(array, output.datatype) if binary or output.place is not None else None
        for output, array, binary in zip(plan.answered, arrays, plan.binary, strict=True)
    ]
    envelope = None if parameters else plan.answer_envelope(shapes)
    if envelope is None:
        envelope = _answer_envelope(plan, shapes, data, parameters)
        if plan.keeps_envelopes and not parameters:
            plan.keep_answer_envelope(shapes, envelope, sum(map(len, envelope)))
    pieces = iter(envelope)
    parts: Parts = [next(pieces)]
    tail: Parts = []
    for output, array, raw in zip(plan.answered, arrays, data, strict=True):
        if raw is None:
            nulls = output.content is not None and output.content.nulls
            parts += write(array, output.datatype, False, output.name, nulls)
            parts.append(next(pieces))
        elif output.place is not None:
            request.shared.write(output.name, raw)
        elif len(raw):
            tail.append(raw)
    if not plan.tail:
        return None, parts
    if len(parts) > 1:
        parts = [b"".join(parts)]
    return len(parts[0]), parts + tail


def _answer_envelope(
    plan: JsonPlan,
    shapes: Shapes,
    data: Sequence[bytes | memoryview | None],
    parameters: Mapping[str, bool | int | float | str],
) -> tuple[bytes, ...]:
    """Returns the JSON of an answer, cut where the data of an output belongs."""
    spec = plan.spec
    top: dict[str, Any] = {"model_name": spec.name, "model_version": spec.version}
    if plan.id:
        top["id"] = plan.id
    if parameters:
        top["parameters"] = dict(parameters)
    if content_type := content_types.of_answer(plan.content, len(plan.answered)):
        top.setdefault("parameters", {})[content_types.PARAMETER] = content_type
    pieces = [orjson.dumps(top)[:-1] + b',"outputs":[']
    for i, (output, shape, raw) in enumerate(zip(plan.answered, shapes, data, strict=True)):
        item: dict[str, Any] = {"name": output.name, "datatype": output.datatype.name, "shape": shape}
        if output.content is not None and output.content.type:
            item["parameters"] = {content_types.PARAMETER: output.content.type}
        if raw is not None and output.place is None:
            item.setdefault("parameters", {})["binary_data_size"] = len(raw)
        pieces[-1] += b"," * (i > 0) + orjson.dumps(item)
        if raw is None:
            pieces[-1] = pieces[-1][:-1] + b',"data":'
            pieces.append(b"}")
    pieces[-1] += b"]}"
    return tuple(pieces)


def encoding_cost(request: Request) -> int:
    """Returns what `encode` costs, in bytes of JSON that cost as much to read."""
    if request.context.only_binary:
        return 0
    if request.shared is not None and request.shared.on_gpu:
        return GPU_COST
    result = request.result or {}
    plan: JsonPlan = request.context.of(result)
    cost = 0
    for output, binary in zip(plan.answered, plan.binary, strict=True):
        array = result[output.name]
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
    return sum(map(len, parts))


def timeout_of(head: bytes | memoryview) -> int:
    """Returns the timeout of a request in microseconds, from its JSON. 0 if it has none, or if the JSON is long or
    broken."""
    if len(head) > _SHORT:
        return 0
    try:
        found = orjson.loads(head)
    except orjson.JSONDecodeError:
        return 0
    parameters = found.get("parameters") if isinstance(found, dict) else None
    return kserve_rules.timeout_of(parameters) if isinstance(parameters, dict) else 0
