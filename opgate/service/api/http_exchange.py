"""Infer requests over HTTP that take the short way: no ASGI cycle, no task, no copy of a large body.

Only a plain POST to an infer route takes it. Other routes, chunked or compressed bodies, pipelined requests and bodies
over the limit go to the ASGI application. Its infer route gives the same answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from opgate.service.api.status import HTTP, error_body, error_headers
from opgate.service.core.errors import ServingError, detached
from opgate.service.core.tensors import SMALL, Bytes, Parts, aligned_buffer, view
from opgate.service.exchange import Exchange
from opgate.service.gateway import Gateway
from opgate.service.http.asgi import status_line
from opgate.service.http.parser import Head
from opgate.service.http.service import Connection, Options
from opgate.service.telemetry.journal import NO_IDS, Answer, Ids, http_level, ids_of
from opgate.service.wire.compression import wanted_encoding
from opgate.service.wire.kserve_json import encode_counted, encoding_cost, timeout_of

_INFER = re.compile(rb"/v2/models/([A-Za-z0-9_.~-]+)(?:/versions/([0-9]{1,18}))?/infer")
_ROUTE = "/v2/models/{model}/infer"
_ANSWERED = ("http", _ROUTE, "200")
_MAX_ROUTES = 1024
_OF_INTEREST = frozenset((
    b"accept-encoding", b"content-encoding", b"content-length", b"inference-header-content-length", b"traceparent",
    b"transfer-encoding", b"x-request-id",
))  # fmt: skip
# Up to this size it is cheaper to join the parts of an answer and write once than to write several times.
_JOIN_BYTES = 65536


class Framing(NamedTuple):
    """The length of a body, its Inference-Header-Content-Length, and how the client names the request."""

    length: int
    header_length: int | None
    ids: Ids


class InferCycle(Exchange[tuple[int | None, Parts]]):
    """One infer request on a connection."""

    __slots__ = (
        "_body", "_came", "_head", "_header_length", "answered", "arrived", "connection", "keep_alive", "length",
    )  # fmt: skip

    protocol = "http"

    #: Its answer is written at once.
    begun = False

    def __init__(
        self, gateway: Gateway, route: tuple[str, str], framing: Framing, head: Head, connection: Connection
    ) -> None:
        super().__init__(gateway, *route, framing.ids)
        self.connection = connection
        self.length = framing.length
        self.keep_alive = head.keep_alive
        self._head = head
        self.answered = False
        self._header_length = framing.header_length
        self._body: Bytes | None = None
        self._came = 0  # bytes of the body
        self.arrived = not self.length  # whether all of the request has come

    def feed(self, data: bytes) -> None:
        """Takes a piece of the body that came together with the head."""
        if self._body is None and len(data) == self.length:
            self._body, self.arrived = data, True
            return
        memory, came = self.buffer()
        memory[came : came + len(data)] = data
        self._came += len(data)
        self.arrived = self._came == self.length

    def buffer(self) -> tuple[memoryview, int]:
        """Returns memory for the body, with its tensors where NumPy wants them, and how many bytes have come."""
        if self._body is None:
            self._body = aligned_buffer(self.length, self._header_length or 0)
        return view(self._body), self._came

    def filled(self) -> None:
        """Has all of the body."""
        self.arrived = True

    def complete(self) -> None:
        """Reads and submits the request, whose body has come. The answer may be written before this returns."""
        if (served := self.find(self.complete)) is not None:
            body: Bytes = b"" if self._body is None else self._body
            decoder, header_length = served.decoder, self._header_length
            cost = decoder.cost(len(body), header_length)
            self.start(served, cost, lambda: decoder.decode(body, header_length))

    def lost(self) -> None:
        """Cancels the request."""
        if self.request is not None and not self.answered:
            self.request.cancel()
        self.leave()

    def refuse_body(self, size: int) -> bool:
        """Answers that there is no room for the rest of the body."""
        self.keep_alive = False
        self.refuse(self.gateway.no_room(size))
        return True

    def too_slow(self, seconds: float) -> None:
        """Ends the cycle."""
        self.leave(408, f"the client sent nothing of the body for {seconds:g} s")

    @property
    def ended(self) -> bool:
        """Whether the request is answered, or its client has left."""
        return self.answered or self.connection.transport.is_closing()

    @property
    def route(self) -> str:
        """The path, for the journal."""
        return _ROUTE

    @property
    def peer(self) -> str:
        """The address of the client."""
        return self.connection.peer

    @property
    def headers(self) -> Iterator[tuple[str, str]]:
        """The headers of the request."""
        return ((name.decode("latin-1"), value.decode("latin-1")) for name, value in self._head.headers)

    def timeout_us(self) -> int:
        """Returns the timeout among the parameters of the request."""
        body = view(b"" if self._body is None else self._body)
        return timeout_of(body[: len(body) if self._header_length is None else self._header_length])

    encoding_cost = staticmethod(encoding_cost)
    encode = staticmethod(encode_counted)

    def hold(self, size: int) -> bool:
        """Counts the bytes of an answer that is not small."""
        return size <= SMALL or self.connection.counted.hold_answer(size)

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
        connection = self.connection
        journal = self.gateway.journal
        if status != 200 or journal.keeps(self.model, self.began_ns):
            self.tell(str(status), http_level(status), error)
        else:
            journal.counts[_ANSWERED] += 1
        if self.ids is not NO_IDS:
            head += b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in self.ids.pairs())
        transport = connection.transport
        if transport.is_closing():
            self.release()
            return
        close = not self.keep_alive or connection.is_last_answer()
        start = b"%b%bcontent-length: %d\r\n%b%b\r\n" % (
            status_line(status),
            head,
            size,
            connection.default_headers(),
            b"connection: close\r\n" if close else b"",
        )
        if size <= _JOIN_BYTES:
            transport.write(b"".join((start, *parts)))
        else:
            transport.writelines((start, *parts))
        self.release()
        if close:
            transport.close()
        connection.on_answered()

    def leave(self, status: int = 499, error: str = "the client left") -> None:
        """Ends the cycle without an answer. The journal has the status that it would have had."""
        if not self.answered:
            self.tell(str(status), http_level(status), error)
        self.release()

    def release(self) -> None:
        """Ends the cycle. A connection keeps its last one, which must not keep the tensors with it."""
        self.answered = True
        self._body = self.request = None


class HttpService:
    """The gateway, as its connections see it."""

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        self._gateway = gateway
        self._routes: dict[bytes, tuple[str, str]] = {}
        self.budget = gateway.budget
        self.options = Options(
            settings.max_header_bytes, settings.keep_alive_timeout, settings.body_timeout, settings.write_timeout
        )

    @property
    def draining(self) -> bool:
        """Whether the gateway stops."""
        return self._gateway.draining

    @property
    def grace_ends(self) -> float:
        """Until when new requests are answered while it stops, by the event loop's clock."""
        return min(self.stop_ends, self._gateway.stopped_at + self._gateway.settings.shutdown_grace)

    @property
    def stop_ends(self) -> float:
        """When the stop must have ended."""
        return self._gateway.stop_at

    def direct(self, head: Head) -> Callable[[Connection], InferCycle] | None:
        """Returns what makes the cycle of an infer request that takes the short way, None for another request."""
        if head.method != b"POST":
            return None
        route = self._routes.get(head.url) or self._route(head.url)
        if route is None:
            return None
        gateway = self._gateway
        token = gateway.http_tokens.get("inference")
        if token is not None and not token.is_in(lambda name: _text(head.header(name.encode()))):
            return None  # the route answers that the token is missing
        framing = _framing(head)
        if framing is None:
            return None
        json = framing.length if framing.header_length is None else framing.header_length
        if framing.length > gateway.settings.max_body_bytes or json > gateway.settings.max_json_bytes:
            return None
        return partial(InferCycle, gateway, route, framing, head)

    def _route(self, url: bytes) -> tuple[str, str] | None:
        match = _INFER.fullmatch(url)
        if match is None:
            return None
        route = (match[1].decode(), (match[2] or b"").decode())
        if len(self._routes) < _MAX_ROUTES:
            self._routes[url] = route
        return route

    def no_room(self, size: int) -> tuple[int, str]:
        """Returns the status and the text for a request that holds so many bytes more than there is room for."""
        error = self._gateway.no_room(size)
        return HTTP[error.kind], error.message

    def refusal(self, peer: str, status: int, message: str) -> tuple[bytes, bytes]:
        """Tells the journal of data that can't be read as a request. Returns the headers and the body of the answer."""
        self._gateway.journal.answered(Answer("http", "none", str(status), 0, client=peer), error=message)
        headers = b"content-type: application/json\r\n"
        if status == 503:
            headers += b"retry-after: %d\r\n" % self._gateway.settings.retry_after
        return headers, error_body(message)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _framing(head: Head) -> Framing | None:
    """Returns what the headers say about a body. Returns None if they rule out the short way: if the body is chunked,
    compressed or of no stated length, if the answer must be compressed, or if Inference-Header-Content-Length is no
    number."""
    length = -1
    header_length: int | None = None
    request_id = traceparent = ""
    for name, value in head.headers:
        if name not in _OF_INTEREST:
            continue
        if name == b"content-length":
            length = int(value) if value.isdigit() else -1
        elif name == b"inference-header-content-length":
            if not value.isdigit() or len(value) > 18:
                return None
            header_length = int(value)
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
    return Framing(length, header_length, ids)
