"""The functions of op libraries that say how long their ops take. Libraries of others, and older ones, have none."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from opgate.service.core.op_times import OpTimes, read_times, sum_of
from opgate.service.core.request import OpCall

_NUMBERS = itertools.count(1)


class TimedOps:
    """The ops of one session, in all of its libraries that measure."""

    def __init__(self, libraries: Sequence[Path]) -> None:
        self._libraries = [loaded for library in libraries if (loaded := _measuring(library)) is not None]
        self._owner = b"session %d" % next(_NUMBERS)

    @property
    def count(self) -> int:
        """The number of libraries that measure."""
        return len(self._libraries)

    @contextlib.contextmanager
    def owning(self) -> Iterator[None]:
        """Makes this session the owner of the nodes that the thread makes in the block."""
        for library in self._libraries:
            library.opgate_state_owner(self._owner)
        try:
            yield
        finally:
            for library in self._libraries:
                library.opgate_state_owner(b"")

    def read(self) -> OpTimes:
        """Returns the times of the session's nodes."""
        return sum_of(map(self._read, self._libraries))

    def _read(self, library: Any) -> OpTimes:
        size = 1 << 14
        while True:
            memory = ctypes.create_string_buffer(size)
            needed = library.opgate_op_times(self._owner, memory, size)
            if needed <= size:
                return read_times(memory.raw, 0, needed)
            size = needed

    def write(self, address: int, size: int) -> None:
        """Writes the times to memory, those of each library to a part of the same size."""
        each = size // max(1, self.count)
        for i, library in enumerate(self._libraries):
            library.opgate_op_times(self._owner, address + i * each, each)

    def forget(self) -> None:
        """Lets the libraries forget the session."""
        for library in self._libraries:
            library.opgate_forget_owner(self._owner)

    def __del__(self) -> None:
        self.forget()  # a session that could not be opened is never closed

    @contextlib.contextmanager
    def recording(self, calls: list[OpCall]) -> Iterator[None]:
        """Adds what is called in the block on this thread to `calls`."""
        for library in self._libraries:
            library.opgate_record_calls(1)
        try:
            yield
        finally:
            for library in self._libraries:
                library.opgate_record_calls(0)
                calls += read_calls(json.loads(library.opgate_recorded_calls().decode(errors="replace")))
            calls.sort(key=lambda call: call.begin_ns)


def read_calls(calls: Sequence[Sequence[Any]]) -> list[OpCall]:
    """Returns calls from lists of their fields. Raises ValueError and TypeError."""
    return [
        OpCall(str(op), str(node), int(begin), int(end), tuple(map(str, inputs)), tuple(map(str, outputs)))
        for op, node, begin, end, inputs, outputs in calls
    ]


def _measuring(path: Path) -> Any:
    """Returns a library that measures, else None."""
    try:
        library = ctypes.CDLL(str(path))
        library.opgate_recorded_calls.restype = ctypes.c_char_p
        library.opgate_state_owner.argtypes = library.opgate_forget_owner.argtypes = [ctypes.c_char_p]
        library.opgate_op_times.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64]
        library.opgate_op_times.restype = ctypes.c_int64
        library.opgate_record_calls.argtypes = [ctypes.c_int]
    except (OSError, AttributeError):
        return None
    return library
