"""Counts and logs the answers of the gateway, whatever the protocol."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from opgate.service.core.request import Request

logger = logging.getLogger("opgate.access")

# Lines of one level that are logged in a second. Clients can make requests fail faster than a disk can write.
LINES_A_SECOND = 20
# What clients may send in X-Request-Id and traceparent. Anything else is not sent back and not logged.
REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Ids:
    """How the client names its request: the headers or metadata X-Request-Id and traceparent, "" if it sent none."""

    request_id: str = ""
    traceparent: str = ""

    def pairs(self) -> list[tuple[str, str]]:
        """Returns the headers that go back to the client."""
        named = (("x-request-id", self.request_id), ("traceparent", self.traceparent))
        return [(name, value) for name, value in named if value]


NO_IDS = Ids()


def ids_of(request_id: str, traceparent: str) -> Ids:
    """Returns the ids that are valid."""
    if not request_id and not traceparent:
        return NO_IDS
    return Ids(
        request_id if REQUEST_ID.fullmatch(request_id) else "",
        traceparent if TRACEPARENT.fullmatch(traceparent) else "",
    )


class Answer(NamedTuple):
    """One answer. `code` is the status. `ns` is the time from the request's arrival."""

    protocol: str
    route: str
    code: str
    ns: int
    model: str = ""
    version: str = ""
    ids: Ids = NO_IDS
    client: str = ""


class Recorder(Protocol):
    """Makes traces of answered requests."""

    def record(self, answer: Answer, request: Request) -> None: ...


class Keeper(Protocol):
    """Keeps the last answered requests, for people to see."""

    def wants(self, model: str, began_ns: int) -> bool: ...

    def add(self, answer: Answer, request: Request | None, error: str) -> None: ...


class Chooser(Recorder, Protocol):
    """Chooses before its run whether a request is traced."""

    def takes(self, model: str) -> bool: ...


def _always(model: str, began_ns: int) -> bool:
    return True


def _never(model: str, began_ns: int) -> bool:
    return False


class _Limit:
    """Lets a number of lines through in each second, and counts the others."""

    __slots__ = ("left", "second", "suppressed")

    def __init__(self) -> None:
        self.second = self.left = self.suppressed = 0

    def passes(self) -> bool:
        now = int(time.monotonic())
        if now != self.second:
            self.second, self.left = now, LINES_A_SECOND
        if not self.left:
            self.suppressed += 1
            return False
        self.left -= 1
        return True


class Journal:
    """The answers of one gateway. Only the event loop's thread uses it."""

    def __init__(self, access_log: bool) -> None:
        """With `access_log` every answer is logged, otherwise only errors: at most LINES_A_SECOND of each level."""
        self.counts: Counter[tuple[str, str, str]] = Counter()  # by protocol, route and code
        self.recorder: Chooser | None = None
        self._keeper: Keeper | None = None
        self._access_log = access_log
        #: Returns whether an answer without an error, of a model and to a request that began at a time of perf_counter
        #: in nanoseconds, is more than counted. A quick request asks, so it is the function that answers.
        self.keeps: Callable[[str, int], bool]
        self._settle()
        self._limits: dict[int, _Limit] = {}

    def set_recorder(self, recorder: Chooser | None) -> None:
        """Hands every answered inference request to a recorder from now on."""
        self.recorder = recorder
        self._settle()

    def set_keeper(self, keeper: Keeper) -> None:
        """Hands answered inference requests to a keeper from now on."""
        self._keeper = keeper
        self._settle()

    def _settle(self) -> None:
        keeper = self._keeper
        if self._access_log or self.recorder is not None:
            self.keeps = _always
        else:
            self.keeps = _never if keeper is None else keeper.wants

    def answered(
        self, answer: Answer, request: Request | None = None, error: str = "", level: int = logging.INFO
    ) -> None:
        """Counts an answer and logs it if it is an error or if every answer is logged.

        `request` is the inference request, if it came to that. `error` and `level` are the text and the severity of an
        error.
        """
        self.counts[answer.protocol, answer.route, answer.code] += 1
        if self.recorder is not None and request is not None:
            self.recorder.record(answer, request)
        if self._keeper is not None and (request is not None or (error and answer.model)):
            self._keeper.add(answer, request, error)
        if not error and not self._access_log:
            return
        suppressed = 0
        if not self._access_log:
            limit = self._limits.get(level)
            if limit is None:
                limit = self._limits[level] = _Limit()
            if not limit.passes():
                return
            suppressed, limit.suppressed = limit.suppressed, 0
        extra: dict[str, Any] = {
            "protocol": answer.protocol,
            "route": answer.route,
            "code": answer.code,
            "duration_ms": round(answer.ns / 1e6, 3),
            "model": answer.model or None,
            "version": answer.version or None,
            "id": (request.id[:128] or None) if request is not None else None,
            "request_id": answer.ids.request_id or None,
            "traceparent": answer.ids.traceparent or None,
            "client": answer.client or None,
            "suppressed": suppressed or None,
        }
        logger.log(level if error else logging.INFO, "%s", error[:1000] or "answered", extra=extra)


def http_level(status: int) -> int:
    """Returns the severity of an HTTP error: a failure of the gateway is an error, what it can't do now a warning."""
    if status == 500:
        return logging.ERROR
    return logging.WARNING if status > 500 else logging.INFO


def grpc_level(code: str) -> int:
    """Returns the severity of a gRPC status by its name, as `http_level` does."""
    if code in ("INTERNAL", "UNKNOWN"):
        return logging.ERROR
    return logging.WARNING if code in ("UNAVAILABLE", "DEADLINE_EXCEEDED") else logging.INFO
