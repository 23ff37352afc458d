"""Ends the connections of clients that don't do their part, and calls that don't go on."""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Callable, Iterable
from typing import Any

from opgate.service.rpc.connection import Connection
from opgate.service.rpc.methods import Options

# How often a connection looks at its client, in parts of the shortest time that the client has for something.
_LOOKS = 4


class Watched(typing.Protocol):
    """A connection on the event loop, as its timer sees it."""

    connection: Connection
    transport: asyncio.Transport | None
    time: Callable[[], float]
    reads: bool
    takes: bool  # whether the client takes what is sent

    def take(self, events: Iterable[tuple[Any, ...]]) -> None:
        """Handles events of the connection."""

    def abort(self, text: str) -> None:
        """Ends the connection at once. `text` says why."""


class Patience:
    """Ends the connection of a client that doesn't speak, answer a ping, or take anything, and one without calls. One
    timer looks at all of it. Times are by the event loop's clock."""

    def __init__(self, watched: Watched, options: Options) -> None:
        self._watched: Watched | None = watched
        self._options = options
        self._interval = min(options.read_timeout, options.write_timeout, options.keepalive_timeout) / _LOOKS
        self.last_read = self._last_call = self._last_sent = watched.time()
        self._pinged = 0.0
        self._left = 0  # bytes that the transport held at the last look
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Looks from now on."""
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)

    def end(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._watched = None  # it refers to this object

    def _look(self) -> None:
        watched, options = self._watched, self._options
        assert watched is not None and watched.transport is not None  # `end` has not been called
        connection, transport, now = watched.connection, watched.transport, watched.time()
        left = transport.get_write_buffer_size()
        if not left or left != self._left:
            self._left, self._last_sent = left, now
        elif now - self._last_sent >= options.write_timeout:
            watched.abort(f"the client took nothing of an answer for {options.write_timeout:g} s")
            return
        if not connection.ready:
            if now - self._last_call >= options.read_timeout:
                watched.abort(f"the client sent no HTTP/2 for {options.read_timeout:g} s")
                return
        elif connection.calls:
            self._last_call = now
        elif now - self._last_call >= options.max_connection_idle:
            connection.go_away(True)
        if not watched.reads or now - self.last_read < options.keepalive_time:
            self._pinged = 0.0
        elif not self._pinged:
            self._pinged = now
            connection.ping()
        elif now - self._pinged >= options.keepalive_timeout:
            watched.abort(f"the client did not answer a ping in {options.keepalive_timeout:g} s")
            return
        # A call can't go on while nothing of its connection is read or sent.
        sweeps_in = round(options.read_timeout / self._interval) if watched.reads else 0
        sweeps_out = round(options.write_timeout / self._interval) if watched.takes else 0
        watched.take(connection.sweep(sweeps_in, sweeps_out))
        self.begin()
