"""How a thread and the event loop take turns at one object."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from opgate.service.isolation.loop_reader import LoopReader, runs_on


class Turns:
    """What a thread uses, and the event loop, which does what is small and at hand.

    A hand-over between them costs more than a small message. Whoever is at it has the lock. The loop never waits for
    it: what it can't do at once it leaves to the thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._on_loop = False  # whether this is the loop
        self._over = False
        self._reader: LoopReader | None = None
        self._fault: Exception | None = None  # what the loop has run into
        self._posted: deque[Callable[[Any], None]] = deque()  # what the thread is to do
        self._wake = -1  # wakes the thread

    def _take_small(self) -> bool:
        """Reads something for the loop. Returns whether the loop may go on reading."""
        raise NotImplementedError

    def _leave_to_thread(self) -> None:
        """Wakes the thread without the lock."""
        raise NotImplementedError

    # The loop.

    def do(self, what: Callable[[Any], None]) -> bool:
        """Does something, if that can be done here and at once. Returns whether it was done."""
        reader = self._reader
        if reader is None or not runs_on(reader.loop):
            return False
        if self._on_loop:  # this is part of what is being done here
            what(self)
            return True
        if self._posted or not self._lock.acquire(blocking=False):
            return False
        try:
            if self._over or self._fault is not None:
                return False
            self._by_loop(what)
        finally:
            self._lock.release()
        return True

    def _read_on_loop(self) -> None:
        reader = self._reader
        assert reader is not None
        if not self._lock.acquire(blocking=False):  # the thread does something that may take long
            reader.set(False)
            self._leave_to_thread()
            return
        try:
            if reader.on and not self._over:
                self._by_loop(Turns._take_or_leave)
        finally:
            self._lock.release()

    def _take_or_leave(self) -> None:
        assert self._reader is not None
        if not self._take_small():
            self._reader.set(False)
            self._rouse()

    def _by_loop(self, what: Callable[[Any], None]) -> None:
        """Does something on the loop. The thread raises what that raises."""
        self._on_loop = True
        try:
            what(self)
        except Exception as error:
            self._fault = error
            self._rouse()
        finally:
            self._on_loop = False

    def _rouse(self) -> None:
        """Wakes the thread. Who calls this has the lock, so the thread is still there."""
        os.eventfd_write(self._wake, 1)

    # The thread.

    @property
    def _lent(self) -> bool:
        """Whether the loop reads."""
        return self._reader is not None and self._reader.on

    def _lend(self, loop: asyncio.AbstractEventLoop | None, file: int) -> None:
        """Lets the loop read a file."""
        if self._lent or loop is None:
            return
        with contextlib.suppress(OSError):  # no descriptor is left, so the thread reads
            if self._reader is None:
                self._reader = LoopReader(loop, file, self._read_on_loop)
            self._reader.set(True)

    def _do_posted(self) -> None:
        """Does what others left to the thread, which `_wake` has woken."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._posted:
            self._posted.popleft()(self)

    def _end_turns(self) -> None:
        """Ends the turns of the loop."""
        with self._lock:
            self._over = True
        if self._reader is not None:
            self._reader.close()
