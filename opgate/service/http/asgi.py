"""One request for the ASGI application, as the HTTP part (2.3) of the ASGI specification says."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import httptools

from opgate.service.http.parser import Head
from opgate.service.http.service import Connection

logger = logging.getLogger("opgate.http")

Message = MutableMapping[str, Any]
Application = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

# A body that the application has not taken is read no further beyond so many bytes.
_HIGH_WATER = 1 << 16
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_IN_A_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_WITHOUT_BODY = frozenset((204, 304))


def status_line(status: int) -> bytes:
    """Returns the first line of an answer."""
    line = _LINES.get(status)
    return b"HTTP/1.1 %d \r\n" % status if line is None else line


_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class AsgiCycle:
    """A request of a connection, and the answer of the application."""

    __slots__ = ("_body", "_chunked", "_connection", "_head", "_left", "_news", "_wants_continue", "answered",
                 "arrived", "begun", "disconnected", "keep_alive", "scope")  # fmt: skip

    def __init__(self, connection: Connection, head: Head) -> None:
        self._connection = connection
        self._head = head
        self.keep_alive = head.keep_alive
        self.arrived = False  # whether all of the request has come
        self.begun = False  # whether the answer has begun
        self.answered = False
        self.disconnected = False
        self._wants_continue = head.expects_continue
        self._body = bytearray()
        self._news = asyncio.Event()  # set when there is something to receive
        self._chunked = False
        self._left = 0  # bytes of the announced answer that have not been sent
        target = httptools.parse_url(head.url)
        raw_path = target.path or b"/"  # of an address without a path
        path = raw_path.decode("ascii")
        self.scope: MutableMapping[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.0" if head.http_1_0 else "1.1",
            "method": head.method.decode("ascii"),
            "scheme": connection.scheme,
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": target.query or b"",
            "root_path": "",
            "headers": head.headers,
            "client": connection.client,
            "server": connection.server,
            "state": {},
            "opgate.counted": connection.counted,
        }

    # What the connection calls.

    def feed(self, data: bytes) -> None:
        """Takes a part of the body."""
        if self.answered:
            return
        self._body += data
        if len(self._body) > _HIGH_WATER:
            self._connection.pause_reading()
        self._news.set()
        self._connection.count_body(len(data))

    def complete(self) -> None:
        """Knows that the request has come."""
        self.arrived = True
        self._news.set()

    def buffer(self) -> None:
        """Has no memory for the rest of the body: its parts are given to `feed`."""

    def filled(self) -> None:
        """Is never called."""

    def lost(self) -> None:
        """Tells the application that the client has left."""
        self.disconnected = True
        self._body.clear()
        self._news.set()

    def refuse_body(self, size: int) -> bool:
        """Leaves it to the connection to answer that there is no room for the rest of the body."""
        return False

    def too_slow(self, seconds: float) -> None:
        """Gets the loss of the connection, which follows."""

    async def run(self, application: Application) -> None:
        """Runs the application. A failure of it before its answer begins is answered with 500."""
        request = f"{self.scope['method']} {self.scope['path']}"
        try:
            await application(self.scope, self.receive, self.send)
            if not self.answered and not self.disconnected:
                logger.error("%s ended without a whole answer", request)
        except Exception:
            logger.exception("%s failed", request)
        finally:
            if not self.answered and not self.disconnected:
                self._give_up()

    def _give_up(self) -> None:
        """Ends a request that the application has left without a whole answer."""
        self.keep_alive = False
        if self.begun:
            self._connection.transport.close()
            return
        body = b'{"error":"internal error"}'
        self._start(500, ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))))
        self._send_body(body, more=False)

    # What the application calls.

    async def receive(self) -> Message:
        """Returns the next part of the body, or that the client has left or got its answer."""
        if self._wants_continue and not self.begun:
            self._wants_continue = False
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self.disconnected and not self.answered:
            self._connection.resume_reading()
            await self._news.wait()
            self._news.clear()
        if self.disconnected or self.answered:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": not self.arrived}

    async def send(self, message: Message) -> None:
        """Sends the head or a part of the body. Waits while the client takes nothing. Raises RuntimeError for what is
        no answer."""
        await self._connection.writable()
        if self.disconnected:
            return
        kind = message["type"]
        if kind == "http.response.start" and not self.begun:
            self._start(message["status"], message.get("headers", ()))
        elif kind == "http.response.body" and self.begun and not self.answered:
            self._send_body(message.get("body", b""), more=message.get("more_body", False))
        else:
            expected = "the end" if self.answered else "http.response." + ("body" if self.begun else "start")
            raise RuntimeError(f"expected {expected} of the answer, got {kind}")

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        parts = [status_line(status), self._connection.default_headers()]
        length: int | None = None
        for given, value in headers:
            name = given.lower()
            if not _NAME.fullmatch(name) or _NOT_IN_A_VALUE.search(value):
                raise RuntimeError(f"{name!r}: {value!r} is no header")
            if name == b"content-length":
                length = int(value)
            elif name == b"connection":
                self.keep_alive = self.keep_alive and b"close" not in value.lower()
                continue
            parts.append(b"%b: %b\r\n" % (name, value))
        if self._head.method == b"HEAD" or status in _WITHOUT_BODY:
            length = 0
        elif length is None:
            # A client of HTTP/1.0 knows no chunks: the body ends with the connection.
            self._chunked = not self._head.http_1_0
            self.keep_alive = self.keep_alive and self._chunked
            parts.append(b"transfer-encoding: chunked\r\n" if self._chunked else b"")
        self._left = -1 if length is None else length
        self.keep_alive = self.keep_alive and not self._connection.is_last_answer()
        parts.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        self.begun = True
        self._wants_continue = False
        self._connection.transport.write(b"".join(parts))

    def _send_body(self, body: bytes, *, more: bool) -> None:
        transport = self._connection.transport
        if self._chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            transport.write(chunk if more else chunk + b"0\r\n\r\n")
        elif self._left < 0:
            transport.write(body)
        elif self._head.method != b"HEAD":
            if len(body) > self._left or (len(body) < self._left and not more):
                raise RuntimeError(f"expected {self._left} more bytes of the answer, got {len(body)}")
            self._left -= len(body)
            transport.write(body)
        if not more:
            self.answered = True
            self._news.set()
            if not self.keep_alive or self._connection.is_last_answer():  # the stop may have begun meanwhile
                transport.close()
            self._connection.on_answered()
