"""The kinds of errors that a request can end with. `opgate.service.api.status` maps them to HTTP and gRPC codes."""

from __future__ import annotations

import enum
import errno
from typing import TypeVar


class Kind(enum.Enum):
    """Why a request failed. The value is the `reason` label of the metric `nv_inference_request_failure`."""

    INVALID = "INVALID"  # the client's mistake: bad name, shape, type, syntax or value
    NOT_FOUND = "NOT_FOUND"  # no such model, version or route
    ALREADY_EXISTS = "ALREADY_EXISTS"  # something else has the name
    NOT_READY = "NOT_READY"  # the client asked whether a model is ready, and it isn't
    UNAVAILABLE = "UNAVAILABLE"  # the model exists but can't serve now
    TOO_LARGE = "TOO_LARGE"  # over a size limit
    FORBIDDEN = "FORBIDDEN"  # this client may not ask for it
    UNSUPPORTED = "UNSUPPORTED"  # the gateway doesn't implement this part of the protocol
    MEDIA_TYPE = "MEDIA_TYPE"  # the route or the model doesn't read this kind of body
    NOT_ACCEPTABLE = "NOT_ACCEPTABLE"  # the model has no answer of the kind that the client accepts
    OVERLOADED = "OVERLOADED"  # the queue is full, or the answer would come too late
    LIMITED = "LIMITED"  # the client sends more requests than it may
    EXPIRED = "EXPIRED"  # the timeout of the request ran out before its turn came
    DEADLINE = "DEADLINE"  # it ran out during the run
    CANCELED = "CANCELED"  # the client left before its turn came
    INTERNAL = "BACKEND"  # the model or the engine failed


class ServingError(Exception):
    """An error with its kind and a sentence for the client.

    For a mistake of the client, the sentence names the input, the expected value and the actual one.
    """

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class LimitedError(ServingError):
    """A client sends more requests than it may. The next one will be let through in so many seconds."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(Kind.LIMITED, message)
        self.seconds = seconds


class NotLoadedError(ServingError):
    """A version of a model is not in memory, and is loaded when somebody asks for it."""

    def __init__(self, name: str, version: int, failure: str = "") -> None:
        """`failure` says why its last load failed."""
        super().__init__(Kind.UNAVAILABLE, f"model '{name}' version {version} is not in memory")
        self.failure = failure
        self.name = name
        self.version = version


E = TypeVar("E", bound=BaseException)


def detached(error: E) -> E:
    """Takes the frames in which an error was raised, and the errors before it, from the error, and returns it.

    The frames know the data of the request, and often the error: then only the garbage collector would free them.
    """
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def json_kind(value: object) -> str:
    """Returns what JSON calls a value, for messages about one of another kind."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list() | tuple():
            return "a list"
        case _:
            return "an object"


def invalid(message: str) -> ServingError:
    """Returns the error for a mistake of the client."""
    return ServingError(Kind.INVALID, message)


def too_large(what: str, limit: int, setting: str = "") -> ServingError:
    """Returns the error for more bytes than a limit. `setting` is the variable that sets it, if one does."""
    return ServingError(
        Kind.TOO_LARGE, f"{what} is over the limit of {limit} bytes" + (f" ({setting})" if setting else "")
    )


def unloading(model: str) -> ServingError:
    """Returns the error for a model that accepts no more requests."""
    return ServingError(Kind.UNAVAILABLE, f"model '{model}' is being unloaded")


def queue_full(model: str, waiting: int) -> ServingError:
    """Returns the error for a request that has no place in the queue of its model."""
    return ServingError(Kind.OVERLOADED, f"the queue of model '{model}' is full: {waiting} requests wait")


def too_slow(model: str, expected_ns: float, limit_ns: int) -> ServingError:
    """Returns the error for a request that a model with `max_latency_ms` is not likely to answer in time."""
    text = (
        f"the answer of model '{model}' would take about {expected_ns / 1e6:.1f} ms, "
        f"the limit is {limit_ns / 1e6:g} ms (max_latency_ms)"
    )
    return ServingError(Kind.OVERLOADED, text)


def limited(client: str, rate: float, seconds: float) -> LimitedError:
    """Returns the error for a request of a client that sends more than `rate` in a second. `seconds` is when the next
    one will be let through."""
    who = "this address" if client == "*" else f"client '{client}'"
    text = f"{who} may send {rate:g} requests a second (--client-limit): the next one in {seconds:.3f} s"
    return LimitedError(text, seconds)


def too_late(model: str, timeout_us: int) -> ServingError:
    """Returns the error for a request whose timeout was over before its model got it."""
    text = f"the request's timeout of {timeout_us} us ran out before it reached model '{model}'"
    return ServingError(Kind.EXPIRED, text)


def not_loaded_in_time(model: str, timeout_us: int) -> ServingError:
    """Returns the error for a request whose timeout was over before its model was loaded."""
    text = f"the request's timeout of {timeout_us} us ran out while model '{model}' was being loaded; the load goes on"
    return ServingError(Kind.EXPIRED, text)


def in_queue(error: ServingError) -> ServingError:
    """Returns the error of a request that ends in its queue: as in Triton, a client may send it again."""
    return ServingError(Kind.EXPIRED, error.message) if error.kind is Kind.DEADLINE else error


def of_load(error: BaseException) -> str:
    """Returns why a load failed whose error is none of the gateway's own."""
    if isinstance(error, MemoryError):
        return "there is no memory for it"
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return "the system has no thread for it"
    return f"{type(error).__name__}: {error}"


_SHORTAGES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM))


def of_system(error: OSError) -> ServingError:
    """Returns the error for what the system refused: OVERLOADED if it is short of something. Its text has no path of
    the server."""
    kind = Kind.OVERLOADED if error.errno in _SHORTAGES else Kind.INTERNAL
    return ServingError(kind, f"the system refused it: {error.strerror or type(error).__name__}")


def kind_of(error: Exception) -> Kind:
    """Returns the kind of an error. An error that is no ServingError is the gateway's own failure."""
    if isinstance(error, OSError):
        return of_system(error).kind
    return error.kind if isinstance(error, ServingError) else Kind.INTERNAL


def internal(message: str) -> ServingError:
    """Returns the error for a failure of the model."""
    return ServingError(Kind.INTERNAL, message)
