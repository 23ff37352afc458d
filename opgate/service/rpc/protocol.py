"""One connection on the event loop: it calls the handlers of a server, and sends what they answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import typing
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from opgate.service.deflate import ENCODINGS, OverLimit, deflate, inflate
from opgate.service.rpc.call import Call, Code, Message, Metadata, Received, RpcError, sendable
from opgate.service.rpc.connection import Budget, Connection, ProtocolError
from opgate.service.rpc.methods import Method, Options, Stream, Unary
from opgate.service.rpc.patience import Patience

logger = logging.getLogger("opgate.rpc")

CALL, OPEN, MESSAGE, END, GONE, REFUSED = range(6)

# Bytes that are handed to the transport at once.
_WRITE = 1 << 18
# While so many bytes of a connection's answers wait, none of its other calls is handled. Its bytes are still read,
# because they open the windows that the answers wait for, until so many events wait.
_UNSENT = 64 << 20
_EVENTS = 20_000
# Events of a connection that are handled in a turn of the event loop, and the seconds that they may take.
_EVENTS_A_TURN = 32
_TURN = 0.005
# A packed message of so many bytes is unpacked on a thread, and a message of so many is packed there.
_LONG_PACKED = 256
_LONG_PLAIN = 1 << 16
# Smaller messages are not worth packing.
_WORTH_PACKING = 1024
_NO_ROOM = "the calls of this connection, or of all clients, hold all the memory for messages"
# What clients of another protocol get.
_NOT_HTTP2 = b"this port speaks gRPC over HTTP/2\n"


class Server(typing.Protocol):
    """What a connection needs of its server."""

    options: Options
    methods: list[tuple[str, Method]]
    numbers: dict[str, int]  # of the methods, see the native module
    budget: Budget
    share: int  # of the budget that one connection may hold
    buffer: bytearray  # into which all connections read
    view: memoryview
    connections: set[Protocol]
    refused: Callable[[Code, str, str, str], None]
    stopping: bool
    refuses: bool
    threads: ThreadPoolExecutor

    def connection_closed(self) -> None:
        """A connection has ended."""


class Protocol(asyncio.BufferedProtocol):
    """One connection of a server.

    It is long, because reading, calls and sending share what is under way: one flush sends what all calls of a turn
    have given, and what is unsent stops the reading and the calls.
    """

    def __init__(self, server: Server) -> None:
        options = server.options
        self.calls: dict[int, Call] = {}
        self.connection = Connection(
            server.numbers,
            server.budget,
            options.max_message_bytes,
            options.max_header_bytes,
            options.max_streams,
            server.share,
        )
        self.peer = ""
        self.transport: asyncio.Transport | None = None
        self._server = server
        self._buffer = server.buffer
        self._view = server.view
        self._loop = asyncio.get_running_loop()
        self.time = self._loop.time
        self._events: deque[tuple[Any, ...]] = deque()
        self._handling = False  # whether a turn of the loop handles events, or one is due
        self.reads = True  # whether it reads what the client sends
        self.takes = True  # whether the client takes what is sent
        self._flush_due = False
        self._sent = asyncio.Event()
        self._patience = Patience(self, options)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins. Nothing is sent before the client has shown that it speaks HTTP/2."""
        self.transport = transport  # type: ignore[assignment]
        if self._server.stopping:
            transport.abort()  # type: ignore[attr-defined]
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        self._server.connections.add(self)
        self._patience.begin()

    def get_buffer(self, sizehint: int) -> bytearray:
        """Returns the memory for the next bytes. All connections share it, because they are read at once."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Reads bytes of the client."""
        self._patience.last_read = self.time()
        connection = self.connection
        try:
            events = connection.receive(self._view[:nbytes])
        except ProtocolError as error:
            self._refuse(str(error))
            return
        if events:
            self._events.extend(events)
            if not self._handling:
                self._handle_some()
        elif connection.wants_write:  # a part of a message asks for no more than to open a window
            self.flush_soon()

    def pause_writing(self) -> None:
        """The client takes less than there is for it."""
        self.takes = False
        self._go_on()

    def resume_writing(self) -> None:
        """The client takes more."""
        self.takes = True
        self._flush()

    def eof_received(self) -> bool:
        """A client that sends no more gets no answer: HTTP/2 has no connections that are half closed."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends what is under way."""
        self._server.connections.discard(self)
        self.transport = None
        self._events.clear()
        self._patience.end()
        self._sent.set()
        for call in list(self.calls.values()):
            call._gone(Code.CANCELLED)
        self.connection.close()
        self._server.connection_closed()

    def abort(self, text: str) -> None:
        """Ends the connection at once. `text` says why."""
        self._server.refused(Code.UNAVAILABLE, text, "", self.peer)
        if self.transport is not None:
            self.transport.abort()

    def stop(self, last: bool) -> None:
        """Tells the client to make no new calls, as `Connection.go_away` does."""
        if self.transport is not None and not self.connection.ready:
            self.transport.close()
            return
        self.connection.go_away(last)
        if last:  # a handler that waits for more messages would wait for long
            for call in self.calls.values():
                if call._messages is not None:
                    call._messages.put_nowait((None, False))
        self._flush()

    # What comes from the connection.

    def take(self, events: Iterable[tuple[Any, ...]]) -> None:
        """Handles events of the connection."""
        self._events.extend(events)
        if not self._handling:
            self._handle_some()

    def _handle_some(self) -> None:
        """Handles some events, and leaves the others to the next turn of the loop, because other connections wait."""
        self._handling = self._flush_due = True  # the flush comes after the events
        events, end = self._events, 0.0
        for i in range(min(len(events), _EVENTS_A_TURN) if self.connection.unsent < _UNSENT else 0):
            event = events.popleft()
            try:
                self._handle(event)
            except Exception:
                logger.exception("a call could not be handled")
            if events and i % 4 == 3:
                now = self.time()
                end = end or now + _TURN
                if now >= end:
                    break
        self._handling = False
        self._flush()

    def _go_on(self) -> None:
        """Handles the other events in the next turn of the loop, and reads when none waits for that."""
        if self._events and not self._handling and self.connection.unsent < _UNSENT:
            self._handling = True
            self._loop.call_soon(self._handle_some)
        reads = self.takes and not (self._handling and self._events) and len(self._events) <= _EVENTS
        if self.transport is not None and reads != self.reads:
            self.reads = reads
            if reads:
                self._patience.last_read = self.time()
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def _handle(self, event: tuple[Any, ...]) -> None:
        kind, stream = event[0], event[1]
        if kind == CALL:
            _, _, number, timeout_us, message, compressed, encoding, metadata = event
            call, method = self._start(stream, number, timeout_us, encoding, metadata)
            call.compress = compressed
            if method.is_stream:
                call._messages = asyncio.Queue()
                call._messages.put_nowait((message, compressed))
                call._messages.put_nowait(None)
                call._task = self._loop.create_task(self._serve(call, method, False))
            elif compressed:
                call._task = self._loop.create_task(self._unpack_and_run(call, method, message))
            else:
                self._run(call, method, message)
        elif kind == OPEN:
            _, _, number, timeout_us, encoding, metadata = event
            call, method = self._start(stream, number, timeout_us, encoding, metadata)
            call._messages = asyncio.Queue()
            if self._server.refuses:
                call._messages.put_nowait((None, False))
            call._task = self._loop.create_task(self._serve(call, method, True))
        elif kind == REFUSED:
            self._server.refused(Code(event[2]), event[3], event[4], self.peer)
        elif (one := self.calls.get(stream)) is None:
            return
        elif kind == GONE:
            one._gone(Code.CANCELLED)
        elif one._messages is not None:
            one._messages.put_nowait(None if kind == END else (event[2], event[3]))

    def _start(
        self, stream: int, number: int, timeout_us: int, encoding: str, metadata: list[tuple[str, str]] | None
    ) -> tuple[Call, Any]:
        path, method = self._server.methods[number]
        call = self.calls[stream] = Call(self, stream, path, metadata, encoding)
        if timeout_us >= 0:
            seconds = timeout_us / 1e6
            call._deadline = self.time() + seconds
            call._timer = self._loop.call_later(seconds, call._gone, Code.DEADLINE_EXCEEDED)
        return call, method

    def _run(self, call: Call, method: Unary, message: Received) -> None:
        try:
            check_size(message, method.max_bytes)
            method.handler(call, message)
        except RpcError as error:
            call.fail(error.code, error.text)
        except Exception as error:
            self._failed(call, error)

    def _failed(self, call: Call, error: Exception) -> None:
        logger.exception("the handler of %s failed", call.method)
        call.fail(Code.INTERNAL, f"{type(error).__name__}: {error}")

    async def _unpack_and_run(self, call: Call, method: Unary, message: Received) -> None:
        try:
            plain = await self._unpacked(call, message, method.max_bytes)
        except RpcError as error:
            call.fail(error.code, error.text)
        except Exception as error:
            self._failed(call, error)
        else:
            self._run(call, method, plain)

    async def _unpacked(self, call: Call, message: Received, most: int | None) -> bytes:
        options = self._server.options
        limit = options.max_unpacked_bytes or options.max_message_bytes
        work = partial(unpack, message, call._encoding, limit if most is None else min(limit, most))
        if len(message) < _LONG_PACKED:
            plain = work()
        else:
            plain = await self._loop.run_in_executor(self._server.threads, work)
        if not self.connection.hold(call.stream, len(plain)):
            raise RpcError(Code.RESOURCE_EXHAUSTED, _NO_ROOM)
        return plain

    async def _serve(self, call: Call, method: Stream, client_streams: bool) -> None:
        """Runs the handler of a stream."""
        connection, messages = self.connection, call._messages
        assert messages is not None

        async def incoming() -> AsyncIterator[Received]:
            while (item := await messages.get()) is not None:
                message, compressed = item
                if message is None:
                    raise RpcError(Code.UNAVAILABLE, "the server stops")
                call.compress = call.compress or compressed
                plain = await self._unpacked(call, message, method.max_bytes) if compressed else message
                check_size(plain, method.max_bytes)
                yield plain
                # The handler asks for the next one, so it has done with this one.
                if client_streams:
                    if compressed:
                        connection.hold(call.stream, -len(plain))
                    connection.consume(call.stream, len(message))
                    self.flush_soon()
                del item, message, plain  # the next one may not come for long

        try:
            begun = False
            async with contextlib.aclosing(method.handler(call, incoming())) as answers:
                async for message in answers:
                    if not begun:
                        begun = True
                        self._begin(call)
                    packed, parts = await self._packed(call, message)
                    connection.send(call.stream, parts, packed)
                    self.flush_soon()
                    while connection.waiting(call.stream) > _WRITE and not call.ended:
                        self._sent.clear()
                        await self._sent.wait()
                    del message, parts
            code, text = Code.OK, ""
            if not begun:
                self._begin(call)
        except RpcError as error:
            code, text = error.code, error.text
        except asyncio.CancelledError:
            code, text = Code.CANCELLED, "the call was cancelled"
        except Exception as error:
            self._failed(call, error)
            return
        call.fail(code, text)

    # What goes.

    def _begin(self, call: Call) -> None:
        encoding = call._encoding if call._encoding in ENCODINGS else ""  # a later message may be packed
        self.connection.begin(call.stream, sendable(call.initial_metadata), encoding)

    async def _packed(self, call: Call, message: Message) -> tuple[bool, Message]:
        """Returns whether a message is packed, and the message."""
        parts = message if isinstance(message, list) else [message]
        size = size_of(parts)
        if not call.compress or size < _WORTH_PACKING:
            return False, message
        if size < _LONG_PLAIN:
            return True, [*deflate(parts, call._encoding)]
        work = partial(deflate, parts, call._encoding)
        return True, [*await self._loop.run_in_executor(self._server.threads, work)]

    def answer(self, call: Call, message: Message, trailers: Metadata | None) -> None:
        """Answers a unary call."""
        if not call.compress:
            if trailers is None and call.initial_metadata is None:
                try:
                    self.connection.answer(call.stream, message, None, None, False, "")
                    self.flush_soon()
                except Exception as error:  # it is no message
                    self._end_internal(call, error)
            else:
                self._answer(call, message, False, trailers)
            return
        parts: list[bytes | memoryview] = message if isinstance(message, list) else [message]
        size = size_of(parts)
        if size < _LONG_PLAIN:
            worth = size >= _WORTH_PACKING
            self._answer(call, [*deflate(parts, call._encoding)] if worth else message, worth, trailers)
            return
        packing = self._server.threads.submit(deflate, parts, call._encoding)

        def done(packed: Future[list[bytes]]) -> None:
            if (error := packed.exception()) is None:
                self._answer(call, [*packed.result()], True, trailers)
            else:
                self._end_internal(call, error)

        def on_loop(packed: Future[list[bytes]]) -> None:
            self._loop.call_soon_threadsafe(done, packed)

        packing.add_done_callback(on_loop)

    def _answer(self, call: Call, message: Message, packed: bool, trailers: Metadata | None) -> None:
        try:
            initial, encoding = sendable(call.initial_metadata), call._encoding if packed else ""
            self.connection.answer(call.stream, message, sendable(trailers), initial, packed, encoding)
            self.flush_soon()
        except Exception as error:
            self._end_internal(call, error)

    def end(self, call: Call, code: Code, text: str, trailers: Metadata | None) -> None:
        """Ends a call with a status."""
        try:
            self.connection.end(call.stream, code, text, sendable(trailers), sendable(call.initial_metadata))
            self.flush_soon()
        except Exception as error:
            self._end_internal(call, error)

    def _end_internal(self, call: Call, error: BaseException) -> None:
        """Ends a call whose answer can't be sent."""
        logger.error("the answer of %s can't be sent", call.method, exc_info=error)
        text = f"the answer can't be sent: {error}".encode("ascii", "backslashreplace").decode()
        self.connection.end(call.stream, Code.INTERNAL, text, None, None)
        self.flush_soon()

    def flush_soon(self) -> None:
        """Sends what there is at the end of this turn of the event loop."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        connection = self.connection
        try:
            while self.takes and (out := connection.output(_WRITE)):
                if len(out) == 1:
                    transport.write(out[0])
                else:
                    transport.writelines(out)
        except ProtocolError as error:
            self.abort(str(error))
            return
        self._sent.set()
        if connection.done:
            if connection.failure:
                self._server.refused(Code.INTERNAL, f"the client broke HTTP/2: {connection.failure}", "", self.peer)
            transport.close()
        self._go_on()

    def _refuse(self, text: str) -> None:
        transport = self.transport
        assert transport is not None
        if text == "not HTTP/2":
            head = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n"
            transport.write(head + b"content-length: %d\r\n\r\n" % len(_NOT_HTTP2) + _NOT_HTTP2)
            self._server.refused(Code.INTERNAL, "the client does not speak HTTP/2", "", self.peer)
        else:
            self._server.refused(Code.INTERNAL, f"the client broke HTTP/2: {text}", "", self.peer)
            with contextlib.suppress(ProtocolError):
                transport.writelines(self.connection.output(_WRITE))
        transport.close()


def size_of(parts: Iterable[bytes | memoryview]) -> int:
    """Returns the number of bytes in the parts of a message."""
    return sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in parts)


def check_size(message: Received, most: int | None) -> None:
    """Raises RpcError if a message has more bytes than its method takes."""
    if most is not None and len(message) > most:
        raise RpcError(Code.RESOURCE_EXHAUSTED, f"the message has {len(message)} bytes, the limit is {most}")


def unpack(message: Received, encoding: str, limit: int) -> bytes:
    """Returns a message without its compression. Raises RpcError."""
    if encoding in ("", "identity"):
        raise RpcError(Code.INTERNAL, "a message says that it is packed, but the call has no grpc-encoding")
    if encoding not in ENCODINGS:
        expected = ", ".join((*ENCODINGS, "identity"))
        raise RpcError(Code.UNIMPLEMENTED, f"grpc-encoding: expected one of {expected}, got {encoding[:40]!r}")
    try:
        return bytes(inflate(message, encoding, limit, "message"))
    except OverLimit as error:
        raise RpcError(Code.RESOURCE_EXHAUSTED, str(error)) from None
    except ValueError as error:
        raise RpcError(Code.INTERNAL, str(error)) from None
