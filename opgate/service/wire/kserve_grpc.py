"""Reads a ModelInferRequest into a Request, and writes the result of a Request as a ModelInferResponse.

Protobuf's own library parses messages without the data of their tensors. Numbers don't become objects.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from opgate.service.core.checks import Fit, Limits, TensorInfo, check_inputs, check_outputs
from opgate.service.core.datatypes import DATATYPES, DataType
from opgate.service.core.errors import Kind, ServingError, invalid, too_large
from opgate.service.core.request import Array, Options, Request, Response
from opgate.service.core.spec import ModelSpec
from opgate.service.core.tensors import Parts, element, empty, from_raw, text_length, to_raw, view
from opgate.service.core.triton_messages import service_pb2
from opgate.service.native.protobuf import Broken, TooLarge, numbers, split, strings
from opgate.service.shared_memory import Regions
from opgate.service.wire import content_types
from opgate.service.wire.content_types import Content
from opgate.service.wire.kserve_rules import (
    Output,
    check_datatype,
    request_options,
    shared_place,
    wanted_output,
)
from opgate.service.wire.request_plan import SHAPE, Plan, Plans
from opgate.service.wire.responses import count_responses, responses
from opgate.service.wire.shared_tensors import GPU_COST, Place, SharedInput, writing_cost

#: Parameters of a response.
Parameters = Mapping[str, bool | int | float | str]


class _Contents(NamedTuple):
    """A field of InferTensorContents: its name and number, its wire type, and the type of its elements."""

    name: str
    number: int
    wire_type: int = 0
    dtype: str = ""


_INTEGERS, _UNSIGNED = _Contents("int_contents", 2, 0, "<i4"), _Contents("uint_contents", 4, 0, "<u4")
_CONTENTS = {
    "BOOL": _Contents("bool_contents", 1, 0, "|b1"),
    "INT8": _INTEGERS,
    "INT16": _INTEGERS,
    "INT32": _INTEGERS,
    "INT64": _Contents("int64_contents", 3, 0, "<i8"),
    "UINT8": _UNSIGNED,
    "UINT16": _UNSIGNED,
    "UINT32": _UNSIGNED,
    "UINT64": _Contents("uint64_contents", 5, 0, "<u8"),
    "FP32": _Contents("fp32_contents", 6, 5, "<f4"),
    "FP64": _Contents("fp64_contents", 7, 1, "<f8"),
    "BYTES": _Contents("bytes_contents", 8),
}


# What writing a string costs, in bytes of JSON that cost the same, and how many bytes of a message's data cost as much
# as one, if they are no strings.
_ELEMENT_COST = 64
_RAW_COST = 16
# What writing one of several responses costs.
_RESPONSE_COST = 256
# What a byte of strings in `contents` costs: each string is decoded alone.
_CONTENTS_STRING_COST = 16
# What a byte of an envelope costs that has to be checked.
_ENVELOPE_COST = 4
# What a byte of strings costs that are read by a content type.
_CONTENT_COST = 8
# What a message may have beside the data of its tensors: bytes, entries of each list, dims of a tensor.
_MAX_ENVELOPE_BYTES = 1 << 20
_MAX_PARTS = 4096
_MOST_DIMS = 64
# The number of raw_output_contents in ModelInferResponse.
_RAW_OUTPUTS = 6
# Protobuf's libraries read no message that is larger.
_MOST_BYTES = (1 << 31) - 1


class _Input(NamedTuple):
    """An input with the shape that the model wants."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    content: Content | None  # None if the request names no content type for it


class GrpcPlan(Plan[bytes]):
    """The envelope of a message: all of it but the data of its tensors. Of answers it keeps the envelope."""

    __slots__ = ("has_content", "has_strings", "inputs", "is_plain", "model", "version")

    def __init__(
        self,
        asked: Any,
        spec: ModelSpec,
        fit: Fit,
        answered: tuple[Output, ...],
        options: Options,
        content: str,
        inputs: Sequence[_Input],
        shared: Mapping[int, Place],
    ) -> None:
        """`asked` is the parsed envelope, and `shared` says where inputs lie in shared memory, by their indices."""
        super().__init__(
            spec,
            asked.id,
            fit,
            answered,
            options,
            [SharedInput(*inputs[i], place) for i, place in shared.items()],
            content,
        )
        self.model: str = asked.model_name  # as the client named it
        self.version: str = asked.model_version
        # Those whose data is in the message, by their indices.
        self.inputs = {i: tensor for i, tensor in enumerate(inputs) if i not in shared}
        self.has_strings = any(tensor.datatype.name == "BYTES" for tensor in inputs)
        self.has_content = any(tensor.content is not None for tensor in inputs)  # whether content types read some

    def derive(self) -> None:
        """Sets what depends on the outputs."""
        super().derive()
        # Whether all outputs are numbers that the client wants as they are, in the answer.
        self.is_plain = all(output.is_plain for output in self.answered)

    def cost(self, message: Message) -> int:
        """Returns what `Decoder.repeat` costs, in bytes of JSON that cost the same."""
        return _cost(message, self.has_strings, self.has_content)


class Message:
    """An encoded ModelInferRequest in its parts: the envelope, and where the data of its tensors lies."""

    __slots__ = ("contents", "data", "envelope", "raws")

    def __init__(self, data: bytes | memoryview) -> None:
        """Raises ServingError: INVALID if it is not a message, TOO_LARGE if its envelope is too long."""
        self.data = data
        try:
            self.envelope, self.raws, self.contents = split(data, _MAX_ENVELOPE_BYTES, _MAX_PARTS)
        except Broken:
            raise not_a_message() from None
        except TooLarge:
            raise ServingError(
                Kind.TOO_LARGE,
                f"the message is over the limit of {_MAX_ENVELOPE_BYTES} bytes beside the data of its tensors, or of "
                f"{_MAX_PARTS} entries of raw_input_contents or contents",
            ) from None

    def data_bytes(self) -> int:
        """Returns the number of bytes that hold data of tensors."""
        return len(self.data) - len(self.envelope)


def not_a_message() -> ServingError:
    """Returns the error for bytes that are no ModelInferRequest."""
    return invalid("the message is not a ModelInferRequest")


class Decoder:
    """Reads ModelInferRequests. Only the event loop's thread uses `known` and `keep`."""

    def __init__(self, limits: Limits, regions: Regions | None = None) -> None:
        """`regions` are those of shared memory, None if tensors may not lie there."""
        self._limits = limits
        self._regions = regions
        self._plans: Plans[GrpcPlan] = Plans()

    def known(self, message: Message) -> GrpcPlan | None:
        """Returns the plan of a message whose envelope came before."""
        return None if message.contents else self._plans.get(message.envelope)

    def keep(self, message: Message, request: Request) -> None:
        """Remembers the plan of a request that was decoded."""
        plan: GrpcPlan = request.context
        if not message.contents and len(message.raws) == len(plan.inputs):  # empty tensors need no data
            self._plans.keep(message.envelope, plan)

    def repeat(self, message: Message, plan: GrpcPlan) -> Request:
        """Returns the request of a message whose envelope has a plan. Raises ServingError."""
        return plan.request(_raw_arrays(plan, message, self._limits), self._regions, self._limits)

    def cost(self, message: Message, asked: Any, spec: ModelSpec) -> int:
        """Returns what `decode` costs, in bytes of JSON that cost the same."""
        if len(asked.inputs) > self._limits.max_tensors:
            return 0  # it is refused at once
        strings = any(tensor.datatype.name == "BYTES" for tensor in spec.inputs.values())
        content = any(content_types.PARAMETER in tensor.parameters for tensor in (asked, *asked.inputs))
        return _cost(message, strings, content) + len(message.envelope) * _ENVELOPE_COST

    def decode(self, message: Message, asked: Any, spec: ModelSpec) -> Request:
        """Checks a message, of which `asked` is the parsed envelope, and returns it as a Request. Raises ServingError.

        The arrays of inputs that come as raw contents are views on the message, or copies if their place in it is not
        aligned for their type. Inputs in shared memory are missing until `request.shared.read`.
        """
        limits = self._limits
        if len(asked.inputs) > limits.max_tensors:  # before anything else looks at each
            text = f"the request has {len(asked.inputs)} inputs, the limit is {limits.max_tensors}"
            raise ServingError(Kind.TOO_LARGE, text)
        parameters = _plain(asked.parameters, "the request")
        of_request = content_types.of_request(parameters, len(asked.inputs))
        infos: list[TensorInfo] = []
        inputs: list[_Input] = []
        shared: dict[int, Place] = {}
        seen: set[str] = set()
        for i, item in enumerate(asked.inputs):
            where = f"input '{item.name}'"
            # Those of unknown or repeated inputs are not read: they may be many, and the inputs are refused below.
            counts = item.parameters and item.name in spec.inputs and item.name not in seen
            seen.add(item.name)
            of_item = _plain(item.parameters, where) if counts else {}
            info, content = content_types.of_input(of_item, of_request, spec, _info(item))
            infos.append(info)
            inputs.append(_Input(info.name, DATATYPES[info.datatype], info.shape, content))
            if (place := shared_place(of_item, where)) is not None:
                shared[i] = place
        fit = check_inputs(spec, infos, limits)
        outputs = _outputs(asked, spec, of_request, limits)
        plan = GrpcPlan(asked, spec, fit, outputs, request_options(parameters), of_request, inputs, shared)
        for index, _, _ in message.contents:
            if index in shared or message.raws:
                other = "shared_memory_region" if index in shared else "raw_input_contents"
                raise invalid(f"input '{infos[index].name}' has both contents and {other}")
        arrays = _raw_arrays(plan, message, limits) if message.raws else _typed_arrays(plan.inputs, message, limits)
        return plan.request(arrays, self._regions, limits)


def _info(item: Any) -> TensorInfo:
    if len(item.shape) > _MOST_DIMS:
        raise invalid(f"input '{item.name}': shape: expected at most {_MOST_DIMS} sizes, got {len(item.shape)}")
    return TensorInfo(item.name, check_datatype(item.datatype, item.name), tuple(item.shape))


def _outputs(asked: Any, spec: ModelSpec, of_request: str, limits: Limits) -> tuple[Output, ...]:
    if len(asked.outputs) > limits.max_tensors:
        text = f"the request asks for {len(asked.outputs)} outputs, the limit is {limits.max_tensors}"
        raise ServingError(Kind.TOO_LARGE, text)
    parameters = {item.name: item.parameters for item in asked.outputs}
    outputs = []
    for name in check_outputs(spec, [item.name for item in asked.outputs], limits):
        where = f"output '{name}'"
        plain = _plain(parameters.get(name, {}), where)
        outputs.append(wanted_output(spec, name, plain, shared_place(plain, where), of_request, limits))
    return tuple(outputs)


def _cost(message: Message, strings: bool, content: bool) -> int:
    """Returns what reading a message costs, in bytes of JSON that cost the same.

    `strings` says whether the message has strings, each of which becomes an object, and `content` whether inputs have
    content types.
    """
    # Numbers in `contents` are read one by one, and strings there by Python.
    if message.contents:
        cost = message.data_bytes() * (_CONTENTS_STRING_COST if strings else 1)
    else:
        cost = message.data_bytes() if strings else message.data_bytes() // _RAW_COST
    return cost * _CONTENT_COST if strings and content else cost


def encoding_cost(request: Request) -> int:
    """Returns what `encode` costs, in bytes of JSON that cost the same."""
    plan: GrpcPlan = request.context
    if plan.is_plain and not plan.spec.decoupled:
        return 0
    if request.shared is not None and request.shared.on_gpu:
        return GPU_COST
    result = request.result or {}
    plan = plan.of(result)
    cost = 0
    if plan.spec.decoupled:
        cost = _RESPONSE_COST * max((array.shape[int(plan.spec.batched)] for array in result.values()), default=0)
        if plan.spec.batched:  # the parts of a row don't lie together
            cost += sum(array.nbytes for array in result.values()) // _RAW_COST
    for output in plan.answered:
        array = result[output.name]
        if output.content is not None:
            cost += output.content.cost(array)
        if output.classification is not None:
            cost += output.classification.cost(array)
        elif array.dtype == object:
            cost += array.size * _ELEMENT_COST + text_length(array)
        elif output.place is not None:
            cost += writing_cost(array.nbytes)
    return cost


def _raw_arrays(plan: GrpcPlan, message: Message, limits: Limits) -> dict[str, Array]:
    if len(message.raws) != len(plan.inputs):
        others = "" if plan.sharing is None else " that are not in shared memory"
        expected = f"one entry for each of the {len(plan.inputs)} inputs{others}"
        raise invalid(f"raw_input_contents: expected {expected}, got {len(message.raws)}")
    arrays: dict[str, Array] = {}
    for (name, datatype, shape, content), (offset, size) in zip(plan.inputs.values(), message.raws, strict=True):
        array = from_raw(message.data, offset, size, datatype, shape, name, limits)
        arrays[name] = array if content is None else content.read(array, name)
    return arrays


def _typed_arrays(inputs: Mapping[int, _Input], message: Message, limits: Limits) -> dict[str, Array]:
    """Returns the arrays of the inputs at these indices."""
    arrays: dict[str, Array] = {}
    for i, (name, datatype, shape, content) in inputs.items():
        spans = [(offset, size) for index, offset, size in message.contents if index == i]
        try:
            array = _from_contents(message.data, spans, datatype, shape, name, limits)
        except Broken:
            raise not_a_message() from None
        arrays[name] = array if content is None else content.read(array, name)
    return arrays


def _plain(parameters: Mapping[str, Any], where: str) -> dict[str, Any]:
    if len(parameters) > _MAX_PARTS:
        raise invalid(f"{where}: expected at most {_MAX_PARTS} parameters, got {len(parameters)}")
    return parameter_values(parameters)


def parameter_values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of parameters or settings in a message, None for one without a value."""
    values = {}
    for key, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        values[key] = None if choice is None else getattr(parameter, choice)
    return values


def _from_contents(
    data: bytes | memoryview,
    spans: Sequence[tuple[int, int]],
    datatype: DataType,
    shape: tuple[int, ...],
    name: str,
    limits: Limits,
) -> Array:
    """Returns the numbers or strings of `contents`, which lie at these offsets and have these sizes."""
    field = _CONTENTS.get(datatype.name)
    if field is None:
        raise invalid(f"input '{name}': {datatype.name} must come in raw_input_contents")
    count = math.prod(shape)
    if datatype.name == "BYTES":
        found = [text for offset, size in spans for text in strings(data, offset, size, field.number, count)]
        _check_count(len(found), count, field, shape, name)
        texts: Array = np.empty(count, np.object_)
        for i, text in enumerate(found):
            if len(text) > limits.max_string_bytes:
                problem = f"input '{name}': element {i} has {len(text)} bytes, the limit is {limits.max_string_bytes}"
                raise ServingError(Kind.TOO_LARGE, problem)
            texts[i] = element(text)
        return texts.reshape(shape)
    # An element takes a byte or more of the message, so a shape of many elements needs a message as long.
    room = min(count, sum(size for _, size in spans))
    array = empty((room,), np.dtype(field.dtype))
    filled = 0
    for offset, size in spans:
        into = view(array.view(np.uint8))
        filled = numbers(data, offset, size, field.number, field.wire_type, array.itemsize, into, filled)
    _check_count(filled, count, field, shape, name)
    if datatype.dtype.kind in "iu" and count:
        bounds = np.iinfo(datatype.dtype)
        low, high = int(array.min()), int(array.max())
        if low < bounds.min or high > bounds.max:
            raise invalid(
                f"input '{name}': expected {datatype.name} values of {bounds.min} to {bounds.max}, "
                f"got {low if low < bounds.min else high}"
            )
    return array.astype(datatype.dtype, copy=False).reshape(shape)


def _check_count(got: int, count: int, field: _Contents, shape: tuple[int, ...], name: str) -> None:
    if got != count:
        raise invalid(f"input '{name}': expected {count} elements in {field.name} for shape {list(shape)}, got {got}")


def encode(request: Request) -> Parts:
    """Returns the encoded ModelInferResponse of a finished request, in parts. Writes the outputs that the client wants
    in shared memory; their data in the message is empty, because clients count on an entry for each output.

    Raises ServingError: TOO_LARGE for more bytes than a message can have, or too many classes, INVALID for an output
    that its place in shared memory can't take.
    """
    return _encode(request, request.result or {}, request.parameters)


def _encode(request: Request, result: Mapping[str, Array], parameters: Parameters) -> Parts:
    plan: GrpcPlan = request.context
    if len(result) != len(plan.outputs):
        plan = plan.of(result)
    arrays = list(map(result.__getitem__, plan.outputs))
    if not plan.is_plain:
        arrays = [output.answered(array) for output, array in zip(plan.answered, arrays, strict=True)]
    shapes = tuple(map(SHAPE, arrays))
    envelope = None if parameters else plan.answer_envelope(shapes)
    if envelope is None:
        envelope = _answer_envelope(plan, plan.answered, arrays, parameters)
        if not parameters:
            plan.keep_answer_envelope(shapes, envelope, len(envelope))
    parts: Parts = []
    small = envelope  # what goes before the next large output
    total = 0
    for output, array in zip(plan.answered, arrays, strict=True):
        data = to_raw(array, output.datatype)
        if output.place is not None:
            request.shared.write(output.name, data)
            data = b""
        small += _RAW_TAG + _varint(len(data))
        total += len(data)
        if isinstance(data, bytes):
            small += data
        else:
            parts += (small, data)
            small = b""
    if total + len(envelope) > _MOST_BYTES:
        raise too_large(f"the answer of {total} bytes", _MOST_BYTES)
    if small:
        parts.append(small)
    return parts


def encode_stream(request: Request) -> Iterator[Parts]:
    """Yields the encoded ModelStreamInferResponses of a finished request, each in parts.

    Each has the parameter triton_final_response. A decoupled model without responses sends an empty one if the client
    asked for that. Raises ServingError as `encode` and `responses` do.
    """
    plan: GrpcPlan = request.context
    result = request.result or {}
    left = count_responses(plan.spec, result)
    if not left and request.options.empty_final_response:
        yield encode_end(request)
    for outputs in responses(plan.spec, result):
        left -= 1
        parts = _encode(request, outputs, request.parameters)
        # Fields may come in any order, and those of a message that is given in parts are merged.
        yield _in_stream([_final(b"", not left), *parts])


def encode_part(request: Request, response: Response) -> Parts:
    """Returns the encoded ModelStreamInferResponse of one of several responses, in parts. Raises as `encode` does."""
    if response.error is not None:
        return stream_error(response.error.message, request.id, response.final)
    return _in_stream([_final(b"", response.final), *_encode(request, response.outputs, response.parameters)])


def encode_end(request: Request) -> Parts:
    """Returns the encoded ModelStreamInferResponse without outputs that ends several responses."""
    return _in_stream([_final(_answer_envelope(request.context, (), (), {}), True)])


def stream_error(text: str, id: str, final: bool | None = None) -> Parts:
    """Returns an encoded ModelStreamInferResponse with an error. It says whether it is the last response to a request,
    unless the request could not be read."""
    response = service_pb2.ModelStreamInferResponse(error_message=text or "unknown error")
    if id:
        response.infer_response.id = id
    if final is not None:
        response.infer_response.parameters["triton_final_response"].bool_param = final
    return [response.SerializeToString()]


def _in_stream(parts: Parts) -> Parts:
    """Returns the parts of a ModelInferResponse as those of a ModelStreamInferResponse."""
    return [_STREAM_TAG + _varint(sum(map(len, parts))), *parts]


def _final(envelope: bytes, final: bool) -> bytes:
    """Returns the envelope of a response with the parameter triton_final_response."""
    return envelope + (_FINAL if final else _NOT_FINAL)


_RAW_TAG = bytes([_RAW_OUTPUTS << 3 | 2])


def _parameter(final: bool) -> bytes:
    response = service_pb2.ModelInferResponse()
    response.parameters["triton_final_response"].bool_param = final
    return bytes(response.SerializeToString())


_FINAL, _NOT_FINAL = _parameter(True), _parameter(False)
# The number of infer_response in ModelStreamInferResponse.
_STREAM_TAG = bytes([2 << 3 | 2])


def _answer_envelope(
    plan: GrpcPlan, outputs: Sequence[Output], arrays: Sequence[Array], parameters: Parameters
) -> bytes:
    spec = plan.spec
    response = service_pb2.ModelInferResponse(model_name=spec.name, model_version=spec.version, id=plan.id)
    kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    for name, value in parameters.items():
        setattr(response.parameters[name], kinds[type(value)], value)
    if content_type := content_types.of_answer(plan.content, len(outputs)):
        response.parameters[content_types.PARAMETER].string_param = content_type
    for output, array in zip(outputs, arrays, strict=True):
        tensor = response.outputs.add(name=output.name, datatype=output.datatype.name, shape=array.shape)
        if output.content is not None and output.content.type:
            tensor.parameters[content_types.PARAMETER].string_param = output.content.type
    return bytes(response.SerializeToString())


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
