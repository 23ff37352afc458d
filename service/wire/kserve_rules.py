"""Rules that hold for KServe requests in JSON and in protobuf: known datatypes, known and refused parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opgate.service.errors import Kind, ServingError, invalid
from opgate.service.execution.datatypes import DATATYPES

SHARED_MEMORY = ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size")
SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")


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


def request_timeout(parameters: Mapping[str, Any]) -> int:
    """Returns the `timeout` parameter of a request in microseconds, 0 if the client set none.

    Raises ServingError: INVALID if the value is no number of microseconds, UNSUPPORTED for parameters of a sequence.
    """
    for key in SEQUENCE:
        if parameters.get(key):
            raise ServingError(Kind.UNSUPPORTED, f"parameter {key}: sequences are not supported")
    timeout = parameters.get("timeout", 0)
    if isinstance(timeout, str) and timeout.isascii() and timeout.isdecimal() and len(timeout) < 20:
        timeout = int(timeout)
    if type(timeout) is not int or not 0 <= timeout < 1 << 62:
        raise invalid(f"parameter timeout: expected microseconds, got {str(timeout)[:40]!r}")
    return timeout
