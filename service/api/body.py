"""Reads bodies of known length from the socket straight into an aligned buffer of the request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

ALIGNMENT = 64


def aligned_buffer(length: int, tensors_at: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns uninitialised memory of `length` bytes. The address of byte `tensors_at` is a multiple of 64."""
    raw = np.empty(length + ALIGNMENT, np.uint8)
    start = -(raw.__array_interface__["data"][0] + tensors_at) % ALIGNMENT
    return raw[start : start + length]


class Owner(Protocol):
    """The connection that lends its transport to a BodyReader."""

    transport: asyncio.Transport

    def connection_lost(self, exc: Exception | None) -> None: ...

    def eof_received(self) -> bool | None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class BodyReader(asyncio.BufferedProtocol):
    """Reads from the transport until the buffer is full, and then calls `complete`.

    It asks for no byte beyond the body, so the next request stays in the socket.
    """

    def __init__(self, owner: Owner, buffer: memoryview, filled: int, complete: Callable[[], None], now: float) -> None:
        self._owner = owner
        self._buffer = buffer
        self.filled = filled
        self._complete = complete
        self._clock = asyncio.get_running_loop().time
        self.last_byte = now  # when the last bytes came, by the event loop's clock

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the part of the buffer that is still empty."""
        return self._buffer[self.filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Counts the bytes that came. Calls `complete` when the buffer is full."""
        self.filled += nbytes
        if self.filled == len(self._buffer):
            self._buffer.release()
            self._complete()
        else:
            self.last_byte = self._clock()

    def eof_received(self) -> bool | None:
        """Tells the owner that the client stopped in the middle of its body."""
        self._owner.eof_received()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells the owner, which knows what was under way."""
        self._owner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Tells the owner."""
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        """Tells the owner."""
        self._owner.resume_writing()
