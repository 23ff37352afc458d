"""Maps the kinds of `opgate.service.core.errors` to HTTP status codes and to gRPC codes."""

from __future__ import annotations

import math

import orjson

from opgate.service.core.errors import Kind, LimitedError, ServingError
from opgate.service.rpc.server import Code

HTTP: dict[Kind, int] = {
    Kind.INVALID: 400,
    Kind.NOT_FOUND: 404,
    Kind.ALREADY_EXISTS: 400,
    Kind.NOT_READY: 400,
    Kind.UNAVAILABLE: 503,
    Kind.TOO_LARGE: 413,
    Kind.FORBIDDEN: 403,
    Kind.UNSUPPORTED: 501,
    Kind.MEDIA_TYPE: 415,
    Kind.NOT_ACCEPTABLE: 406,
    Kind.OVERLOADED: 503,
    Kind.LIMITED: 429,
    Kind.EXPIRED: 503,
    Kind.DEADLINE: 504,
    Kind.CANCELED: 499,
    Kind.INTERNAL: 500,
}

GRPC: dict[Kind, Code] = {
    Kind.INVALID: Code.INVALID_ARGUMENT,
    Kind.NOT_FOUND: Code.NOT_FOUND,
    Kind.ALREADY_EXISTS: Code.ALREADY_EXISTS,
    Kind.NOT_READY: Code.UNAVAILABLE,
    Kind.UNAVAILABLE: Code.UNAVAILABLE,
    Kind.TOO_LARGE: Code.RESOURCE_EXHAUSTED,
    Kind.FORBIDDEN: Code.PERMISSION_DENIED,
    Kind.UNSUPPORTED: Code.UNIMPLEMENTED,
    Kind.MEDIA_TYPE: Code.INVALID_ARGUMENT,
    Kind.NOT_ACCEPTABLE: Code.INVALID_ARGUMENT,
    Kind.OVERLOADED: Code.UNAVAILABLE,
    Kind.LIMITED: Code.RESOURCE_EXHAUSTED,
    Kind.EXPIRED: Code.UNAVAILABLE,
    Kind.DEADLINE: Code.DEADLINE_EXCEEDED,
    Kind.CANCELED: Code.CANCELLED,
    Kind.INTERNAL: Code.INTERNAL,
}


def error_body(message: str) -> bytes:
    """Returns the JSON body of an HTTP error."""
    try:
        return orjson.dumps({"error": message})
    except orjson.JSONEncodeError:  # a message of the engine can hold lone surrogates
        return orjson.dumps({"error": message.encode("utf-8", "replace").decode()})


def error_headers(error: ServingError, retry_after: int) -> list[tuple[str, str]]:
    """Returns the headers of an error: Retry-After if it makes sense to try again."""
    if isinstance(error, LimitedError):
        return [("retry-after", str(math.ceil(error.seconds)))]
    return [("retry-after", str(retry_after))] if error.kind in (Kind.OVERLOADED, Kind.EXPIRED) else []
