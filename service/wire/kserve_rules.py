"""Rules that hold for KServe requests in JSON and in protobuf: known datatypes, known and refused parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from opgate.service.errors import Kind, ServingError, invalid
from opgate.service.execution.datatypes import DATATYPES
from opgate.service.execution.request import Options, Sequence

SHARED_MEMORY = ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size")
# Parameters whose names begin so are the protocol's. A client may send only the one below, which a stream reads.
_RESERVED = "triton_"
EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"
_NO_OPTIONS = Options()


def check_datatype(datatype: Any, input_name: str) -> str:
    """Returns the datatype of an input. Raises ServingError (INVALID) if the protocol has no datatype of that name."""
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        got = str(datatype)[:40]
        raise invalid(f"input '{input_name}': datatype: expected one of {', '.join(DATATYPES)}, got {got!r}")
    return datatype


def refuse_shared_memory(parameters: Mapping[str, Any], where: str) -> None:
    """Raises ServingError (UNSUPPORTED) if the parameters of a tensor say that its data lies in shared memory."""
    if any(key in parameters for key in SHARED_MEMORY):
        raise ServingError(Kind.UNSUPPORTED, f"{where}: shared memory is not supported, send the data itself")


def check_output_parameters(parameters: Mapping[str, Any], name: str) -> None:
    """Raises ServingError (UNSUPPORTED) if the client wants an output as classes or in shared memory."""
    if parameters.get("classification"):
        raise ServingError(Kind.UNSUPPORTED, f"output '{name}': classification is not supported")
    refuse_shared_memory(parameters, f"output '{name}'")


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
        _flag(parameters, EMPTY_FINAL_RESPONSE),
    )


def _sequence(parameters: Mapping[str, Any]) -> Sequence | None:
    id = parameters.get("sequence_id", 0)
    if isinstance(id, bool) or not isinstance(id, (int, str)) or (isinstance(id, int) and not 0 <= id < 1 << 64):
        _wrong("sequence_id", "a number of 64 bits without a sign, or a string", id)
    start, end = _flag(parameters, "sequence_start"), _flag(parameters, "sequence_end")
    return Sequence(id, start, end) if id else None


def _flag(parameters: Mapping[str, Any], key: str) -> bool:
    value = parameters.get(key, False)
    if not isinstance(value, bool):
        _wrong(key, "a boolean", value)
    return value


def _number(parameters: Mapping[str, Any], key: str, what: str) -> int:
    value = parameters.get(key, 0)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        _wrong(key, what, value)
    return value


def _wrong(key: str, expected: str, value: Any) -> NoReturn:
    raise invalid(f"parameter {key[:80]}: expected {expected}, got {str(value)[:40]!r}")
