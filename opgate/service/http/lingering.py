"""A transport that closes without taking back what it has sent.

If a socket is closed while bytes of the client are still unread, TCP resets the connection, and the client may lose the
answer that was on its way. So the sending side is ended first, and what still comes is read and dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

# Seconds until a client must have ended its side too.
LINGER = 2.0


class LingeringTransport(asyncio.Transport):
    """Passes everything on to a transport, but closes it as the module says.

    `is_closing` returns whether `close` or `abort` was called, or the connection was lost. The owner must then drop the
    data that it still gets.
    """

    def __init__(self, transport: asyncio.Transport, owner: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._transport = transport
        self._owner: asyncio.BaseProtocol | None = owner
        self._closing = False
        # This is asked several times for each request.
        self.is_closing = transport.is_closing  # type: ignore[method-assign]

    def close(self) -> None:
        """Ends the sending side when everything is sent, and closes when the client has ended its side."""
        if self._closing:
            return
        self._close()
        if self._transport.is_closing() or self._owner is None:
            return
        self._transport.set_protocol(self._owner)
        with contextlib.suppress(OSError, RuntimeError):  # reading was not paused, or the client has left
            self._transport.resume_reading()
        try:
            self._transport.write_eof()
        except (OSError, RuntimeError):
            self._transport.close()
            return
        asyncio.get_running_loop().call_later(LINGER, self._transport.close)

    def forget_owner(self) -> None:
        """Forgets the owner, which must know that the connection is lost."""
        self._owner = None

    def _close(self) -> None:
        self._closing = True
        self.is_closing = lambda: True  # type: ignore[method-assign]

    def write(self, data: bytes) -> None:  # type: ignore[override]
        """Sends bytes, or drops them if nobody gets them any more."""
        if not self.is_closing():
            self._transport.write(data)

    def writelines(self, parts: Iterable[bytes | memoryview]) -> None:  # type: ignore[override]
        """Sends the parts as `write` does."""
        if not self.is_closing():
            self._transport.writelines(parts)

    def abort(self) -> None:
        """Closes at once, and drops what was not sent."""
        self._close()
        self._transport.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Returns a fact about the connection."""
        return self._transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        """Returns the number of bytes that were not sent yet."""
        return self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Sets when the protocol is told to pause."""
        self._transport.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        """Stops to read, unless the connection lingers."""
        if not self._closing:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Reads again."""
        if not self._closing:
            self._transport.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Sets who gets what comes."""
        if not self._closing:
            self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Returns who gets what comes."""
        return self._transport.get_protocol()
