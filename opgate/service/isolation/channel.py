"""Messages between the gateway and a worker: they lie in shared memory, and a byte in a pipe wakes the reader.

Both sides use this module. Messages are JSON. Each has the number of the run that it belongs to, 0 outside of runs, so
that nobody takes the answer of one run for that of another. The worker may ask something itself before it answers.

The gateway never waits to write: the pipe that it writes to is its own end, on which only it sets that writing doesn't
block. A worker that leaves it full is at fault.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

from opgate.service.isolation.memory import SharedMemory


def _by_json(message: Any) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


try:
    from orjson import dumps, loads
except ImportError:  # a worker in an environment of its own
    dumps, loads = _by_json, json.loads  # type: ignore[assignment]

#: Bytes of the memory of a channel.
SIZE = (1 << 23) + (1 << 20)
#: Where a worker writes how long the ops of its model took, and how many bytes.
TIMES, TIMES_SIZE = 1 << 23, 1 << 20
#: Where a worker that crashes writes the op that it ran, and how many bytes.
NOTE, NOTE_SIZE = TIMES - 256, 256
#: Where the gateway writes the number of a run that nobody needs any more.
_UNWANTED = NOTE - 8
#: Where mail.py counts the messages that each side has taken.
COUNTS = _UNWANTED - 16
_HALF = (COUNTS // 2) & ~63
_PREFIX = struct.Struct("<QQ")  # the length of the message, and the number of the run
_NUMBER = struct.Struct("<Q")
#: Bytes of a message.
MOST_BYTES = _HALF - _PREFIX.size


class MessageTooLongError(ValueError):
    """A message has more bytes than a channel takes."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a message of {size} bytes, at most {MOST_BYTES} have room")
        self.size = size


def encoded(message: Any) -> bytes:
    """Returns the bytes of a message."""
    try:
        return dumps(message)
    except TypeError:  # it has texts that are not Unicode
        return _by_json(message)


def decoded(data: bytes) -> Any:
    """Returns the message of some bytes. Raises ValueError and RecursionError."""
    try:
        return loads(data)
    except ValueError:  # the other side may have no orjson
        return json.loads(data)


class Channel:
    """One end of the memory. The first half has what the gateway says, the second what the worker says."""

    __slots__ = ("_own", "_peer", "memory", "rings", "wakes")

    def __init__(self, shared: SharedMemory, rings: int, wakes: int, worker: bool) -> None:
        """`rings` is the end of a pipe that wakes the other side, `wakes` that of the one that wakes this side."""
        self.memory = shared.memory
        self.rings = rings
        self.wakes = wakes
        self._own, self._peer = (_HALF, 0) if worker else (0, _HALF)

    def send(self, data: bytes, number: int = 0) -> None:
        """Writes a message that belongs to a run for the other side and wakes it.

        Raises MessageTooLongError, and OSError if the other side has gone or leaves its pipe full.
        """
        if len(data) > MOST_BYTES:
            raise MessageTooLongError(len(data))
        begin = self._own + _PREFIX.size
        self.memory[begin : begin + len(data)] = data
        _PREFIX.pack_into(self.memory, self._own, len(data), number)
        os.write(self.rings, b"!")

    def receive(self) -> tuple[bytes, int]:
        """Waits until the other side has written, and returns its message as `read` does. Raises EOFError if the other
        side has gone."""
        if not os.read(self.wakes, 1):
            raise EOFError
        return self.read()

    def read(self) -> tuple[bytes, int]:
        """Returns a copy of the message that the other side wrote last, and the number of its run.

        Raises ValueError if there can't be such a message.
        """
        length, number = _PREFIX.unpack_from(self.memory, self._peer)
        if length > MOST_BYTES:
            raise MessageTooLongError(length)
        begin = self._peer + _PREFIX.size
        return self.memory[begin : begin + length], number

    def say_unwanted(self, number: int) -> None:
        """Writes that nobody needs a run any more."""
        _NUMBER.pack_into(self.memory, _UNWANTED, number)

    def unwanted(self) -> int:
        """Returns the number of the last run that nobody needs any more."""
        found: int = _NUMBER.unpack_from(self.memory, _UNWANTED)[0]
        return found
