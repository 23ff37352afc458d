"""Bodies of known length, read from the socket straight into the request's own aligned buffer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

ALIGNMENT = 64


def aligned_buffer(length: int, tensors_at: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Uninitialised memory of `length` bytes whose byte `tensors_at` lies at a multiple of 64."""
    raw = np.empty(length + ALIGNMENT, np.uint8)
    start = -(raw.__array_interface__["data"][0] + tensors_at) % ALIGNMENT
    return raw[start : start + length]


class Owner(Protocol):
    """The connection that lends its transport to a body."""

    transport: asyncio.Transport

    def connection_lost(self, exc: Exception | None) -> None: ...

    def eof_received(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class BodyReader(asyncio.BufferedProtocol):
    """Takes the transport until the buffer is full; asks for no byte beyond, so a next request stays in the socket."""

    def __init__(self, owner: Owner, buffer: memoryview, filled: int, complete: Callable[[], None], now: float) -> None:
        self._owner = owner
        self._buffer = buffer
        self._filled = filled
        self._complete = complete
        self._clock = asyncio.get_running_loop().time
        self.last_byte = now  # loop time

    def get_buffer(self, sizehint: int) -> memoryview:
        """The part that is still empty."""
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Counts what came and hands over when all is there."""
        self._filled += nbytes
        if self._filled == len(self._buffer):
            self._buffer.release()
            self._complete()
        else:
            self.last_byte = self._clock()

    def eof_received(self) -> bool | None:
        """The client stopped in the middle of its body."""
        self._owner.eof_received()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """The owner is who knows what was under way."""
        self._owner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Passed on."""
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        """Passed on."""
        self._owner.resume_writing()
