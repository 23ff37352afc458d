"""A connection: it reads requests, answers them one after the other, and ends when its client does nothing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from opgate.service.core.tensors import SMALL
from opgate.service.http.asgi import Application, AsgiCycle, status_line
from opgate.service.http.held_bytes import HeldBytes
from opgate.service.http.lingering import LingeringTransport
from opgate.service.http.parser import BLANK_LINE, Head, RequestParser
from opgate.service.http.reading import BodyReader, HeadReader
from opgate.service.http.service import Connection, Cycle, DirectCycle, Service
from opgate.service.http.watch import EndedSide, Patience

# Requests that a connection may have answered before other connections get their turn.
_REQUESTS_A_TURN = 16
# Bytes that are read at once, until the length of a body is known.
_PIECE = 32768
# Heads that are kept, each of at most so many bytes.
_MAX_HEADS, _MAX_HEAD_BYTES = 512, 2048
# A head is kept only if it has no other headers than these. Others may be secrets, or differ from request to request.
_USUAL = frozenset((
    b"accept", b"accept-encoding", b"connection", b"content-length", b"content-type", b"host",
    b"inference-header-content-length", b"user-agent",
))  # fmt: skip


class Shared:
    """What the connections of a server share. All of them can read into one piece, because each takes a copy."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.piece = bytearray(_PIECE)
        # What makes the cycles of requests with these heads, which need no ASGI.
        self.heads: dict[bytes, Callable[[Connection], DirectCycle]] = {}

    def connect(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> HttpConnection:
        """Returns a new connection. uvicorn calls this, see its setting `http`."""
        return HttpConnection(self, config.loaded_app, server_state)


class HttpConnection(asyncio.Protocol):
    """A connection of a client.

    A request that needs no ASGI goes to the cycle that the service makes for it, others go to the application. Requests
    of a connection are answered one after the other, and the next one is read when the last one is answered, so a
    client that sends many at once costs no more than their bytes.

    It is long, because what is read next, what is answered next and when the connection closes depend on each other.
    """

    transport: LingeringTransport

    def __init__(self, shared: Shared, application: Application, state: ServerState) -> None:
        self.service = shared.service
        self._shared = shared
        self._application = application
        self._state = state
        self._default: tuple[object, bytes] = (None, b"")
        self._loop = asyncio.get_running_loop()
        self.counted = HeldBytes(self.service.budget)
        self._counted_ahead = 0  # bytes of heads and requests that have come and can't be read yet
        self.client: tuple[str, int] | None = None
        self.server: tuple[str, int] | None = None
        self.scheme = "http"
        self._parser = RequestParser(self, self.service.options.max_header_bytes)
        self.newest: Cycle | None = None  # of the request that arrives, or that has arrived last
        self._http_1_0 = False  # whether its client knows HTTP/1.0 only
        self._direct: tuple[Head, Callable[[Connection], DirectCycle]] | None = None  # what made its cycle
        self._answering: Cycle | None = None  # of the request that is answered now, or has been answered last
        self._waiting: deque[AsgiCycle] = deque()  # those that came behind it
        self._held = b""  # what came after the request that is answered now
        self._taking = False
        self._more_follows = False  # whether the parser has not got all of what came
        self._refused = False  # whether everything that still comes is ignored
        self.reads = True
        self._takes = True  # whether the client takes what is written
        self._writable: asyncio.Event | None = None  # set when it does again
        self._body: BodyReader | None = None
        self._patience: Patience
        self._ended: EndedSide | None = None  # when the client sends nothing more

    # What asyncio calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to read."""
        self._state.connections.add(self)  # type: ignore[arg-type]
        self.transport = LingeringTransport(transport, self)
        self.client, self.server = _address(transport, "peername"), _address(transport, "sockname")
        self.scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        self._heads = HeadReader(self, self._shared.piece)
        self.transport.set_protocol(self._heads)
        self._patience = Patience(self, self.service.options)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells those whose requests have no answer."""
        self._state.connections.discard(self)
        if exc is None:
            self.transport.close()
        self._let_write()
        self._held = b""
        self.counted.close()
        self._count_ahead(0)
        cycles = [self._answering, *self._waiting, self.newest]
        # A connection and its parts refer to each other. It forgets them, or they forget it, so that what is left needs
        # no collector of cycles.
        self._patience.end()
        if self._ended is not None:
            self._ended.end()
        self._answering = self.newest = None
        self._waiting.clear()
        self.transport.forget_owner()
        self._heads.forget_owner()
        self._parser.forget_receiver()
        if self._body is not None:
            self._body.forget_owner()
            self._body = None
        for cycle in dict.fromkeys(cycles):  # some are the same
            if cycle is not None:
                cycle.lost()

    def data_received(self, data: bytes) -> None:
        """Takes what has come, or holds it while the last request has no answer."""
        if self._refused or self.transport.is_closing():
            return
        self._patience.last_byte = self._loop.time()
        if self._held or self._must_wait():
            self._hold(data)
        else:
            self._take(data)

    def eof_received(self) -> bool | None:
        """Keeps the connection of a client that sends nothing more but may still wait for answers.

        A client that has left looks the same until something is sent to it.
        """
        newest = self.newest
        if newest is None or self._refused or not newest.arrived or (newest.answered and not self._held):
            return None
        if self._ended is None:  # the transport says it again each time that reading resumes
            self._ended = EndedSide(self.transport)
            # A client of HTTP/1.0 knows no such answer. In the middle of another answer it would be a part of that.
            if not self._http_1_0 and not newest.answered and not newest.begun and not self._waiting:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def pause_writing(self) -> None:
        """Lets the application wait: the client takes nothing."""
        self._takes = False

    def resume_writing(self) -> None:
        """Goes on."""
        self._let_write()
        self._let_go_if_sent()
        self._go_on_soon()

    # What the server asks.

    def close_idle(self) -> None:
        """Closes the connection unless a request is under way."""
        if not self._parser.in_head and not self._held and (self.newest is None or self.newest.answered):
            self.transport.close()

    def is_owed(self) -> bool:
        """Returns whether the client still waits for an answer or for the rest of one."""
        newest = self.newest
        return bool(self.transport.get_write_buffer_size()) or (
            newest is not None and newest.arrived and not newest.answered
        )

    # What a cycle asks.

    @property
    def peer(self) -> str:
        """The address of the client."""
        return self.client[0] if self.client else ""

    def default_headers(self) -> bytes:
        """Returns the headers that every answer has. uvicorn replaces them once a second; only then they are joined."""
        headers = self._state.default_headers
        if self._default[0] is not headers:
            self._default = (headers, b"".join(b"%b: %b\r\n" % pair for pair in headers))
        return self._default[1]

    def is_last_answer(self) -> bool:
        """Returns whether the connection closes after the answer of this request, because the gateway stops."""
        return self.service.draining and not self._held and not self._more_follows and not self._waiting

    async def writable(self) -> None:
        """Waits until the client takes something, or the connection is lost."""
        while not self._takes:
            if self._writable is None:
                self._writable = asyncio.Event()
            await self._writable.wait()

    def _let_write(self) -> None:
        self._takes = True
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def pause_reading(self) -> None:
        """Reads nothing until `resume_reading`."""
        if self.reads:
            self.reads = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Reads again."""
        if not self.reads:
            self.reads = True
            self.transport.resume_reading()

    def count_body(self, size: int) -> None:
        """Counts bytes of a body that have come. Refuses the rest if there is no room for them."""
        small = self.counted.bytes + size + (self._parser.body_left or 0) <= SMALL
        if not self.counted.hold(size, small):
            self.refuse_body()

    def on_answered(self) -> None:
        """Goes on to the next request: the last answer has been written."""
        self._state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.counted.bytes:
            self._let_go_if_sent()
        self._patience.idle_since = self._loop.time()
        if self._waiting:
            self._run(self._waiting.popleft())
        elif self._held:
            self._go_on_soon()
        else:
            if not self.reads:
                self.resume_reading()
            if self._ended is not None:
                self._close_if_ended()

    # How requests are read.

    def _must_wait(self) -> bool:
        """Returns whether the next request must not be read yet."""
        newest = self.newest
        return newest is not None and newest.arrived and not (newest.answered and self._takes)

    def _is_free(self) -> bool:
        """Returns whether the last request is answered and its answer sent."""
        return (self.newest is None or self.newest.answered) and self._takes

    def _hold(self, data: bytes) -> None:
        self._held += data
        self._count_ahead(len(self._held))
        self.pause_reading()

    def _count_ahead(self, size: int) -> bool:
        """Counts the bytes of heads and requests that have come and can't be read yet. Returns whether there is room
        for them."""
        more, self._counted_ahead = size - self._counted_ahead, size
        return self.service.budget.hold(more, True) or more <= 0

    def _let_go_if_sent(self) -> None:
        """Counts the last request no more if the client has taken its answer, but for what the buffers of the
        connection have."""
        if self.counted.bytes and self.newest is not None and self._is_free():
            self.counted.let_go()

    def _take(self, data: bytes) -> None:
        """Hands data to the parser, request by request, until one must wait for its answer."""
        parser, heads = self._parser, self._shared.heads
        at = requests = 0
        self._taking = True
        while at < len(data) and not self._refused and not self.transport.is_closing():
            if requests and (self._must_wait() or requests == _REQUESTS_A_TURN):
                self._hold(data[at:])
                break
            in_body = not parser.in_head and parser.body_left != 0
            # A head, if all of it has come.
            known = b"" if in_body or parser.in_head else data[at : data.find(BLANK_LINE, at) + 4]
            if (make := heads.get(known)) is not None and self._is_free():
                at = self._take_known(data, at + len(known), make)
                requests += 1
                continue
            self._direct = None
            end = parser.end_of_piece(data, at)
            self._more_follows = end < len(data)  # the parser may have the request answered at once
            parser.feed(data if at == 0 and not self._more_follows else data[at:end])
            if known and self._direct is not None:
                self._keep_head(known, end - at, *self._direct)
            at = end
            requests += not in_body
        self._taking = self._more_follows = False
        self._taken()

    def _taken(self) -> None:
        ahead = len(self._held) + (self._parser.held if self._parser.in_head else 0)
        if ahead != self._counted_ahead and not self._count_ahead(ahead) and self._parser.in_head:
            self._count_ahead(0)
            self.refuse(*self.service.no_room(0))
            return
        if self._held:
            self._go_on_soon()
        elif self.newest is not None and not self.newest.arrived and not self.transport.is_closing():
            self._read_body(self.newest)

    def _take_known(self, data: bytes, head_end: int, make: Callable[[Connection], DirectCycle]) -> int:
        """Takes a request whose head came before, without the parser, which is between two requests and would say the
        same of the same bytes. Returns where it ends in the data."""
        self._http_1_0 = False
        self.newest = self._answering = cycle = make(self)
        end = min(len(data), head_end + cycle.length)
        self._more_follows = end < len(data)
        cycle.feed(data[head_end:end])
        if end == head_end + cycle.length:
            cycle.complete()
        return end

    def _keep_head(self, known: bytes, size: int, head: Head, make: Callable[[Connection], DirectCycle]) -> None:
        """Keeps the head of a request that began with `size` bytes, if the parser found the same end of it."""
        body = (head.length or 0) - (self._parser.body_left or 0)
        if len(known) + body != size or len(known) > _MAX_HEAD_BYTES or not head.keep_alive:
            return
        if all(name in _USUAL for name, _ in head.headers):
            heads = self._shared.heads
            if len(heads) == _MAX_HEADS:
                del heads[next(iter(heads))]
            heads[known] = make

    def _go_on_soon(self) -> None:
        if self._held and not self._taking and not self._must_wait():
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if not self._held or self._refused or self.transport.is_closing() or self._must_wait():
            return
        data, self._held = self._held, b""
        self.resume_reading()
        self._take(data)
        if not self._held:
            self._close_if_ended()

    def _close_if_ended(self) -> None:
        if self._ended is None or self._held or self._more_follows:
            return
        if self.newest is None or self.newest.answered or not self.newest.arrived:  # the rest can't come any more
            self.transport.close()

    def _read_body(self, cycle: Cycle) -> None:
        """Lends the transport to a BodyReader that fills the rest of the memory for the body, if there is some."""
        memory = cycle.buffer()
        if memory is None:
            return
        buffer, filled = memory
        if not self.counted.hold(filled, len(buffer) <= SMALL):
            self.refuse_body()
            return

        def complete() -> None:
            self._body = None
            self.transport.set_protocol(self._heads)
            self._parser.reset()  # it never saw the body and still waits for it
            cycle.filled()
            cycle.complete()

        self._body = BodyReader(self, buffer, filled, complete, self._loop.time())
        self.transport.set_protocol(self._body)

    @property
    def body_came(self) -> float | None:
        """When the last bytes of a body came that is read without the parser, None if none is."""
        return None if self._body is None else self._body.last_byte

    # What the parser finds.

    def begin(self, head: Head) -> None:
        """Begins a request."""
        self._http_1_0 = head.http_1_0
        make = self.service.direct(head) if self._is_free() else None
        if make is not None:
            self._direct = (head, make)
            self.newest = self._answering = make(self)
            if head.expects_continue:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        try:
            cycle = AsgiCycle(self, head)
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            self.refuse(400, f"the target {head.url[:80].decode('latin-1')!r} is no URL")
            return
        busy = self.newest is not None and not self.newest.answered
        self.newest = cycle
        if busy:
            self.pause_reading()
            self._waiting.append(cycle)
        else:
            self._run(cycle)

    def on_body(self, data: bytes) -> None:
        """Takes a part of the body of the newest request."""
        assert self.newest is not None
        self.newest.feed(data)

    def end(self) -> None:
        """Ends the newest request."""
        assert self.newest is not None
        self.newest.complete()

    def _run(self, cycle: AsgiCycle) -> None:
        self._answering = cycle
        task = self._loop.create_task(cycle.run(self._application))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def refuse_body(self) -> None:
        """Answers that there is no room for the rest of the body, and closes the connection."""
        size = self.counted.bytes
        self.counted.let_go()
        if self._body is not None:
            self._body.release()
            self._body = None
            self.transport.set_protocol(self._heads)
        self._stop_reading()
        if self.newest is None or not self.newest.refuse_body(size):
            self.refuse(*self.service.no_room(size))

    def refuse(self, status: int, message: str) -> None:
        """Answers data that can't be read as a request with an error, and closes the connection.

        If an earlier request still waits for its answer, the connection sends only that answer and then closes.
        """
        self._stop_reading()
        if self.transport.is_closing():
            return
        newest = self.newest
        if newest is not None and not newest.answered:
            if newest.arrived or newest.begun:
                newest.keep_alive = False
                return
            newest.lost()  # the data belongs to its body, and the rest of that never comes
            if self._waiting:
                self._waiting.pop()
                last = self._waiting[-1] if self._waiting else self._answering
                assert last is not None
                last.keep_alive = False
                return
        headers, body = self.service.refusal(self.peer, status, message)
        length = b"connection: close\r\ncontent-length: %d\r\n" % len(body)
        self.transport.write(b"".join((status_line(status), headers, length, self.default_headers(), b"\r\n", body)))
        self.transport.close()

    def _stop_reading(self) -> None:
        """Ignores everything that still comes."""
        self._refused = True
        self._parser.stop()


def _address(transport: asyncio.Transport, name: str) -> tuple[str, int] | None:
    """Returns the host and the port of one end, None if it has none."""
    address = transport.get_extra_info(name)
    return (str(address[0]), int(address[1])) if isinstance(address, tuple | list) and len(address) >= 2 else None
