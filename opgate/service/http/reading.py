"""Reads from the socket: heads in small pieces, bodies of known length straight into a buffer of the request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from opgate.service.core.tensors import SMALL
from opgate.service.http.held_bytes import HeldBytes

# Bytes of a body that are read at once. NumPy asks for huge pages for arrays of 4 MB and more, and to get one can take
# the kernel ten milliseconds, so a turn of the event loop must not need many.
_PIECE = 1 << 18
_PIECE_OF_LARGE = 1 << 16
_LARGE = 4 << 20


class Owner(Protocol):
    """The connection that lends its transport to a reader."""

    @property
    def counted(self) -> HeldBytes: ...

    def refuse_body(self) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def eof_received(self) -> bool | None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class _Reader(asyncio.BufferedProtocol):
    """Passes on to the connection what is not data."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def eof_received(self) -> bool | None:
        """Tells the connection that the client sends nothing more."""
        return self._owner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells the connection, which knows what was under way."""
        self._owner.connection_lost(exc)

    def forget_owner(self) -> None:
        """Forgets the connection when it is lost: a transport may still know the reader."""
        del self._owner

    def pause_writing(self) -> None:
        """Tells the connection."""
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        """Tells the connection."""
        self._owner.resume_writing()


class HeadReader(_Reader):
    """Gives the connection what comes, in pieces that hold a head and not much of a large body.

    The body of an infer request is then read into its buffer, so only what came with the head is copied. Every
    connection of an event loop can read into the same `piece`, because the connection gets a copy.
    """

    def __init__(self, owner: Owner, piece: bytearray) -> None:
        super().__init__(owner)
        self._piece = piece

    def get_buffer(self, sizehint: int) -> bytearray:
        """Returns the memory for the next piece."""
        return self._piece

    def buffer_updated(self, nbytes: int) -> None:
        """Gives the connection a piece."""
        self._owner.data_received(bytes(memoryview(self._piece)[:nbytes]))


class BodyReader(_Reader):
    """Reads from the transport until the buffer is full, and then calls `complete`.

    It asks for no byte beyond the body, so the next request stays in the socket. The owner counts the bytes that come,
    and is told to refuse the body if there is no room for them.
    """

    def __init__(self, owner: Owner, buffer: memoryview, filled: int, complete: Callable[[], None], now: float) -> None:
        super().__init__(owner)
        self._buffer = buffer
        self._piece = _PIECE if len(buffer) < _LARGE else _PIECE_OF_LARGE
        self.filled = filled
        self._complete = complete
        self._clock = asyncio.get_running_loop().time
        self.last_byte = now  # when the last bytes came, by the event loop's clock

    def release(self) -> None:
        """Gives the buffer back."""
        self._buffer.release()

    def forget_owner(self) -> None:
        """Forgets the connection, to which `complete` belongs, too. Gives the buffer back."""
        super().forget_owner()
        del self._complete
        self.release()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the beginning of the part of the buffer that is still empty.

        The loop fills up to 32 such pieces in a turn, so they bound how long a fast client holds it.
        """
        return self._buffer[self.filled : self.filled + self._piece]

    def buffer_updated(self, nbytes: int) -> None:
        """Counts the bytes that came. Calls `complete` when the buffer is full."""
        self.filled += nbytes
        if not self._owner.counted.hold(nbytes, len(self._buffer) <= SMALL):
            self._owner.refuse_body()
            return
        if self.filled == len(self._buffer):
            self.release()
            self._complete()
        else:
            self.last_byte = self._clock()
