"""An asyncio server for gRPC: handlers of unary calls and of streams, deadlines, cancellation, compression, drain."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from service.inflate import ENCODINGS, OverLimit, inflate
from service.rpc.connection import Budget, Connection, ProtocolError

logger = logging.getLogger("opgate.rpc")

Metadata = Sequence[tuple[str, str]]

CALL, OPEN, MESSAGE, END, GONE, REFUSED = range(6)

# Bytes that are read, and bytes that are handed to the transport, at once.
_READ = 1 << 18
_WRITE = 1 << 18
# Events of a connection that are handled in a turn of the event loop.
_EVENTS_A_TURN = 32
# What clients of another protocol get.
_NOT_HTTP2 = b"this port speaks gRPC over HTTP/2\n"


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


@dataclass(frozen=True, slots=True)
class Unary:
    """A method with one message each way.

    `handler` gets a Call and the bytes of the message. It answers with `call.answer` or `call.fail`, at once or later.
    """

    handler: Callable[[Call, bytes], None]


@dataclass(frozen=True, slots=True)
class Stream:
    """A method of which at least one side sends a stream of messages.

    `handler` gets a Call and the messages of the client, and yields those for the client. It may raise RpcError.
    """

    handler: Callable[[Call, AsyncIterator[bytes]], AsyncIterator[bytes]]


Method = Unary | Stream


@dataclass(frozen=True)
class Options:
    """The limits of a server. Sizes are in bytes, times in seconds."""

    max_message_bytes: int = 64 << 20
    max_read_bytes: int = 1 << 30  # of all messages that are being read
    max_header_bytes: int = 16 << 10
    max_streams: int = 10_000  # calls at once of a connection
    keep_alive: float = 7200.0  # until a connection without a call is closed
    write_timeout: float = 60.0  # in which a client takes nothing of what is for it
    tls: ssl.SSLContext | None = None


class Call:
    """One call, until it is answered."""

    __slots__ = ("_encoding", "_messages", "_protocol", "_task", "_timer", "ended", "metadata", "method", "on_gone",
                 "stream")  # fmt: skip

    def __init__(self, protocol: Protocol, stream: int, method: str, metadata: Metadata | None, encoding: str) -> None:
        self.stream = stream
        self.method = method
        self.metadata: Metadata = metadata or ()
        self.ended = False
        self.on_gone: Callable[[Call, Code], None] | None = None  # called when the client has left or its time is over
        self._protocol = protocol
        self._encoding = encoding
        self._messages: asyncio.Queue[bytes | None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def peer(self) -> str:
        """The address of the client."""
        return self._protocol.peer

    def answer(self, message: bytes, trailers: Metadata | None = None) -> None:
        """Answers a unary call. Does nothing if the call has ended."""
        if self._end():
            self._protocol.connection.answer(self.stream, message, trailers, False, "")
            self._protocol.flush_soon()

    def fail(self, code: Code, text: str, trailers: Metadata | None = None) -> None:
        """Ends the call with an error. Does nothing if the call has ended."""
        if self._end():
            self._protocol.connection.end(self.stream, code, text, trailers)
            self._protocol.flush_soon()

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
            self.fail(code, "the deadline is over")
        else:
            self._end()
        if self._task is not None:
            self._task.cancel()
        if on_gone is not None:
            on_gone(self, code)


class Protocol(asyncio.BufferedProtocol):
    """One connection on the event loop."""

    def __init__(self, server: Server) -> None:
        options = server.options
        self.calls: dict[int, Call] = {}
        self.connection = Connection(
            server.numbers, server.budget, options.max_message_bytes, options.max_header_bytes, options.max_streams
        )
        self.peer = ""
        self.transport: asyncio.Transport | None = None
        self._server = server
        self._buffer = server.buffer
        self._loop = asyncio.get_running_loop()
        self._events: deque[tuple[Any, ...]] = deque()
        self._handling = False  # whether a turn of the loop handles events, or one is due
        self._waiting = False  # whether reading is paused
        self._paused = False  # whether writing is
        self._flush_due = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._watch: asyncio.TimerHandle | None = None
        self._last_event = self._last_progress = self._loop.time()
        self._progress = (0, 0)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        self._server.connections.add(self)
        self._look()  # nothing is sent before the client has shown that it speaks HTTP/2

    def _look(self) -> None:
        """Ends the connection of a client that takes nothing, or that has made no call for long."""
        transport, options, now = self.transport, self._server.options, self._loop.time()
        if transport is None:
            return
        left = (self.connection.unsent, transport.get_write_buffer_size())
        if left == (0, 0) or left != self._progress:
            self._progress, self._last_progress = left, now
        elif now - self._last_progress >= options.write_timeout:
            logger.warning(
                "a client took nothing of an answer for %g s", options.write_timeout, extra={"client": self.peer}
            )
            transport.abort()
            return
        if self.connection.calls:
            self._last_event = now
        elif now - self._last_event >= options.keep_alive:
            self.connection.go_away(True)
            self._flush()
        self._watch = self._loop.call_later(min(options.write_timeout, options.keep_alive) / 4, self._look)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._events.extend(self.connection.receive(memoryview(self._buffer)[:nbytes]))
        except ProtocolError as error:
            self._refuse(str(error))
            return
        if not self._handling:
            self._handle_some()

    def _handle_some(self) -> None:
        """Handles some events, and leaves the others to the next turn of the loop, because other connections wait."""
        self._handling = self._flush_due = True  # the flush comes after the events
        for _ in range(min(len(self._events), _EVENTS_A_TURN)):
            self._handle(self._events.popleft())
        self._flush()
        if self._events:
            self._loop.call_soon(self._handle_some)
        else:
            self._handling = False
        self._read_or_wait()

    def _read_or_wait(self) -> None:
        """Reads only from clients that take their answers, and when what they sent before is handled."""
        wait = self._paused or bool(self._events)
        if self.transport is not None and wait != self._waiting:
            self._waiting = wait
            if wait:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def pause_writing(self) -> None:
        self._paused = True
        self._writable.clear()
        self._read_or_wait()

    def resume_writing(self) -> None:
        self._paused = False
        self._read_or_wait()
        self._writable.set()
        self._flush()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self.transport = None
        self._events.clear()
        if self._watch is not None:
            self._watch.cancel()
        self._writable.set()
        for call in list(self.calls.values()):
            call._gone(Code.CANCELLED)
        self._server.connection_closed()

    # What comes from the connection.

    def _handle(self, event: tuple[Any, ...]) -> None:
        kind, stream = event[0], event[1]
        if kind == CALL:
            _, _, number, timeout_us, message, compressed, encoding, metadata = event
            self._start(stream, number, timeout_us, encoding, metadata, message, compressed)
        elif kind == OPEN:
            _, _, number, timeout_us, encoding, metadata = event
            self._start(stream, number, timeout_us, encoding, metadata)
        elif kind == REFUSED:
            self._server.refused(Code(event[2]), event[3], event[4], self.peer)
        elif (call := self.calls.get(stream)) is None:
            return
        elif kind == GONE:
            call._gone(Code.CANCELLED)
        elif call._messages is not None:
            if kind == END:
                call._messages.put_nowait(None)
            elif (message := self._plain(call, event[2], event[3])) is not None:
                call._messages.put_nowait(message)

    def _start(
        self,
        stream: int,
        number: int,
        timeout_us: int,
        encoding: str,
        metadata: Metadata | None,
        message: bytes | None = None,
        compressed: bool = False,
    ) -> None:
        path, method = self._server.methods[number]
        call = Call(self, stream, path, metadata, encoding)
        self.calls[stream] = call
        if timeout_us >= 0:
            call._timer = self._loop.call_later(timeout_us / 1e6, call._gone, Code.DEADLINE_EXCEEDED)
        if isinstance(method, Unary):
            assert message is not None
            plain = self._plain(call, message, compressed)
            if plain is not None:
                try:
                    method.handler(call, plain)
                except RpcError as error:
                    call.fail(error.code, error.text)
                except Exception as error:
                    logger.exception("the handler of %s failed", path)
                    call.fail(Code.INTERNAL, f"{type(error).__name__}: {error}")
            return
        messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        call._messages = messages
        if message is not None:  # the client sends only one
            plain = self._plain(call, message, compressed)
            if plain is None:
                return
            messages.put_nowait(plain)
            messages.put_nowait(None)
        call._task = self._loop.create_task(self._serve(call, method, messages, message is None))

    def _plain(self, call: Call, message: bytes, compressed: bool) -> bytes | None:
        """Returns a message without its compression. Ends the call and returns None if that fails."""
        if not compressed:
            return message
        try:
            return unpack(message, call._encoding, self._server.options.max_message_bytes)
        except RpcError as error:
            if call._task is not None:
                call._task.cancel()
            call.fail(error.code, error.text)
            return None

    async def _serve(
        self, call: Call, method: Stream, messages: asyncio.Queue[bytes | None], client_streams: bool
    ) -> None:
        async def incoming() -> AsyncIterator[bytes]:
            while (message := await messages.get()) is not None:
                if client_streams:
                    self.connection.consume(call.stream, len(message))
                    self.flush_soon()
                yield message

        connection = self.connection
        try:
            connection.begin(call.stream, None, "")
            self.flush_soon()
            async for message in method.handler(call, incoming()):
                connection.send(call.stream, message, False)
                self.flush_soon()
                while connection.waiting(call.stream) > _WRITE and not call.ended:
                    await self._sent()
            code, text = Code.OK, ""
        except RpcError as error:
            code, text = error.code, error.text
        except asyncio.CancelledError:
            code, text = Code.CANCELLED, "the call was cancelled"
        except Exception as error:
            logger.exception("the handler of %s failed", call.method)
            code, text = Code.INTERNAL, f"{type(error).__name__}: {error}"
        call.fail(code, text)

    async def _sent(self) -> None:
        """Waits until the client may have taken something."""
        await self._writable.wait()
        await asyncio.sleep(0.001)

    # What goes.

    def flush_soon(self) -> None:
        """Sends what there is at the end of this turn of the event loop."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        transport = self.transport
        if transport is None:
            return
        connection = self.connection
        try:
            while not self._paused and (out := connection.output(_WRITE)):
                transport.write(out)
        except ProtocolError:
            transport.abort()
            return
        if connection.done:
            transport.close()

    def _refuse(self, text: str) -> None:
        assert self.transport is not None
        if text == "not HTTP/2":
            head = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n"
            self.transport.write(head + b"content-length: %d\r\n\r\n" % len(_NOT_HTTP2) + _NOT_HTTP2)
        else:
            logger.info("a connection of %s is closed: %s", self.peer, text)
            self._flush()
        if self.transport is not None:
            self.transport.close()


def unpack(message: bytes, encoding: str, limit: int) -> bytes:
    """Returns a message without its compression. Raises RpcError."""
    if encoding not in ENCODINGS:
        expected = ", ".join((*ENCODINGS, "identity"))
        raise RpcError(Code.UNIMPLEMENTED, f"grpc-encoding: expected one of {expected}, got {encoding[:40]!r}")
    try:
        return bytes(inflate(message, encoding, limit, "message"))
    except OverLimit as error:
        raise RpcError(Code.RESOURCE_EXHAUSTED, str(error)) from None
    except ValueError as error:
        raise RpcError(Code.INTERNAL, str(error)) from None


class Server:
    """A gRPC server on the running event loop.

    `methods` maps paths such as "/package.Service/Method" to what handles them. `refused` is told of calls that were
    answered with an error before a handler saw them: code, text, path and client.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        options: Options | None = None,
        refused: Callable[[Code, str, str, str], None] = lambda code, text, path, peer: None,
        client_streams: frozenset[str] = frozenset(),
    ) -> None:
        self.options = options or Options()
        self.methods = list(methods.items())
        # A stream whose client sends one message is dispatched when that has come, as a unary call is.
        self.numbers = {path: 2 * i + (path in client_streams) for i, (path, _) in enumerate(self.methods)}
        self.budget = Budget(self.options.max_read_bytes)
        self.buffer = bytearray(_READ)
        self.connections: set[Protocol] = set()
        self.refused = refused
        self._server: asyncio.Server | None = None
        self._closed: asyncio.Event | None = None

    async def start(self, listener: socket.socket) -> None:
        """Begins to accept connections."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Protocol(self), sock=listener, ssl=self.options.tls)

    async def stop(self, seconds: float) -> bool:
        """Stops to listen and to take new calls, and gives the calls under way `seconds` to end.

        Returns whether they did.
        """
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.connection.go_away(False)
            connection._flush()
        await asyncio.sleep(min(0.05, seconds))  # calls that were on their way have come then
        for connection in list(self.connections):
            connection.connection.go_away(True)
            connection._flush()
        self._closed = asyncio.Event()
        if not self.connections:
            return True
        try:
            await asyncio.wait_for(self._closed.wait(), seconds)
        except TimeoutError:
            for connection in list(self.connections):
                if connection.transport is not None:
                    connection.transport.abort()
            return False
        return True

    def connection_closed(self) -> None:
        """A connection has ended."""
        if self._closed is not None and not self.connections:
            self._closed.set()
