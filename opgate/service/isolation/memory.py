"""Memory that the gateway shares with a worker process. Both sides use this module, which needs only NumPy.

The gateway makes it, and its size is sealed: a worker can't make it smaller, which would crash the gateway. A worker
can write to it at any moment, so the gateway copies what it reads before it looks at it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


_BLOCK = 512  # bytes of a block in stat(2)


class SharedMemory:
    """A piece of shared memory. Pages that nobody has touched cost nothing."""

    __slots__ = ("file", "memory", "size")

    def __init__(self, file: int, size: int) -> None:
        """Maps a file that `create` made. The object closes it in the end."""
        self.file = file
        self.size = size
        self.memory = mmap.mmap(file, size)

    @classmethod
    def create(cls, name: str, size: int) -> SharedMemory:
        """Makes shared memory of `size` bytes. Raises OSError."""
        file = os.memfd_create(f"opgate-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(file, size)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return cls(file, size)
        except BaseException:
            os.close(file)
            raise

    def keep(self, size: int) -> None:
        """Gives pages behind `size` bytes, a multiple of the page size, back to the system if there are more."""
        if os.fstat(self.file).st_blocks * _BLOCK > size:
            with contextlib.suppress(OSError):
                self.memory.madvise(mmap.MADV_REMOVE, size, self.size - size)

    def drop(self, begin: int, end: int) -> None:
        """Gives the pages between two places back to the system. Nobody may need what is there."""
        begin = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
        if end > begin:
            with contextlib.suppress(OSError):
                self.memory.madvise(mmap.MADV_REMOVE, begin, end - begin)

    def free(self) -> None:
        """Gives the memory back, as far as nothing refers to it."""
        with contextlib.suppress(AttributeError, BufferError):
            self.memory.close()
        with contextlib.suppress(AttributeError, OSError):
            file, self.file = self.file, -1
            if file >= 0:
                os.close(file)

    def __del__(self) -> None:
        self.free()
