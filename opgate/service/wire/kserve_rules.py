"""Rules that hold for KServe requests in JSON and in protobuf: known datatypes, and the parameters of requests and
tensors."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any, NamedTuple, NoReturn

from opgate.service.core.checks import Limits
from opgate.service.core.datatypes import DATATYPES, DataType
from opgate.service.core.errors import ServingError, invalid
from opgate.service.core.request import Array, Options, Sequence
from opgate.service.core.spec import ModelSpec
from opgate.service.wire import content_types
from opgate.service.wire.classification import Classification
from opgate.service.wire.content_types import Content
from opgate.service.wire.shared_tensors import Place, SharedInput, Sharing

SHARED_MEMORY = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")
# Parameters whose names begin so are the protocol's. A client may send only the one below, which a stream reads.
_RESERVED = "triton_"
EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"
_NO_OPTIONS = Options()
# Those that mean something to the gateway, here or where a body is read. All others are the client's own.
_KNOWN = frozenset((
    "timeout", "priority", "sequence_id", "sequence_start", "sequence_end", EMPTY_FINAL_RESPONSE,
    "binary_data_output", "content_type",
))  # fmt: skip
# Characters of a text that names a sequence, as in Triton.
_MOST_ID = 128


class Output(NamedTuple):
    """An output as a client wants it. `datatype` is that of the answer."""

    name: str
    datatype: DataType
    classification: Classification | None  # what it wants instead of the tensor
    place: Place | None  # where it wants the data, if not in the answer
    content: Content | None  # None if the request names no content type for it

    @property
    def is_plain(self) -> bool:
        """Whether the answer has numbers, as the model computed them."""
        column = self.content is not None and self.content.column
        return self.classification is None and self.place is None and self.datatype.itemsize > 0 and not column

    def answered(self, array: Array) -> Array:
        """Returns what the answer has in place of the array that the model computed. Raises ServingError."""
        if self.classification is not None:
            array = self.classification.classes(array)
        return array if self.content is None else self.content.write(array, self.name)


def check_datatype(datatype: Any, input_name: str) -> str:
    """Returns the datatype of an input. Raises ServingError (INVALID) if the protocol has no datatype of that name."""
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        got = str(datatype)[:40]
        raise invalid(f"input '{input_name}': datatype: expected one of {', '.join(DATATYPES)}, got {got!r}")
    return datatype


def shared_place(parameters: Mapping[str, Any], where: str) -> Place | None:
    """Returns where a tensor lies in shared memory, None if its parameters don't say that it does.

    Raises ServingError (INVALID) if a value has another type than the protocol says, or if one of the first two lacks
    the other.
    """
    given = [key for key in SHARED_MEMORY if key in parameters]
    if not given:
        return None
    for key in SHARED_MEMORY[:2]:
        if key not in parameters:
            raise invalid(f"{where}: parameter {given[0]} needs {key}")
    region, size, offset = (parameters.get(key, 0) for key in SHARED_MEMORY)
    if not isinstance(region, str):
        _wrong(SHARED_MEMORY[0], "a name", region, where)
    for key, value in zip(SHARED_MEMORY[1:], (size, offset), strict=True):
        if type(value) is not int or not 0 <= value < 1 << 62:
            _wrong(key, "a number of bytes from 0 on", value, where)
    return Place(region, offset, size)


def wanted_output(
    spec: ModelSpec, name: str, parameters: Mapping[str, Any], place: Place | None, of_request: str, limits: Limits
) -> Output:
    """Returns an output of a model as the parameters of a request ask for it. Those that the protocol doesn't know mean
    nothing. `of_request` is the content type of the request.

    Raises ServingError (INVALID) if the number of classes isn't one, or if the output can't have the content type.
    """
    tensor = spec.outputs[name]
    if not parameters and not of_request:
        return Output(name, tensor.datatype, None, place, None)
    datatype, classification = tensor.datatype, None
    if "classification" in parameters:
        count = parameters["classification"]
        if type(count) is not int or count < 1:
            _wrong("classification", "a positive integer", count, f"output '{name}'")
        datatype = DATATYPES["BYTES"]
        classification = Classification(tensor, count, spec.batched, limits.max_strings)
    content = content_types.of_output(parameters, of_request, datatype.name, name)
    return Output(name, datatype, classification, place, content)


def find_sharing(inputs: SequenceOf[SharedInput], outputs: SequenceOf[Output]) -> Sharing | None:
    """Returns the tensors of a request that lie in shared memory, None if none does. Raises ServingError (INVALID)."""
    places = {output.name: output.place for output in outputs if output.place is not None}
    return Sharing(inputs, places) if inputs or places else None


def request_options(parameters: Mapping[str, Any]) -> Options:
    """Returns what the parameters of a request ask for. Those that the protocol doesn't know are the client's own.

    Raises ServingError (INVALID) if a value has another type than the protocol says, or the name is a reserved one.
    """
    if not parameters:
        return _NO_OPTIONS
    for key, value in parameters.items():
        if not isinstance(value, (bool, int, float, str)):
            _wrong(key, "a boolean, a number or a string", value)
        if key.startswith(_RESERVED) and key != EMPTY_FINAL_RESPONSE:
            raise invalid(f"parameter {key[:80]}: names that begin with {_RESERVED} are reserved")
    return Options(
        _number(parameters, "timeout", "microseconds"),
        _number(parameters, "priority", "a level"),
        _sequence(parameters),
        flag(parameters, EMPTY_FINAL_RESPONSE),
        {key: _own(value) for key, value in parameters.items() if key not in _KNOWN},
    )


def timeout_of(parameters: Mapping[str, Any]) -> int:
    """Returns the timeout among the parameters of a request in microseconds, 0 if there is none that is a number."""
    try:
        return _number(parameters, "timeout", "microseconds")
    except ServingError:
        return 0  # whoever decodes the request refuses it


def _own(value: bool | int | float | str) -> bool | int | float | str:
    """Returns a parameter of the client's own. As in Triton, an integer beyond 64 bits with a sign becomes a float."""
    return value if not isinstance(value, int) or -(1 << 63) <= value < 1 << 63 else float(value)


def _sequence(parameters: Mapping[str, Any]) -> Sequence | None:
    id = parameters.get("sequence_id", 0)
    if isinstance(id, bool) or not isinstance(id, (int, str)) or (isinstance(id, int) and not 0 <= id < 1 << 64):
        _wrong("sequence_id", "a number of 64 bits without a sign, or a string", id)
    if isinstance(id, str) and len(id) > _MOST_ID:
        _wrong("sequence_id", f"at most {_MOST_ID} characters", id)
    start, end = flag(parameters, "sequence_start"), flag(parameters, "sequence_end")
    return Sequence(id, start, end) if id else None


def flag(parameters: Mapping[str, Any], key: str, default: bool = False, where: str = "") -> bool:
    """Returns a boolean parameter, or the default if it is missing. Raises ServingError (INVALID) for another type."""
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        _wrong(key, "a boolean", value, where)
    return value


def _number(parameters: Mapping[str, Any], key: str, what: str) -> int:
    value = parameters.get(key, 0)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        _wrong(key, what, value)
    return value


def _wrong(key: str, expected: str, value: Any, where: str = "") -> NoReturn:
    raise invalid(f"{f'{where}: ' if where else ''}parameter {key[:80]}: expected {expected}, got {str(value)[:40]!r}")
