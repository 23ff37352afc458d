"""One call of a client, and how it ends."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol

from opgate.service.rpc.connection import Connection

# Names and values. The values of names that end in "-bin" are bytes, the others are printable ASCII.
Metadata = Sequence[tuple[str, str | bytes]]
# A message that has come. A large one is a view of bytes.
Received = bytes | memoryview
# A message to send: bytes, or a list of buffers that hold its parts. Buffers must not change afterwards.
Message = bytes | list[bytes | memoryview]


class Code(IntEnum):
    """The status codes of gRPC, https://grpc.io/docs/guides/status-codes/."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(Exception):
    """Ends a call with a status other than OK."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Carrier(Protocol):
    """The connection on which a call has come."""

    peer: str
    connection: Connection
    calls: dict[int, Call]

    @property
    def time(self) -> Callable[[], float]:
        """The clock of the event loop."""

    def answer(self, call: Call, message: Message, trailers: Metadata | None) -> None:
        """Sends the answer of a unary call that has ended."""

    def end(self, call: Call, code: Code, text: str, trailers: Metadata | None) -> None:
        """Sends the end of a call that has ended."""


class Call:
    """One call, until it is answered."""

    __slots__ = ("_deadline", "_encoding", "_messages", "_metadata", "_protocol", "_task", "_timer", "compress",
                 "ended", "has_metadata", "initial_metadata", "method", "on_gone", "stream", "why_gone")  # fmt: skip

    def __init__(
        self, protocol: Carrier, stream: int, method: str, metadata: list[tuple[str, str]] | None, encoding: str
    ) -> None:
        self.stream = stream
        self.method = method
        self.ended = False
        self.why_gone = (Code.CANCELLED, "the client left")  # holds when the call has ended without an answer
        self.on_gone: Callable[[Call], None] | None = None  # called when the client has left or its time is over
        self.initial_metadata: Metadata | None = None  # sent before the first message
        self.compress = False  # whether messages are sent compressed; true if the client's first message was
        self._protocol = protocol
        self._metadata = metadata
        self.has_metadata = bool(metadata)  # whether the client sent any
        self._encoding = encoding
        self._deadline: float | None = None
        self._messages: asyncio.Queue[tuple[Received | None, bool] | None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def peer(self) -> str:
        """The address of the client."""
        return self._protocol.peer

    @property
    def metadata(self) -> Metadata:
        """What the client sent with the call."""
        return received(self._metadata) if self._metadata else ()

    def first(self, name: str) -> str:
        """Returns the first value of a name in the client's metadata, "" if there is none. Not for names in -bin."""
        for known, value in self._metadata or ():
            if known == name:
                return value
        return ""

    @property
    def seconds_left(self) -> float | None:
        """The time until the deadline of the call, None if it has none."""
        return None if self._deadline is None else max(0.0, self._deadline - self._protocol.time())

    def hold(self, size: int) -> bool:
        """Counts bytes that a handler keeps of the client's messages, or with a negative number gives them back.

        Returns whether there is room for them. They are given back when the call ends.
        """
        return self._protocol.connection.hold(self.stream, size)

    def answer(self, message: Message, trailers: Metadata | None = None) -> None:
        """Answers a unary call. Does nothing if the call has ended.

        If the message or metadata can't be sent, the call ends with INTERNAL, and the log says why.
        """
        if self._end():
            self._protocol.answer(self, message, trailers)

    def fail(self, code: Code, text: str, trailers: Metadata | None = None) -> None:
        """Ends the call with an error, or a stream with OK. Does nothing if the call has ended."""
        if self._end():
            self._protocol.end(self, code, text, trailers)

    def _end(self) -> bool:
        if self.ended:
            return False
        self.ended = True
        self.on_gone = None  # it may refer to this call
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._protocol.calls.pop(self.stream, None)
        return True

    def _gone(self, code: Code) -> None:
        """The client has left, or its time is over."""
        if self.ended:
            return
        on_gone = self.on_gone
        if code is Code.DEADLINE_EXCEEDED:
            self.why_gone = (code, "the deadline is over")
            self.fail(*self.why_gone)
        else:
            self._end()
        if self._task is not None:
            self._task.cancel()
        if on_gone is not None:
            on_gone(self)


def received(metadata: list[tuple[str, str]]) -> Metadata:
    """Returns metadata of a client with the values of names in -bin as bytes. Leaves out those that are not base64."""
    if not any(name.endswith("-bin") for name, _ in metadata):
        return metadata
    found: list[tuple[str, str | bytes]] = []
    for name, value in metadata:
        if not name.endswith("-bin"):
            found.append((name, value))
            continue
        for part in value.split(","):  # several values may come as one
            try:
                found.append((name, base64.b64decode(part.strip() + "=" * (-len(part.strip()) % 4), validate=True)))
            except (binascii.Error, ValueError):
                continue
    return found


def sendable(metadata: Metadata | None) -> list[tuple[str, str]] | None:
    """Returns metadata as it is sent: the values of names in -bin in base64."""
    if not metadata:
        return None
    return [
        (name, base64.b64encode(value).decode().rstrip("=") if isinstance(value, bytes) else value)
        for name, value in metadata
    ]
