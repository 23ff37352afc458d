"""Shared memory between the gateway and a worker process. Both sides use this module, which needs only NumPy.

The gateway creates every segment and says which one holds what, so a worker that dies leaves nothing behind. The size
of a segment is sealed: a worker can't make it smaller, which would crash the gateway.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import threading
from collections import deque
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

#: Bytes of the smallest segments.
SMALLEST = 1 << 16
#: The numbers of the two segments that a session keeps for runs with small inputs and small outputs.
REPEATED = (1, 2)
#: How many such runs of different shapes both sides remember.
MOST_PLANS = 256


class Segment:
    """A piece of shared memory."""

    __slots__ = ("__weakref__", "file", "memory", "number", "size")

    def __init__(self, number: int, file: int, size: int) -> None:
        """Maps a file that `create` made. The segment closes it in the end."""
        self.number = number
        self.file = file
        self.size = size
        self.memory = mmap.mmap(file, size)

    @classmethod
    def create(cls, number: int, size: int) -> Segment:
        """Makes a segment of at least `size` bytes."""
        rounded = max(SMALLEST, 1 << (size - 1).bit_length()) if size else SMALLEST
        file = os.memfd_create(f"opgate-{number}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(file, rounded)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return cls(number, file, rounded)
        except BaseException:
            os.close(file)
            raise

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self.file)


class Pool:
    """The segments that the gateway shares with the workers of one instance. Any thread may use it."""

    def __init__(self, most_idle_bytes: int = 1 << 28) -> None:
        """Segments that nothing uses are kept as long as they have no more than `most_idle_bytes` together."""
        self._lock = threading.Lock()
        # Segments on their way back. Python may collect a lease anywhere, also in a thread that holds the lock.
        self._returned: deque[Segment] = deque()
        self._idle: list[Segment] = []
        self._idle_bytes = 0
        self._dropped: list[int] = []
        self._most = most_idle_bytes
        self._closed = False
        self._numbers = itertools.count(1)

    def take(self, size: int) -> Segment:
        """Returns a segment of at least `size` bytes that nothing else uses."""
        self._sort_in()
        found = self._fitting(size)
        self._sort_in()
        return found or Segment.create(next(self._numbers), size)

    def _fitting(self, size: int) -> Segment | None:
        with self._lock:
            fitting = [segment for segment in self._idle if size <= segment.size]
            best = min(fitting, key=lambda segment: segment.size, default=None)
            # A much larger one would be missing for a large tensor.
            if best is None or best.size > max(SMALLEST, 4 * size):
                return None
            self._idle.remove(best)
            self._idle_bytes -= best.size
            return best

    def give_back(self, segment: Segment) -> None:
        """Takes back a segment that nothing uses any more."""
        self._returned.append(segment)
        self._sort_in()

    def _sort_in(self) -> None:
        """Makes the segments that have come back idle. If another has the lock, it does so when it has released it."""
        while self._returned and self._lock.acquire(blocking=False):
            try:
                segment = self._returned.popleft() if self._returned else None
                if segment is None or self._closed:
                    continue
                self._idle.append(segment)
                self._idle_bytes += segment.size
                while self._idle_bytes > self._most and len(self._idle) > 1:
                    oldest = self._idle.pop(0)
                    self._idle_bytes -= oldest.size
                    self._dropped.append(oldest.number)
            finally:
                self._lock.release()

    def close(self) -> None:
        """Frees the segments that nothing uses, and from now on each when nothing uses it any more."""
        with self._lock:
            self._closed = True
            self._idle = []
        self._sort_in()

    def dropped(self) -> list[int]:
        """Returns the numbers of the segments that no longer exist, each once."""
        if not self._dropped:
            return self._dropped
        with self._lock:
            numbers, self._dropped = self._dropped, []
        self._sort_in()
        return numbers


class Lease:
    """Gives a segment back when nothing holds the lease any more. Arrays that view the segment hold it."""

    __slots__ = ("_pool", "segment")

    def __init__(self, pool: Pool, segment: Segment) -> None:
        self._pool = pool
        self.segment = segment

    def __del__(self) -> None:
        self._pool.give_back(self.segment)


class View(np.ndarray[Any, np.dtype[Any]]):
    """The bytes of a segment, and the lease on it.

    It is the base of every array that is made of it. NumPy would take its own base instead if that were an array.
    """

    lease: Lease


def leased(pool: Pool, segment: Segment) -> View:
    """Returns the bytes of a segment, which goes back to the pool when no view of them is left."""
    view = View((segment.size,), np.uint8, segment.memory)
    view.lease = Lease(pool, segment)
    return view
