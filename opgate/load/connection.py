"""A connection of HTTP/1.1 that sends prebuilt requests, one after the other. The benchmarks use it, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httptools


class Connection(asyncio.Protocol):
    """A connection that is kept alive and has at most one request under way.

    It calls `answered` when an answer is complete; `status` and `body` are those of this answer. It calls `lost` with
    the reason when the connection has ended.
    """

    def __init__(self, answered: Callable[[Connection], None], lost: Callable[[Connection, str], None]) -> None:
        self._answered = answered
        self._lost = lost
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._complete = False
        self._fault = ""
        self.ended = ""  # why the connection has ended, empty as long as it is open
        self.kept_alive = True  # whether the server takes another request after the last answer
        self.due = 0.0  # when its request was due, for who keeps that
        self.turn: Any = None  # the place of its request in a sequence, for who keeps that

    def send(self, request: bytes) -> None:
        """Sends a request, head and body. There must be none under way."""
        assert self._transport is not None
        self._parts.clear()
        self._transport.write(request)

    def close(self) -> None:
        """Closes the connection once what was written is sent."""
        assert self._transport is not None
        self._transport.close()

    def abort(self) -> None:
        """Resets the connection. The answer under way is lost."""
        assert self._transport is not None
        self._transport.abort()

    @property
    def status(self) -> int:
        """The status of the last answer."""
        return int(self._parser.get_status_code())

    @property
    def body(self) -> bytes:
        """The body of the last answer."""
        return b"".join(self._parts)

    @property
    def address(self) -> str:
        """The IP address of the server."""
        assert self._transport is not None
        return str(self._transport.get_extra_info("peername")[0])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = self._fault or getattr(exc, "strerror", None) or "the server closed the connection"
        self._lost(self, self.ended)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fault = f"the answer is not HTTP: {error}"
            self.abort()
            return
        if self._complete:
            self._complete = False
            self._answered(self)

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        self._complete = True
        self.kept_alive = self._parser.should_keep_alive()  # after this call the parser has forgotten it
