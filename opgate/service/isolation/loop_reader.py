"""How threads use an event loop: whether they run on it, and a file that it reads for them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable


def runs_on(loop: asyncio.AbstractEventLoop) -> bool:
    """Returns whether the caller runs on an event loop."""
    return asyncio._get_running_loop() is loop


class LoopReader:
    """Has an event loop call something as long as a file can be read, from any thread and with an end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, file: int, read: Callable[[], None]) -> None:
        self.on = False  # whether the loop is to read
        self.loop = loop
        self._file = os.dup(file)  # it may be closed before the loop knows
        self._read = read
        self._reads = False  # what the loop does. Only that changes it
        self._closed = False

    def set(self, on: bool) -> None:
        """Lets the loop begin to read, or end. Does nothing if the loop is closed."""
        self.on = on
        if runs_on(self.loop):
            self._follow()
            return
        try:
            self.loop.call_soon_threadsafe(self._follow)
        except RuntimeError:
            self.on = False

    def close(self) -> None:
        """Ends the reading for good."""
        self.on, self._closed = False, True
        try:
            self.loop.call_soon_threadsafe(self._follow)
        except RuntimeError:
            self._close()

    def _follow(self) -> None:
        if self._file < 0:
            return
        if self.on and not self._reads:
            self.loop.add_reader(self._file, self._read)
        elif self._reads and not self.on:
            self.loop.remove_reader(self._file)
        self._reads = self.on
        if self._closed:
            self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
