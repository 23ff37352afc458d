"""Reads and writes the bodies of `generate` and `generate_stream`: a JSON object whose members are inputs and outputs.

The members that are no input of the model are `id`, the client's own parameters, and `parameters`: an object with more
inputs and parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from opgate.service.core.checks import Limits
from opgate.service.core.errors import Kind, ServingError, invalid, json_kind
from opgate.service.core.request import Array, Request
from opgate.service.core.spec import ModelSpec
from opgate.service.core.tensors import Bytes, text_length, view
from opgate.service.wire.friendly import values_request
from opgate.service.wire.json_tensors import JsonValue, loads, members, write
from opgate.service.wire.kserve_json import ELEMENT_COST
from opgate.service.wire.kserve_rules import request_options
from opgate.service.wire.responses import count_responses, responses

# Bytes of a member that is no input.
_MOST_PARAMETER = 65536


def read(spec: ModelSpec, body: Bytes, limits: Limits) -> Request:
    """Returns the request of one row in a body. A single value stands for a tensor with one element.

    Raises ServingError (INVALID, TOO_LARGE).
    """
    given = members(body, limits)
    values = {name: value for name, value in given.items() if name in spec.inputs}
    parameters: dict[str, Any] = {}
    others: list[str] = []
    id = ""
    for name, value in given.items():
        if name in values:
            continue
        if name == "id":
            plain = _plain(name, value)
            if not isinstance(plain, str):
                raise invalid(f"id: expected a string, got {json_kind(plain)}")
            id = plain
        elif name == "parameters":
            for inner, nested in _members_of(value, limits).items():
                if inner in given and inner not in ("id", "parameters"):
                    kind = "input" if inner in spec.inputs else "parameter"
                    raise invalid(f"{kind} '{inner[:80]}' is given twice: beside 'parameters' and in it")
                if inner in spec.inputs:
                    values[inner] = nested
                else:
                    parameters[inner] = _plain(inner, nested)
        else:
            parameters[name] = _plain(name, value)
            others.append(name)
    missing = [name for name, tensor in spec.inputs.items() if not tensor.optional and name not in values]
    if missing and others:
        known = ", ".join(spec.inputs)
        raise invalid(
            f"input '{missing[0]}' is missing: '{others[0][:80]}' is no input of the model, which has {known}"
        )
    request = values_request(spec, values, limits)
    request.id = id
    request.options = request_options(parameters)
    return request


def _members_of(value: JsonValue, limits: Limits) -> Mapping[str, JsonValue]:
    """Returns the members of the object "parameters": inputs too, as in Triton. Raises ServingError."""
    data = bytes(view(value.body)[value.begin : value.end])
    if not data.startswith(b"{"):
        raise invalid(f"parameters: expected an object, got {json_kind(_plain('parameters', value))}")
    return members(data, limits)


def _plain(name: str, value: JsonValue) -> Any:
    if value.end - value.begin > _MOST_PARAMETER:
        raise ServingError(Kind.TOO_LARGE, f"parameter {name[:80]}: more than the limit of {_MOST_PARAMETER} bytes")
    try:
        return loads(view(value.body)[value.begin : value.end])
    except ValueError as error:
        raise invalid(f"the request is not valid JSON: '{name[:80]}': {error}") from None


def only_answer(spec: ModelSpec, request: Request) -> bytes:
    """Returns the answer to a request. Raises ServingError: UNSUPPORTED if it has not exactly one response, INVALID for
    an output that is not text."""
    result = request.result or {}
    if (count := count_responses(spec, result)) != 1:
        text = f"generate sends one response, model '{spec.name}' made {count}: use generate_stream"
        raise ServingError(Kind.UNSUPPORTED, text)
    return part(spec, request, next(responses(spec, result)))


def only_part(spec: ModelSpec, request: Request, outputs: Sequence[Mapping[str, Array]]) -> bytes:
    """Returns the only response of those that a model has sent. Raises ServingError as `only_answer` does."""
    if len(outputs) != 1:
        sent = "more" if outputs else "none"
        text = f"generate sends one response, model '{spec.name}' has sent {sent}"
        raise ServingError(Kind.UNSUPPORTED, f"{text}: use generate_stream")
    return part(spec, request, outputs[0])


def part(spec: ModelSpec, request: Request, outputs: Mapping[str, Array]) -> bytes:
    """Returns one of several responses as JSON. Raises ServingError (INVALID) for an output that is not text."""
    return b"".join(_answer(spec, request.id, outputs))


def events(spec: ModelSpec, request: Request) -> Iterator[bytes]:
    """Yields the responses of a finished request as server-sent events. Raises ServingError (INVALID) for an output
    that is not text."""
    for response in responses(spec, request.result or {}):
        yield event(part(spec, request, response))


def event(data: bytes) -> bytes:
    """Returns a server-sent event (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
    return b"data: " + data + b"\n\n"


def _answer(spec: ModelSpec, id: str, outputs: Mapping[str, Array]) -> list[bytes]:
    top: dict[str, str] = {"model_name": spec.name, "model_version": spec.version}
    if id:
        top["id"] = id
    parts = [orjson.dumps(top)[:-1]]
    for name, array in outputs.items():
        flat = write(array.reshape(-1), spec.outputs[name].datatype, False, name)
        if array.size == 1:  # a single value stands for it, without the list around it
            flat = [b"".join(flat)[1:-1]]
        parts += (b",", orjson.dumps(name), b":", *flat)
    parts.append(b"}")
    return parts


def answer_cost(request: Request) -> int:
    """Returns what writing the answer costs, in bytes of JSON that cost as much to read."""
    return sum(array.size * ELEMENT_COST + text_length(array) for array in (request.result or {}).values())
