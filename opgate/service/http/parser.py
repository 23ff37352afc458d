"""Finds the requests in the bytes of a connection, with httptools."""

from __future__ import annotations

import logging
from typing import NamedTuple, Protocol

import httptools

logger = logging.getLogger("opgate.http")

BLANK_LINE = b"\r\n\r\n"
# Of a chunked body this many bytes are read at once, because the next request may follow anywhere.
_CHUNKED_PIECE = 4096
_UPGRADE_TOKENS = frozenset((b"upgrade", b"http2-settings"))

Headers = list[tuple[bytes, bytes]]


class Head(NamedTuple):
    """The head of a request. Names of headers are in lower case. `length` is that of the body, None if it is
    chunked."""

    method: bytes
    url: bytes
    headers: Headers
    http_1_0: bool
    keep_alive: bool
    length: int | None

    def header(self, name: bytes) -> bytes | None:
        """Returns the first value of a header, None if there is none."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def expects_continue(self) -> bool:
        """Whether the client sends the body when it has been told to go on."""
        return not self.http_1_0 and any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in self.headers
        )


class Receiver(Protocol):
    """Who gets the requests that a parser finds."""

    def begin(self, head: Head) -> None:
        """A request begins."""

    def on_body(self, data: bytes) -> None:
        """Takes a part of its body."""

    def end(self) -> None:
        """The request has come."""

    def refuse(self, status: int, message: str) -> None:
        """Answers what can't be read as a request. It calls `stop` of the parser."""


class RequestParser:
    """The parser of a connection."""

    def __init__(self, receiver: Receiver, max_header_bytes: int) -> None:
        self._receiver = receiver
        self._max_header_bytes = max_header_bytes
        self.body_left: int | None = 0  # bytes of the body that have not come; None if it is chunked
        self.in_head = False  # whether a part of a head has come
        self.held = 0  # bytes of the pieces with that head
        self._head_only = 0  # those of the pieces that hold nothing else
        self._heads = 0  # that have begun
        self._trailer_bytes = 0
        self._stopped = False
        self._offers_upgrade = False
        self._url = b""
        self._headers: Headers = []
        self.reset()

    def reset(self) -> None:
        """Expects the beginning of a request. The rest of a body was read without the parser."""
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.body_left = 0

    def stop(self) -> None:
        """Reports nothing more."""
        self._stopped = True

    def forget_receiver(self) -> None:
        """Forgets the receiver, and httptools' parser, which refers to this one."""
        self._stopped = True
        del self._parser, self._receiver

    def feed(self, piece: bytes) -> None:
        """Reads a piece of what came, see `end_of_piece`."""
        begun = self._heads if self.in_head else 0
        self._parse(piece)
        if self.in_head:
            self.held += len(piece)
            if begun == self._heads:
                self._head_only += len(piece)
                self._check_head(self._head_only)

    def end_of_piece(self, data: bytes, at: int) -> int:
        """Returns where the next piece of data ends, which begins at `at`. It has at most the end of one request, and
        not much of the next."""
        if not self.in_head and self.body_left is None:
            return min(len(data), at + _CHUNKED_PIECE)
        if not self.in_head and self.body_left:
            return min(len(data), at + self.body_left)
        end = data.find(BLANK_LINE, at)
        # If no other head ends in the data, what follows the head is its body or the beginning of the next one.
        return len(data) if end < 0 or data.find(BLANK_LINE, end + 4) < 0 else end + 4

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline_upgrade(data[offer.args[0] :])
        except httptools.HttpParserCallbackError as error:
            logger.exception("a request could not be taken", exc_info=error)
            self._receiver.refuse(500, "internal error")
        except httptools.HttpParserError as error:
            self._receiver.refuse(400, f"the data is no HTTP request: {error}")

    def _decline_upgrade(self, rest: bytes) -> None:
        """Goes on in HTTP/1.1 with a request that offers another protocol, as RFC 9110 (7.8) allows.

        httptools takes the bytes after its head for the other protocol, so a new parser gets the head without the
        offer.
        """
        if self._stopped or not self._offers_upgrade:
            return
        self._offers_upgrade = False
        lines = [b"%b %b HTTP/%b" % (self._parser.get_method(), self._url, self._parser.get_http_version().encode())]
        for name, value in self._headers:
            if name == b"connection":
                kept = [token for token in value.split(b",") if token.strip().lower() not in _UPGRADE_TOKENS]
                lines.append(b"connection:" + b",".join(kept))
            elif name not in _UPGRADE_TOKENS:
                lines.append(b"%b: %b" % (name, value))
        self.reset()
        self._parse(b"\r\n".join((*lines, b"", rest)))

    def _check_head(self, size: int) -> None:
        if size > self._max_header_bytes:
            self._receiver.refuse(431, f"the request's head is over the limit of {self._max_header_bytes} bytes")

    # httptools calls these, in this order.

    def on_message_begin(self) -> None:
        """Begins a head."""
        self.in_head = True
        self.held = self._head_only = 0
        self._heads += 1
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        """Takes a part of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header, or a trailer: nobody reads those, and they must not grow without bound."""
        if self.in_head:
            self._headers.append((name.lower(), value.strip(b" \t")))  # httptools leaves the space at the end
            return
        self._trailer_bytes += len(name) + len(value)
        limit = self._max_header_bytes
        if self._trailer_bytes > limit and not self._stopped:
            self._receiver.refuse(431, f"the request's trailers are over the limit of {limit} bytes")

    def on_headers_complete(self) -> None:
        """Begins a request."""
        self.in_head = False
        self._trailer_bytes = 0
        parser, headers = self._parser, self._headers
        http_1_0 = parser.get_http_version() == "1.0"
        self._check_head(len(self._url) + sum(len(name) + len(value) + 4 for name, value in headers))
        # CONNECT asks for another protocol by itself. No route has it.
        upgrade = parser.should_upgrade()
        self._offers_upgrade = upgrade and parser.get_method() != b"CONNECT"
        self._check_framing(http_1_0)
        self.body_left = length = _body_length(headers)
        if not self._stopped and not self._offers_upgrade:
            keep_alive = not http_1_0 and not upgrade and parser.should_keep_alive()
            self._receiver.begin(Head(parser.get_method(), self._url, headers, http_1_0, keep_alive, length))

    def _check_framing(self, http_1_0: bool) -> None:
        """Refuses a head that names no host or several, or whose body is coded in a way that nobody here reads."""
        hosts = 0
        for name, value in self._headers:
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding" and value.lower() != b"chunked":
                given = value[:40].decode("latin-1")
                self._receiver.refuse(400, f"Transfer-Encoding: expected chunked, got {given!r}")
                return
        if hosts > 1 or (not hosts and not http_1_0):
            self._receiver.refuse(400, f"expected one header Host, got {hosts or 'none'}")

    def on_body(self, body: bytes) -> None:
        """Takes a part of a body."""
        if self._stopped:
            return
        if self.body_left is not None:
            self.body_left -= len(body)
        self._receiver.on_body(body)

    def on_message_complete(self) -> None:
        """Ends a request."""
        self.body_left = 0
        if not self._stopped and not self._offers_upgrade:
            self._receiver.end()


def _body_length(headers: Headers) -> int | None:
    """Returns the announced length of a body, None if it is chunked. httptools refuses lengths that are no numbers."""
    length = 0
    for name, value in headers:
        if name == b"transfer-encoding":
            return None
        if name == b"content-length" and value.isdigit():
            length = int(value)
    return length
