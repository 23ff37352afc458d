"""A file that an event loop reads for a thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable


class LoopReader:
    """Has an event loop call something as long as a file can be read, from any thread and with an end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, file: int, read: Callable[[], None]) -> None:
        self.on = False  # whether the loop is to read
        self._loop = loop
        self._file = os.dup(file)  # it may be closed before the loop knows
        self._read = read
        self._reads = False  # what the loop does. Only that changes it
        self._closed = False
        self._thread = 0

    @property
    def here(self) -> bool:
        """Whether the caller runs on the loop, which has begun to read."""
        return threading.get_ident() == self._thread

    def set(self, on: bool) -> None:
        """Lets the loop begin to read, or end. Does nothing if the loop is closed."""
        self.on = on
        if self.here:
            self._follow()
            return
        try:
            self._loop.call_soon_threadsafe(self._follow)
        except RuntimeError:
            self.on = False

    def close(self) -> None:
        """Ends the reading for good."""
        self.on, self._closed = False, True
        try:
            self._loop.call_soon_threadsafe(self._follow)
        except RuntimeError:
            self._close()

    def _follow(self) -> None:
        self._thread = threading.get_ident()
        if self._file < 0:
            return
        if self.on and not self._reads:
            self._loop.add_reader(self._file, self._read)
        elif self._reads and not self.on:
            self._loop.remove_reader(self._file)
        self._reads = self.on
        if self._closed:
            self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
