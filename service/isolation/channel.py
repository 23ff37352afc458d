"""Questions and answers between the gateway and a worker: they lie in shared memory, and an eventfd wakes the reader.

Both sides use this module. Questions and answers are JSON. The worker may ask something itself before it answers.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

from opgate.service.isolation.segments import Segment

#: Bytes of the memory of a channel. Pages that nobody touches cost nothing.
SIZE = 1 << 20
#: Where a worker that crashes writes the op that it ran, and how many bytes.
NOTE, NOTE_SIZE = SIZE - 256, 256
_HALF = (SIZE - NOTE_SIZE) // 2
_HEAD = struct.Struct("<QQ")  # the length of the message, and the number of the run
_MOST = _HALF - _HEAD.size


def encoded(message: Any) -> bytes:
    """Returns the bytes of a message."""
    return json.dumps(message, separators=(",", ":")).encode()


class Channel:
    """One end of the memory. The first half has what the gateway says, the second what the worker says."""

    __slots__ = ("_own", "_peer", "memory", "rings", "wakes")

    def __init__(self, segment: Segment, rings: int, wakes: int, worker: bool) -> None:
        """`rings` is the eventfd that wakes the other side, `wakes` the one that wakes this side."""
        self.memory = segment.memory
        self.rings = rings
        self.wakes = wakes
        self._own, self._peer = (_HALF, 0) if worker else (0, _HALF)

    def send(self, message: Any) -> None:
        """Writes a message for the other side and wakes it. Raises ValueError if it is too long."""
        self.send_bytes(encoded(message))

    def send_bytes(self, data: bytes, number: int = 0) -> None:
        """Does the same with the bytes of a message, which may belong to a run with a number."""
        if len(data) > _MOST:
            raise ValueError(f"a message of {len(data)} bytes, at most {_MOST} have room")
        begin = self._own + _HEAD.size
        self.memory[begin : begin + len(data)] = data
        _HEAD.pack_into(self.memory, self._own, len(data), number)
        os.eventfd_write(self.rings, 1)

    def receive(self) -> Any:
        """Waits until the other side has written, and returns its message. Raises ValueError if it isn't JSON."""
        os.eventfd_read(self.wakes)
        return json.loads(self.read_bytes()[0])

    def read_bytes(self) -> tuple[bytes, int]:
        """Returns the bytes of the message that the other side wrote last, and the number of the run.

        Raises ValueError if there can't be such a message.
        """
        length, number = _HEAD.unpack_from(self.memory, self._peer)
        if length > _MOST:
            raise ValueError(f"a message of {length} bytes, at most {_MOST} have room")
        begin = self._peer + _HEAD.size
        return self.memory[begin : begin + length], number
