"""uvicorn's HTTP/1.1 connection with a shortcut for infer requests: no ASGI cycle, no task, no copy of a large body.

Only a plain POST to an infer route takes the shortcut. Other routes, chunked or compressed bodies, pipelined requests
and bodies over the limit go uvicorn's usual way to the ASGI application. Its infer route gives the same answers.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import sys
from typing import Any, NamedTuple

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from opgate.service.api.body import BodyReader, Counted, HeadReader, aligned_buffer
from opgate.service.api.lingering import LingeringTransport
from opgate.service.api.status import HTTP, error_body, error_headers
from opgate.service.core.errors import ServingError, detached
from opgate.service.core.request import Request
from opgate.service.core.tensors import Bytes, Parts, view
from opgate.service.exchange import Exchange
from opgate.service.gateway import SMALL, Gateway
from opgate.service.telemetry.journal import NO_IDS, Answer, Ids, http_level, ids_of
from opgate.service.wire.compression import wanted_encoding
from opgate.service.wire.kserve_json import encode_counted, encoding_cost

logger = logging.getLogger("opgate.http")

#: The undocumented members that this module uses of uvicorn's connection, flow control, server state and request cycle.
#: tests/service/test_connection.py checks that the installed uvicorn has all of them and that this module uses no
#: others. pyproject.toml bounds the version of uvicorn.
UVICORN_MEMBERS = {
    "connection": frozenset(
        ("_start_asgi_task", "_unset_keepalive_if_required", "client", "cycle", "expect_100_continue", "flow",
         "headers", "loop", "on_response_complete", "parser", "pipeline", "send_400_response", "server_state",
         "shutdown", "timeout_keep_alive", "transport", "url")
    ),
    "flow": frozenset(("pause_reading", "read_paused", "resume_reading", "write_paused")),
    "server_state": frozenset(("default_headers", "total_requests")),
    "cycle": frozenset(
        ("body", "disconnected", "keep_alive", "message_event", "more_body", "response_complete", "response_started",
         "scope")
    ),
}  # fmt: skip

_INFER = re.compile(rb"/v2/models/([A-Za-z0-9_.~-]+)(?:/versions/([0-9]{1,18}))?/infer")
_ROUTE = "/v2/models/{model}/infer"
_MAX_ROUTES = 1024
# A connection class keeps at most so many heads, each of at most so many bytes.
_MAX_HEADS = 512
_MAX_HEAD_BYTES = 2048
_BLANK_LINE = b"\r\n\r\n"
_NOT_PLAIN = frozenset((b"content-encoding", b"transfer-encoding"))
_OF_INTEREST = _NOT_PLAIN | {
    b"accept-encoding", b"content-length", b"expect", b"inference-header-content-length", b"traceparent",
    b"x-request-id",
}  # fmt: skip
# A head is kept only if it has no other headers than these.
_USUAL = frozenset((
    b"accept", b"accept-encoding", b"connection", b"content-length", b"content-type", b"host",
    b"inference-header-content-length", b"user-agent",
))  # fmt: skip
_UPGRADE_TOKENS = frozenset((b"upgrade", b"http2-settings"))
# Up to this size it is cheaper to join the parts of an answer and write once than to write several times.
_JOIN_BYTES = 65536
# Requests that a connection may have answered before other connections get their turn.
_REQUESTS_A_TURN = 16
# Bytes that are read at once, until the length of a body is known.
_PIECE = 32768
# Of a chunked body this many bytes are read at once, because the next request may follow anywhere.
_CHUNKED_PIECE = 4096
# The state of a socket whose peer has reset it, see <netinet/tcp.h>.
_TCP_CLOSE = 7
# Where <linux/tcp.h> has tcpi_bytes_acked.
_TCP_BYTES_ACKED = 120
# Seconds between looks at a client that has ended its side: they double from the first to the last.
_FIRST_LOOK, _LAST_LOOK = 0.01, 1.0


class _NoEvent:
    """An event that nobody waits for. uvicorn sets the event of the current cycle when a connection is lost."""

    def set(self) -> None:
        return None


class Framing(NamedTuple):
    """The length of a body, its Inference-Header-Content-Length, whether the client waits for 100 Continue, and how it
    names the request."""

    length: int
    header_length: int | None
    expect: bool
    ids: Ids


class InferCycle(Exchange[tuple[int | None, Parts]]):
    """One infer request on a connection. It has the attributes that uvicorn's connection reads from a request cycle."""

    __slots__ = ("buffer", "disconnected", "filled", "framing", "keep_alive", "length", "message_event", "owner",
                 "response_complete")  # fmt: skip

    protocol = "http"

    def __init__(self, owner: InferConnection, route: tuple[str, str], framing: Framing, keep_alive: bool) -> None:
        super().__init__(owner.gateway, *route, framing.ids)
        self.owner = owner
        self.framing = framing
        self.length = framing.length
        self.keep_alive = keep_alive
        self.buffer: Bytes | None = None
        self.filled = 0
        self.disconnected = False
        self.response_complete = False
        self.message_event = _NO_EVENT

    def feed(self, data: bytes) -> None:
        """Adds a piece of the body that came together with the head."""
        if self.buffer is None:
            if len(data) == self.length:
                self.buffer = data
                self.filled = self.length
                return
            self.buffer = aligned_buffer(self.length, self.framing.header_length or 0)
        end = self.filled + len(data)
        view(self.buffer)[self.filled : end] = data
        self.filled = end

    def complete(self) -> None:
        """Reads and submits the request, whose body has come. The answer may be written before this returns."""
        if (served := self.find()) is not None:
            body: Bytes = b"" if self.buffer is None else self.buffer
            decoder, header_length = served.decoder, self.framing.header_length
            cost = decoder.cost(len(body), header_length)
            self.start(served, cost, lambda: decoder.decode(body, header_length))

    @property
    def ended(self) -> bool:
        """Whether the request is answered, or its client has left."""
        return self.response_complete or self.owner.transport.is_closing()

    @property
    def route(self) -> str:
        """The path, for the journal."""
        return _ROUTE

    @property
    def peer(self) -> str:
        """The address of the client."""
        return self.owner.peer()

    def encoding_cost(self, request: Request) -> int:
        """Returns what encoding the answer costs."""
        return encoding_cost(request)

    def encode(self, request: Request) -> tuple[tuple[int | None, Parts], int]:
        """Returns the length of the answer's JSON if more follows, its parts and their bytes."""
        return encode_counted(request)

    def hold(self, size: int) -> bool:
        """Counts the bytes of the answer."""
        return self.owner.counted.hold_answer(size)

    def send(self, answer: tuple[int | None, Parts], size: int) -> None:
        """Writes the answer."""
        header_length, parts = answer
        if header_length is None:
            head = b"content-type: application/json\r\n"
        else:
            head = b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n" % header_length
        self._write(200, head, parts, size)

    def refuse(self, error: ServingError) -> None:
        """Answers with an error."""
        detached(error)
        head = b"content-type: application/json\r\n"
        for name, value in error_headers(error, self.gateway.settings.retry_after):
            head += f"{name}: {value}\r\n".encode("latin-1")
        body = error_body(error.message)
        self._write(HTTP[error.kind], head, [body], len(body), error.message)

    def _write(self, status: int, head: bytes, parts: Parts, size: int, error: str = "") -> None:
        owner = self.owner
        journal = self.gateway.journal
        if status != 200 or journal.keeps_all:
            self.tell(str(status), http_level(status), error)
        else:
            journal.counts[_ANSWERED] += 1
        if self.ids is not NO_IDS:
            head += b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in self.ids.pairs())
        if owner.transport.is_closing():
            self.release()
            return
        close = not self.keep_alive or owner.is_last_answer()
        start = b"%b%bcontent-length: %d\r\n%b%b\r\n" % (
            STATUS_LINE[status],
            head,
            size,
            owner.default_headers(),
            b"connection: close\r\n" if close else b"",
        )
        if size <= _JOIN_BYTES:
            owner.transport.write(b"".join((start, *parts)))
        else:
            owner.transport.writelines((start, *parts))
        self.release()
        if close:
            owner.transport.close()
        owner.on_response_complete()

    def leave(self, status: int = 499, error: str = "the client left") -> None:
        """Ends the cycle without an answer. The journal has the status that it would have had."""
        if not self.response_complete:
            self.tell(str(status), http_level(status), error)
        self.release()

    def release(self) -> None:
        """Ends the cycle. A connection keeps its last one, which must not keep the tensors with it."""
        self.response_complete = True
        self.buffer = self.request = None


_NO_EVENT = _NoEvent()
_ANSWERED = ("http", _ROUTE, "200")


class _Head:
    """The head of a request, until all of it has come. `size` counts the bytes of pieces that hold nothing else, `held`
    those of all pieces."""

    __slots__ = ("held", "size")

    def __init__(self) -> None:
        self.size = self.held = 0


class InferConnection(HttpToolsProtocol):
    """uvicorn's connection, for `uvicorn.Config(http=...)`. `connection_class` makes a subclass for one Gateway."""

    gateway: Gateway
    _shared_routes: dict[bytes, tuple[str, str]]
    _heads_seen: dict[bytes, tuple[tuple[str, str], Framing]]  # route and framing of heads that came before
    _shared_piece: bytearray  # what HeadReaders read into

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        # State of the connection. Times are by the event loop's clock.
        self._routes: dict[bytes, tuple[str, str]] = self._shared_routes
        self._default: tuple[Any, bytes] = (None, b"")
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_since = self.loop.time()
        self._last_byte = 0.0
        self._refused = False  # whether the connection ignores everything that still comes
        self._held = b""  # what came after the request that is answered now
        self._feeding = False
        self._more_follows = False  # whether the parser has not got all of what came
        self._ended = False  # whether the client sends nothing more
        self._running: Any = None  # the last request that the application got; others may have come behind it
        self._taken = (0, 0.0)  # bytes of answers that the client has taken, and since when it has been so many
        # State of the request that arrives.
        self._body_left: int | None = 0  # bytes of its body that the parser has not got; None if it is chunked
        self._head: _Head | None = None
        self._offers_upgrade = False
        self._trailer_bytes = 0
        self._is_http_1_0 = False
        self._reader: BodyReader | None = None
        self.counted = Counted(self.gateway.budget)
        self._counted_ahead = 0  # bytes of heads and requests that have come and can't be read yet

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(LingeringTransport(transport, self))
        self._heads = HeadReader(self, self._shared_piece)
        self.transport.set_protocol(self._heads)
        self._arm(float(self.timeout_keep_alive))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        cycle: Any = self.cycle
        if isinstance(cycle, InferCycle) and cycle.request is not None and not cycle.response_complete:
            cycle.request.cancel()
        super().connection_lost(exc)
        running, self._running = self._running, None
        if running is not None and not running.response_complete:  # uvicorn tells only the last one that has come
            running.disconnected = True
            running.message_event.set()
        self._held = b""
        self.counted.close()
        self._count_ahead(0)
        # A connection and its parts refer to each other. It forgets them, or they forget it, so that what is left needs
        # no collector of cycles.
        self.cycle = None  # type: ignore[assignment]
        self.pipeline.clear()
        self.transport.forget_owner()  # type: ignore[attr-defined]
        self._heads.forget_owner()
        if self._reader is not None:
            self._reader.forget_owner()
            self._reader = None
        if isinstance(cycle, InferCycle):
            cycle.leave()
        elif cycle is not None:
            cycle.body = b""

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._last_byte = self.loop.time()
        if self._held or self._must_wait():
            self._hold(data)
        else:
            self._take(data)

    def _must_wait(self) -> bool:
        """Returns whether the next request must not be read yet.

        Requests of a connection are answered one after the other, so a client that sends many at once costs no more
        than its bytes.
        """
        cycle: Any = self.cycle
        return self._has_arrived() and (not cycle.response_complete or self.flow.write_paused)

    def _has_arrived(self) -> bool:
        """Returns whether all of the last request has come."""
        cycle: Any = self.cycle
        if cycle is None:
            return False
        return cycle.filled == cycle.length if type(cycle) is InferCycle else not cycle.more_body

    def _hold(self, data: bytes) -> None:
        self._held += data
        self._count_ahead(len(self._held))
        self.flow.pause_reading()

    def _let_go_if_sent(self) -> None:
        """Counts the last request no more if the client has taken its answer, but for what the buffers of the
        connection have."""
        if (
            self.counted.bytes
            and not self.flow.write_paused
            and self.cycle is not None
            and self.cycle.response_complete
        ):
            self.counted.let_go()

    def _count_ahead(self, size: int) -> bool:
        """Counts the bytes of heads and requests that have come and can't be read yet. Returns whether there is room
        for them."""
        more, self._counted_ahead = size - self._counted_ahead, size
        return self.gateway.budget.hold(more, True) or more <= 0

    def refuse_body(self) -> None:
        """Answers that there is no room for the rest of the body, and closes the connection."""
        cycle: Any = self.cycle
        error = self.gateway.no_room(self.counted.bytes)
        self.counted.let_go()
        if type(cycle) is not InferCycle:
            self._refuse(HTTP[error.kind], error.message)
            return
        if self._reader is not None:
            self._reader.release()
            self._reader = None
            self.transport.set_protocol(self._heads)
        self._refused = True
        cycle.keep_alive = False
        cycle.refuse(error)

    def _take(self, data: bytes) -> None:
        """Hands data to the parser, request by request, until one must wait for its answer."""
        at = requests = 0
        self._feeding = True
        while at < len(data) and not self._refused and not self.transport.is_closing():
            if requests and (self._must_wait() or requests == _REQUESTS_A_TURN):
                self._hold(data[at:])
                break
            partial = self._head  # the head of which a part has come
            previous: Any = self.cycle
            in_body = partial is None and self._body_left != 0
            head = b"" if partial is not None or in_body else _head_at(data, at)
            known = self._heads_seen.get(head)
            if known is not None and self._is_free():
                at = self._take_known(data, at + len(head), *known)
                requests += 1
                continue
            end = max(self._piece(data, at), at + 1)
            self._more_follows = end < len(data)
            piece = data if at == 0 and end == len(data) else data[at:end]
            self._feed(piece)
            if head and self.cycle is not previous:
                self._keep_head(head, len(piece))
            at = end
            if self._head is not None and self._head is partial:  # all of this piece belongs to the head
                partial.size += len(piece)
                self._check_head(partial.size)
            requests += not in_body
        self._feeding = self._more_follows = False
        ahead = len(self._held)
        if self._head is not None:
            self._head.held += len(data)
            ahead += self._head.held
        if ahead != self._counted_ahead and not self._count_ahead(ahead) and self._head is not None:
            self._count_ahead(0)
            self._refuse(503, self.gateway.no_room(0).message)
            return
        if self._held:
            self._go_on_soon()
            return
        cycle: Any = self.cycle
        if self.gateway.draining:
            self.shutdown()
        if type(cycle) is InferCycle and cycle.filled < cycle.length and not self.transport.is_closing():
            self._read_body(cycle)

    def _take_known(self, data: bytes, head_end: int, route: tuple[str, str], framing: Framing) -> int:
        """Takes an infer request whose head came before, without the parser. Returns where it ends in the data.

        The parser is between two messages, so it would say the same of the same bytes. It doesn't see the request, and
        `url`, `headers` and `_body_left` stay those of an earlier one: nothing reads them for an InferCycle, and the
        rest of a body is read by `_read_body`.
        """
        self._is_http_1_0 = False
        cycle = InferCycle(self, route, framing, True)
        self.cycle = cycle  # type: ignore[assignment]
        end = min(len(data), head_end + framing.length)
        self._more_follows = end < len(data)
        cycle.feed(data[head_end:end])
        if cycle.filled == cycle.length:
            cycle.complete()
        return end

    def _keep_head(self, head: bytes, size: int) -> None:
        """Keeps the head of the request that has begun with `size` bytes, if the parser found the same end of it and it
        can take the shortcut.

        Other headers than the usual ones may be secrets, or differ from request to request.
        """
        cycle: Any = self.cycle
        if type(cycle) is not InferCycle or len(head) + cycle.filled != size or len(head) > _MAX_HEAD_BYTES:
            return
        if cycle.keep_alive and all(name in _USUAL for name, _ in self.headers):
            if len(self._heads_seen) == _MAX_HEADS:
                del self._heads_seen[next(iter(self._heads_seen))]
            self._heads_seen[head] = ((cycle.model, cycle.version), cycle.framing)

    def _piece(self, data: bytes, at: int) -> int:
        """Returns where a piece ends that has at most the end of one request and not much of the next."""
        if self._head is None and self._body_left is None:
            return min(len(data), at + _CHUNKED_PIECE)
        if self._head is None and self._body_left:
            return min(len(data), at + self._body_left)
        end = data.find(_BLANK_LINE, at)
        # If no other head ends in the data, what follows the head is its body or the beginning of the next one.
        return len(data) if end < 0 or data.find(_BLANK_LINE, end + 4) < 0 else end + 4

    def _go_on_soon(self) -> None:
        if self._held and not self._feeding and not self._must_wait():
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if not self._held or self._refused or self.transport.is_closing() or self._must_wait():
            return
        data, self._held = self._held, b""
        self.flow.resume_reading()
        self._take(data)
        if not self._held:
            self._close_if_ended()

    def is_last_answer(self) -> bool:
        """Returns whether the connection closes after the answer of this request, because the gateway stops."""
        return self.gateway.draining and not self._held and not self._more_follows

    def shutdown(self) -> None:
        """Makes the answer of the last request that has come say that the connection closes then.

        An idle connection stays open for a request that may be on its way, see `close_idle`.
        """
        cycle: Any = self.cycle
        if cycle is not None and type(cycle) is not InferCycle and not cycle.response_complete and not self._held:
            cycle.keep_alive = False

    def peer(self) -> str:
        """Returns the address of the client."""
        return self.client[0] if self.client else ""

    def is_owed(self) -> bool:
        """Returns whether the client still waits for an answer or for the rest of one."""
        if self.transport.get_write_buffer_size():
            return True
        return self._has_arrived() and not self.cycle.response_complete

    def close_idle(self) -> None:
        """Closes the connection unless a request is under way."""
        cycle: Any = self.cycle
        if self._head is None and not self._held and (cycle is None or cycle.response_complete):
            self.transport.close()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._let_go_if_sent()
        self._go_on_soon()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Keeps the connection of a client that sends nothing more but may still wait for answers.

        A client that has left looks the same until something is sent to it.
        """
        cycle: Any = self.cycle
        if self._refused or not self._has_arrived() or (cycle.response_complete and not self._held):
            return None
        if self._ended:  # the transport says it again each time that reading resumes
            return True
        self._ended = True
        # An HTTP/1.0 client knows no such answer. In the middle of another answer it would be a part of that.
        begun = cycle.response_complete or self.pipeline or getattr(cycle, "response_started", False)
        if not begun and not self._is_http_1_0:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._watch_ended(_FIRST_LOOK)
        return True

    def _watch_ended(self, seconds: float) -> None:
        """Looks from time to time whether the client has left. It has if it refused what was sent to it."""
        if self.transport.is_closing():
            return
        if _has_left(self.transport):
            self.transport.abort()
            return
        self.loop.call_later(seconds, self._watch_ended, min(2 * seconds, _LAST_LOOK))

    def _close_if_ended(self) -> None:
        cycle: Any = self.cycle
        if not self._ended or self._held or self._more_follows:
            return
        if cycle is None or cycle.response_complete or not self._has_arrived():  # the rest can't come any more
            self.transport.close()

    def _feed(self, data: bytes) -> None:
        """Hands data to the parser. Replaces uvicorn's method, which drops what comes after an offer to upgrade."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        except httptools.HttpParserUpgrade as offer:
            self._decline_upgrade(data[offer.args[0] :])

    def _decline_upgrade(self, rest: bytes) -> None:
        """Goes on in HTTP/1.1 with a request that offers another protocol, as RFC 9110 (7.8) allows.

        The parser takes the bytes after its head for the other protocol, so a new parser gets the head without the
        offer.
        """
        if self._refused or not self._offers_upgrade:
            return
        self._offers_upgrade = False
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                kept = [token for token in value.split(b",") if token.strip().lower() not in _UPGRADE_TOKENS]
                lines.append(b"connection:" + b",".join(kept))
            elif name not in _UPGRADE_TOKENS:
                lines.append(b"%b: %b" % (name, value))
        self._new_parser()
        self._feed(b"\r\n".join((*lines, b"", rest)))

    def _new_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _check_head(self, size: int) -> None:
        limit = self.gateway.settings.max_header_bytes
        if size > limit:
            self._refuse(431, f"the request's head is over the limit of {limit} bytes")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        """Answers data that can't be read as a request with an error, and closes the connection.

        If an earlier request still waits for its answer, the connection sends only that answer and then closes.
        """
        self._refused = True
        if self.transport.is_closing():
            return
        cycle: Any = self.pipeline[0][0] if self.pipeline else self.cycle
        if cycle is not None and not cycle.response_complete:
            waits_for_body = cycle is self.cycle and not isinstance(cycle, InferCycle) and cycle.more_body
            if not waits_for_body or cycle.response_started:
                cycle.keep_alive = False
                return
            # The data belongs to the body of this request, whose reader would wait for the rest for ever.
            cycle.disconnected = True
            cycle.message_event.set()
        self.gateway.journal.answered(Answer("http", "none", str(status), 0, client=self.peer()), error=message)
        body = error_body(message)
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n" % len(body)
        head += self.default_headers()
        if status == 503:
            head += b"retry-after: %d\r\n" % self.gateway.settings.retry_after
        self.transport.write(STATUS_LINE[status] + head + b"\r\n" + body)
        self.transport.close()

    def _read_body(self, cycle: InferCycle) -> None:
        """Lends the transport to a BodyReader that fills the rest of the request's buffer."""
        if cycle.buffer is None:
            cycle.buffer = aligned_buffer(cycle.length, cycle.framing.header_length or 0)
        if not self.counted.hold(cycle.filled, cycle.length <= SMALL):
            self.refuse_body()
            return

        def complete() -> None:
            self._reader = None
            self.transport.set_protocol(self._heads)
            # The old parser never saw the body and still waits for it.
            self._new_parser()
            self._body_left = 0
            cycle.filled = cycle.length
            cycle.complete()

        self._reader = BodyReader(self, view(cycle.buffer), cycle.filled, complete, self.loop.time())
        self.transport.set_protocol(self._reader)

    # The parser calls the following methods, in this order.

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._head = _Head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is not None:
            self.headers.append((name.lower(), value.strip(b" \t")))  # the parser leaves the space at the end
            return
        # This is a trailer. Nobody reads it, and it must not grow without bound.
        self._trailer_bytes += len(name) + len(value)
        limit = self.gateway.settings.max_header_bytes
        if self._trailer_bytes > limit and not self._refused:
            self._refuse(431, f"the request's trailers are over the limit of {limit} bytes")

    def on_headers_complete(self) -> None:
        self._head = None
        self._trailer_bytes = 0
        self._is_http_1_0 = self.parser.get_http_version() == "1.0"
        self._check_head(len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers))
        # CONNECT asks for another protocol by itself. No route has it.
        self._offers_upgrade = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        self._check_framing()
        if not self._refused and not self._offers_upgrade and self._start_infer_cycle():
            return
        self._body_left = _body_length(self.headers)
        if self._refused or self._offers_upgrade:
            return
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        self.headers.extend(headers)
        self.expect_100_continue = not self._is_http_1_0 and any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in headers
        )
        super().on_headers_complete()
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False

    def _check_framing(self) -> None:
        """Refuses a head that names no host or several, or whose body is coded in a way that nobody here reads."""
        hosts = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding" and value.lower() != b"chunked":
                text = f"Transfer-Encoding: expected chunked, got {value[:40].decode('latin-1')!r}"
                self._refuse(400, text)
                return
        if hosts > 1 or (not hosts and not self._is_http_1_0):
            self._refuse(400, f"expected one header Host, got {hosts or 'none'}")

    def _start_infer_cycle(self) -> bool:
        """Starts an InferCycle if the request can take the shortcut. Returns whether it did."""
        parser = self.parser
        if parser.get_method() != b"POST":
            return False
        route = self._routes.get(self.url) or self._route(self.url)
        if route is None or not self._is_free():
            return False
        token = self.gateway.http_tokens.get("inference")
        if token is not None and not token.is_in(self._header):
            return False  # the route answers that the token is missing
        framing = self._framing()
        if framing is None or not self._within_limits(framing):
            return False
        keep_alive = not self._is_http_1_0 and parser.should_keep_alive()
        self.cycle = InferCycle(self, route, framing, keep_alive)  # type: ignore[assignment]
        self._body_left = framing.length
        if framing.expect and not self._is_http_1_0:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _header(self, name: str) -> str | None:
        """Returns the value of a header of the request that has begun."""
        wanted = name.encode()
        return next((value.decode("latin-1") for key, value in self.headers if key == wanted), None)

    def _is_free(self) -> bool:
        """Returns whether the previous request is answered and its answer sent."""
        cycle: Any = self.cycle
        return (cycle is None or cycle.response_complete) and not self.flow.write_paused

    def _within_limits(self, framing: Framing) -> bool:
        settings = self.gateway.settings
        json = framing.length if framing.header_length is None else framing.header_length
        return framing.length <= settings.max_body_bytes and json <= settings.max_json_bytes

    def _framing(self) -> Framing | None:
        """Returns what the headers say about the body. Returns None if they rule out the shortcut.

        They do so if the body is chunked, compressed or of no stated length, if the answer must be compressed, or if
        Inference-Header-Content-Length is no number.
        """
        length = -1
        header_length: int | None = None
        expect = False
        request_id = traceparent = ""
        for name, value in self.headers:
            if name not in _OF_INTEREST:
                continue
            if name == b"content-length":
                length = int(value) if value.isdigit() else -1
            elif name == b"inference-header-content-length":
                if not value.isdigit() or len(value) > 18:
                    return None
                header_length = int(value)
            elif name == b"expect":
                expect = value.lower() == b"100-continue"
            elif name == b"accept-encoding":
                if wanted_encoding(value.decode("latin-1")):
                    return None
            elif name == b"x-request-id":
                request_id = value.decode("latin-1")
            elif name == b"traceparent":
                traceparent = value.decode("latin-1")
            else:
                return None
        if length < 0:
            return None
        ids = ids_of(request_id, traceparent) if request_id or traceparent else NO_IDS
        return Framing(length, header_length, expect, ids)

    def _route(self, url: bytes) -> tuple[str, str] | None:
        match = _INFER.fullmatch(url)
        if match is None:
            return None
        route = (match[1].decode(), (match[2] or b"").decode())
        if len(self._routes) < _MAX_ROUTES:
            self._routes[url] = route
        return route

    def on_body(self, body: bytes) -> None:
        if self._refused:
            return
        if self._body_left is not None:
            self._body_left -= len(body)
        cycle: Any = self.cycle
        if type(cycle) is InferCycle:
            cycle.feed(body)
            return
        if cycle.response_complete:
            return
        super().on_body(body)
        small = self.counted.bytes + len(body) + (self._body_left or 0) <= SMALL
        if not self.counted.hold(len(body), small):
            self.refuse_body()

    def on_message_complete(self) -> None:
        self._body_left = 0
        if self._refused or self._offers_upgrade:
            return
        cycle: Any = self.cycle
        if type(cycle) is InferCycle:
            cycle.complete()
        else:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        cycle.scope["opgate.counted"] = self.counted
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Goes on to the next request. Replaces uvicorn's method, which starts a timer for each response.

        Here one timer of the connection runs all the time, see `_close_if_idle`.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._let_go_if_sent()
        self._idle_since = self.loop.time()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        elif self._held:
            self._go_on_soon()
        else:
            self.flow.resume_reading()
            self._close_if_ended()

    def _unset_keepalive_if_required(self) -> None:
        return None

    def _arm(self, seconds: float) -> None:
        most = min(float(self.timeout_keep_alive), self.gateway.settings.write_timeout / 4)
        self._idle_timer = self.loop.call_later(max(min(seconds, most), 0.05), self._close_if_idle)

    def _close_if_idle(self) -> None:
        """Closes the connection if it has been idle for too long, or if its client has sent nothing of a promised body
        or taken nothing of an answer for too long."""
        now = self.loop.time()
        settings = self.gateway.settings
        taken = _bytes_taken(self.transport) if self.transport.get_write_buffer_size() else -1
        if taken < 0 or taken != self._taken[0]:
            self._taken = (taken, now)
        elif now - self._taken[1] >= settings.write_timeout:
            who = {"client": self.peer()}
            logger.warning("a client took nothing of an answer for %g s", settings.write_timeout, extra=who)
            self.transport.abort()
            return
        if self.transport.is_closing():  # it closes when everything is sent
            left = settings.write_timeout
        elif self._reader is not None:
            left = self._reader.last_byte + settings.body_timeout - now
        elif self.cycle is None or self.cycle.response_complete:
            left = self._idle_since + self.timeout_keep_alive - now
        elif not isinstance(self.cycle, InferCycle) and self.cycle.more_body and not self.flow.read_paused:
            left = self._last_byte + settings.body_timeout - now
        else:
            left = float(self.timeout_keep_alive)
        if left <= 0:
            if self._reader is not None and isinstance(self.cycle, InferCycle):
                self.cycle.leave(408, f"the client sent nothing of the body for {settings.body_timeout:g} s")
            self.transport.close()
            left = settings.write_timeout
        self._arm(left)

    def default_headers(self) -> bytes:
        """Returns the headers that every answer has. uvicorn replaces them once a second; only then they are joined."""
        headers = self.server_state.default_headers
        if self._default[0] is not headers:
            self._default = (headers, b"".join(b"%b: %b\r\n" % pair for pair in headers))
        return self._default[1]


def _head_at(data: bytes, at: int) -> bytes:
    """Returns the bytes up to the next empty line, with it. Returns none if no such line has come."""
    end = data.find(_BLANK_LINE, at)
    return b"" if end < 0 else data[at : end + 4]


def _body_length(headers: list[tuple[bytes, bytes]]) -> int | None:
    """Returns the announced length of a body, None if it is chunked. The parser refuses lengths that are no numbers."""
    length = 0
    for name, value in headers:
        if name == b"transfer-encoding":
            return None
        if name == b"content-length" and value.isdigit():
            length = int(value)
    return length


def _tcp_info(transport: asyncio.Transport, size: int) -> bytes:
    """Returns the first bytes of the kernel's facts about a connection. It needs no descriptor of its own, because
    those who hold all of them are closed by what it says."""
    peer = socket.socket(fileno=transport.get_extra_info("socket").fileno())
    try:
        return peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    finally:
        peer.detach()


def _has_left(transport: asyncio.Transport) -> bool:
    """Returns whether a client that had ended its side has refused what was sent to it since."""
    return _tcp_info(transport, 1)[0] == _TCP_CLOSE


def _bytes_taken(transport: asyncio.Transport) -> int:
    """Returns how many bytes the client has received."""
    return int.from_bytes(_tcp_info(transport, 128)[_TCP_BYTES_ACKED : _TCP_BYTES_ACKED + 8], sys.byteorder)


def connection_class(gateway: Gateway) -> type[InferConnection]:
    """Returns the connection class of one gateway. uvicorn makes the instances and passes only its own arguments."""
    return type(
        "GatewayConnection",
        (InferConnection,),
        {"gateway": gateway, "_shared_routes": {}, "_heads_seen": {}, "_shared_piece": bytearray(_PIECE)},
    )
