"""The one taxonomy of what can go wrong with a request. `service.api.status` maps it to HTTP and gRPC."""

from __future__ import annotations

import enum


class Kind(enum.Enum):
    """Why a request was not answered; the value is the reason label of `nv_inference_request_failure`."""

    INVALID = "INVALID"  # the client's mistake: bad name, shape, type, syntax or value
    NOT_FOUND = "NOT_FOUND"  # no such model, version or route
    NOT_READY = "NOT_READY"  # asked whether it is ready, and it isn't
    UNAVAILABLE = "UNAVAILABLE"  # the model exists but can't serve now
    TOO_LARGE = "TOO_LARGE"  # over a size limit
    UNSUPPORTED = "UNSUPPORTED"  # a part of the protocol that isn't implemented
    MEDIA_TYPE = "MEDIA_TYPE"  # a body of a kind that the route doesn't read
    NOT_ACCEPTABLE = "NOT_ACCEPTABLE"  # the wanted kind of answer can't be made
    OVERLOADED = "OVERLOADED"  # the queue is full
    DEADLINE = "DEADLINE"  # the request's own timeout ran out
    CANCELED = "CANCELED"  # the client left before its turn came
    INTERNAL = "BACKEND"  # the model or the engine failed


class ServingError(Exception):
    """A failure with a reason and a sentence for the client.

    The message of a client's mistake names the input, what was expected and what came.
    """

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def invalid(message: str) -> ServingError:
    """A client's mistake."""
    return ServingError(Kind.INVALID, message)


def internal(message: str) -> ServingError:
    """A failing model."""
    return ServingError(Kind.INTERNAL, message)
