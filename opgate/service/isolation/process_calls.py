"""The calls of other models that a worker process of a model in Python has under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.request import Array, Options
from opgate.service.core.request import Sequence as Place
from opgate.service.isolation.calls import Answer, Call, Calls, Running
from opgate.service.isolation.mail import NoRoomError
from opgate.service.isolation.python_job import SEQUENCE_END, SEQUENCE_START, bytes_of

#: Calls that one process may have under way.
MOST_CALLS = 1024


class Caller(Protocol):
    """What talks with the process."""

    @property
    def calls(self) -> Calls:
        """Runs calls of other models."""

    def say(self, message: Sequence[Any], names: Sequence[str] = (), arrays: Sequence[Array] = ()) -> None:
        """Sends a message."""

    def post(self, what: Callable[[], None], size: int) -> None:
        """Has something done that may copy so many bytes, unless the process has ended by then."""


class CallsOfProcess:
    """The calls of other models that a process has under way."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._running: dict[int, Running] = {}

    def take(self, kind: str, rest: Sequence[Any], tensors: list[tuple[str, Array]]) -> None:
        """Takes a message about calls. Raises ValueError for another."""
        if kind == "call":
            id, asked = rest
            self._call(int(id), asked, tensors)
        elif kind == "control":
            id, (what, *arguments) = rest
            if what == "load":  # the contents of files come as tensors
                arguments[-1].update((name, array.tobytes()) for name, array in tensors)
            self._begin(int(id), lambda answer: self._caller.calls.ask(str(what), arguments, answer))
        elif kind == "more":
            if (running := self._running.get(int(rest[0]))) is not None:
                running.more()
        elif kind == "drop":
            if (left := self._running.pop(int(rest[0]), None)) is not None:
                left.cancel()
        else:
            raise ValueError(f"the message {str(kind)[:80]}")

    def _call(self, id: int, asked: Sequence[Any], tensors: list[tuple[str, Array]]) -> None:
        name, version, request_id, outputs, timeout, parameters, correlation, flags, streams = asked
        place = None
        if correlation:
            if not isinstance(correlation, (int, str)):
                raise ValueError(f"the sequence {str(correlation)[:80]}")
            place = Place(correlation, bool(flags & SEQUENCE_START), bool(flags & SEQUENCE_END))
        call = Call(
            str(name),
            int(version),
            dict(tensors),
            [str(output) for output in outputs],
            str(request_id),
            Options(timeout_us=int(timeout), parameters=dict(parameters), sequence=place),
            bool(streams),
        )

        self._begin(id, lambda answer: self._caller.calls.start(call, answer))

    def _begin(self, id: int, start: Callable[[Answer], Running]) -> None:
        if id in self._running:
            raise ValueError("two calls with one number")

        def answer(result: Mapping[str, Array], last: bool, error: ServingError | None, parameters: Any) -> None:
            size = sum(map(bytes_of, result.values()))
            self._caller.post(lambda: self._send(id, result, last, error, parameters), size)

        try:
            if len(self._running) >= MOST_CALLS:
                raise ServingError(Kind.UNAVAILABLE, f"{MOST_CALLS} calls of the model are under way")
            running = self._running[id] = start(answer)
            running.begin()
        except ServingError as error:
            self._running.pop(id, None)
            self._caller.say(["result", id, True, [error.kind.value, error.message], {}])

    def _send(
        self,
        id: int,
        result: Mapping[str, Array],
        last: bool,
        error: ServingError | None,
        parameters: Mapping[str, Any],
    ) -> None:
        """Sends a response of a called model to the process."""
        if id not in self._running:
            return
        failed = None if error is None else [error.kind.value, error.message]
        try:
            self._caller.say(["result", id, last, failed, dict(parameters)], list(result), list(result.values()))
        except (NoRoomError, TypeError) as refused:
            self._caller.say(["result", id, True, [Kind.TOO_LARGE.value, str(refused)], {}])
            self._running[id].cancel()
            last = True
        if last:
            del self._running[id]

    def cancel(self) -> None:
        """Gives up all of them."""
        for running in self._running.values():
            running.cancel()
        self._running.clear()
