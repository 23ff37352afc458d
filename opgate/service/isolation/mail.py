"""Messages with tensors between the gateway and a worker that runs a model in Python, many under way at once.

Both sides use this module. A message is JSON behind its tensors, in a block of shared memory; a record in a pipe says
where it is. Each side writes to a half of the memory that is its own. The other side copies what it reads, and counts
the messages that it has taken: their blocks are free again.

The gateway never waits to write: if there is no room, `send` says so.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from opgate.service.isolation.channel import COUNTS, decoded, encoded
from opgate.service.isolation.memory import Array, SharedMemory
from opgate.service.isolation.tensors import Layout, copy

#: Responses to a request, or of a call, that one side sends before the other has said that it took the first.
WINDOW = 8
#: Bytes of the JSON of a message.
MOST_BYTES = 1 << 22
_RECORD = struct.Struct("<QQQ")  # where the block begins, the bytes of its tensors, those of its JSON
_COUNT = struct.Struct("<Q")
_ALIGNMENT, _PAGE = 64, 4096
# Seconds between two looks of a worker for room.
_LOOK = 0.0005


_NO_TENSORS = Layout((), ())


class NoRoomError(ValueError):
    """A message is larger than all that a side may write."""

    def __init__(self, size: int, most: int, what: str) -> None:
        super().__init__(f"{what}: {size} bytes, at most {most} have room")
        self.size = size


class Packed(NamedTuple):
    """A message that can be sent: its tensors, its JSON, and the bytes of both."""

    layout: Layout
    data: bytes
    size: int


class _Blocks:
    """Which parts of a piece of memory are in use, in the order of the messages that use them."""

    def __init__(self, begin: int, end: int) -> None:
        self.begin = begin
        self.end = end
        self.sent = 0
        self.highest = 0  # where the memory ends that was ever used since it was given back
        self._live: deque[tuple[int, int]] = deque()
        self._first = 1  # the number of the message of the first block

    def free(self, taken: int) -> None:
        """Frees the blocks of the first `taken` messages. Others than those that are in use are ignored."""
        while self._live and self._first <= taken:
            self._live.popleft()
            self._first += 1

    @property
    def empty(self) -> bool:
        """Whether nothing is in use."""
        return not self._live

    def place(self, size: int, taken: int) -> int | None:
        """Returns where a block may begin, the lowest of all, None if there is no room now. `taken` is as in `free`."""
        live = self._live
        if live and self._first <= taken:
            self.free(taken)
        at = self.begin
        if not live:
            return at  # no message is larger than the memory
        for begin, end in sorted(live):
            if begin - at >= size:
                break
            at = max(at, end)
        if at + size > self.end:
            return None
        return at

    def take(self, begin: int, size: int) -> None:
        """Takes a block for the next message."""
        self._live.append((begin, begin + size))
        self.sent += 1
        self.highest = max(self.highest, begin + size)


class Mail:
    """One end of the connection. Any thread may send; one at a time reads."""

    def __init__(self, messages: SharedMemory, tensors: SharedMemory, rings: int, wakes: int, *, worker: bool) -> None:
        """`rings` is the end of a pipe that wakes the other side, `wakes` that of the one that wakes this side."""
        self.wakes = wakes
        self.most = tensors.size // 2 // _PAGE * _PAGE
        self._rings = rings
        self._worker = worker
        self._counts = messages.memory
        self._memory = memoryview(tensors.memory)
        self._tensors = tensors
        own, peer = (self.most, 0) if worker else (0, self.most)
        self._blocks = _Blocks(own, own + self.most)
        self._peer = (peer, peer + self.most)
        self._own_taken, self._peer_taken = (COUNTS + 8, COUNTS) if worker else (COUNTS, COUNTS + 8)
        self._taken = 0
        self._coming: tuple[int, int, int] | None = None  # the record of the next message
        self._sending = threading.Lock()

    @property
    def sent(self) -> int:
        """How many messages this side has sent."""
        return self._blocks.sent

    def taken_by_peer(self) -> int:
        """Returns how many messages of this side the other one has taken."""
        (count,) = _COUNT.unpack_from(self._counts, self._peer_taken)
        return min(int(count), self._blocks.sent)

    def pack(self, message: Sequence[Any], names: Sequence[str] = (), arrays: Sequence[Array] = ()) -> Packed:
        """Returns a message as it can be sent: a list in JSON, whose last element are the entries of the tensors.

        Raises NoRoomError if there is never room for it, and TypeError for a dtype that no tensor has.
        """
        layout = Layout(names, arrays) if names else _NO_TENSORS
        data = encoded([*message, layout.entries])
        if len(data) > MOST_BYTES:
            raise NoRoomError(len(data), MOST_BYTES, "names, ids, parameters and errors of a message")
        size = layout.end + (len(data) + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        if size > self.most:
            raise NoRoomError(layout.end, self.most, f"tensors {', '.join(names)[:200]} (OPGATE_MAX_WORKER_BYTES)")
        return Packed(layout, data, size)

    def send(self, message: Sequence[Any], names: Sequence[str] = (), arrays: Sequence[Array] = ()) -> bool:
        """Packs and sends a message, see `pack` and `post`."""
        return self.post(self.pack(message, names, arrays))

    def post(self, packed: Packed) -> bool:
        """Sends a message. Returns whether there was room. In the worker it waits for that.

        Raises BrokenPipeError if the other side has gone.
        """
        layout, data, size = packed
        with self._sending:
            blocks = self._blocks
            while (begin := blocks.place(size, _COUNT.unpack_from(self._counts, self._peer_taken)[0])) is None:
                if not self._worker:
                    return False
                time.sleep(_LOOK)
            end = begin + layout.end
            if layout.end:
                layout.write(self._memory[begin:end])
            self._memory[end : end + len(data)] = data
            try:
                os.write(self._rings, _RECORD.pack(begin, layout.end, len(data)))
            except BlockingIOError:  # only the gateway's end doesn't wait
                return False
            blocks.take(begin, size)
        return True

    def coming(self) -> int:
        """Returns the bytes of the next message, which `receive` takes. Waits for it if the pipe blocks.

        Raises EOFError if the other side has gone, and ValueError if it wrote what is no message.
        """
        if self._coming is not None:
            return self._coming[1] + self._coming[2]
        record = os.read(self.wakes, _RECORD.size)
        if not record:
            raise EOFError
        if len(record) != _RECORD.size:
            raise ValueError(f"a record of {len(record)} bytes")
        self._coming = _RECORD.unpack(record)
        return self._coming[1] + self._coming[2]

    @property
    def has_come(self) -> bool:
        """Whether `coming` has returned a message that `receive` has not taken."""
        return self._coming is not None

    def receive(self) -> tuple[list[Any], list[tuple[str, Array]]]:
        """Takes the next message, and copies of its tensors. Waits for it, and raises errors, as `coming` does."""
        if self._coming is None:
            self.coming()
        assert self._coming is not None
        (begin, tensors, length), self._coming = self._coming, None
        low, high = self._peer
        if not (low <= begin <= high and tensors <= high - begin and length <= min(MOST_BYTES, high - begin - tensors)):
            raise ValueError("a message that doesn't lie in its memory")
        part = self._memory[begin : begin + tensors + length]
        try:
            message = decoded(bytes(part[tensors:]))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"a message that is no JSON ({error})") from None
        if not isinstance(message, list) or len(message) < 2 or not isinstance(message[-1], list):
            raise ValueError("a message that is no list")
        found: list[tuple[str, Array]] = []
        size = 0
        for entry in message.pop():
            found.append(copy(entry, part, tensors))
            size += entry[4]
            if size > tensors:
                raise ValueError("tensors that lie in the same bytes")
        self._taken += 1
        _COUNT.pack_into(self._counts, self._own_taken, self._taken)
        return message, found

    def close(self) -> None:
        """Lets go of the memory."""
        self._memory.release()

    def keeps_more(self, size: int) -> bool:
        """Whether this side has used memory behind its first `size` bytes, and not given it back."""
        return self._blocks.highest - self._blocks.begin > size

    def keep(self, size: int) -> None:
        """Gives memory of this side behind its first `size` bytes back to the system, if none of it is in use."""
        blocks = self._blocks
        if self.keeps_more(size):
            with self._sending:
                blocks.free(self.taken_by_peer())
                if blocks.empty:
                    self._tensors.drop(blocks.begin + size, blocks.highest)
                    blocks.highest = blocks.begin + size
