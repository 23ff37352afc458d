"""Ends the connections of clients that do nothing, or that have left."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from typing import Protocol

from opgate.service.http.service import Connection, Cycle, Options

logger = logging.getLogger("opgate.http")

# The state of a socket whose peer has reset it, see <netinet/tcp.h>.
_TCP_CLOSE = 7
# Where <linux/tcp.h> has tcpi_bytes_acked.
_TCP_BYTES_ACKED = 120
# Seconds between looks at a client that has ended its side: they double from the first to the last.
_FIRST_LOOK, _LAST_LOOK = 0.01, 1.0


class Watched(Connection, Protocol):
    """A connection, as its timer sees it."""

    @property
    def newest(self) -> Cycle | None:
        """The request that arrives, or that has arrived last."""

    @property
    def reads(self) -> bool:
        """Whether it reads what comes."""

    @property
    def body_came(self) -> float | None:
        """When the last bytes of a body came that is read without the parser, None if none is."""


class Patience:
    """Closes a connection that is idle for too long, whose client has sent nothing of a promised body for too long, or
    has taken nothing of an answer. One timer looks at all of it. Times are by the event loop's clock."""

    def __init__(self, connection: Watched, options: Options) -> None:
        self._connection: Watched | None = connection
        self._options = options
        self._loop = asyncio.get_running_loop()
        self.idle_since = self._loop.time()  # when the last request was answered
        self.last_byte = self.idle_since  # when the client sent something last
        self._taken = (0, 0.0)  # bytes of answers that the client has taken, and since when it has been so many
        self._arm(options.keep_alive_timeout)

    def end(self) -> None:
        """Looks no more."""
        self._timer.cancel()
        self._connection = None

    def _arm(self, seconds: float) -> None:
        most = min(self._options.keep_alive_timeout, self._options.write_timeout / 4)
        self._timer = self._loop.call_later(max(min(seconds, most), 0.05), self._look)

    def _look(self) -> None:
        connection, options, now = self._connection, self._options, self._loop.time()
        assert connection is not None
        if self._takes_nothing(connection.transport, now):
            who = {"client": connection.peer}
            logger.warning("a client took nothing of an answer for %g s", options.write_timeout, extra=who)
            connection.transport.abort()
            return
        newest, body_came = connection.newest, connection.body_came
        waits = newest is not None and not newest.answered
        if body_came is None and newest is not None and waits and not newest.arrived and connection.reads:
            body_came = self.last_byte
        if connection.transport.is_closing():  # it closes when everything is sent
            left = options.write_timeout
        elif body_came is not None:
            left = body_came + options.body_timeout - now
        elif waits:
            left = options.keep_alive_timeout
        else:
            left = self.idle_since + options.keep_alive_timeout - now
        if left <= 0:
            if body_came is not None and newest is not None:
                newest.too_slow(options.body_timeout)
            connection.transport.close()
            left = options.write_timeout
        self._arm(left)

    def _takes_nothing(self, transport: asyncio.Transport, now: float) -> bool:
        taken = _bytes_taken(transport) if transport.get_write_buffer_size() else -1
        if taken < 0 or taken != self._taken[0]:
            self._taken = (taken, now)
        return now - self._taken[1] >= self._options.write_timeout


class EndedSide:
    """Looks from time to time whether a client that sends nothing more has left, and then aborts the connection. It has
    left if it refused what was sent to it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._timer: asyncio.TimerHandle | None = None
        self._look(_FIRST_LOOK)

    def end(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, seconds: float) -> None:
        if self._transport.is_closing():
            return
        if _has_left(self._transport):
            self._transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._look, min(2 * seconds, _LAST_LOOK))


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
