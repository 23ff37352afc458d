"""What a worker process does: it opens a model, and runs it on the tensors that the gateway puts into shared memory."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opgate.service.isolation.channel import NOTE, TIMES, Channel, MessageTooLongError, encoded
from opgate.service.isolation.memory import Array, SharedMemory
from opgate.service.isolation.tensors import Entry, Layout, view

if TYPE_CHECKING:
    from opgate.service.isolation.conversation import Conversation


class Link:
    """The worker's side of the connection."""

    def __init__(self, memory: int, memory_size: int, tensors: int, tensors_size: int, *pipes: int) -> None:
        """Gets the descriptors and sizes of both pieces of shared memory, and the ends of the pipes: two that wake this
        process, for a message and for a run that nobody needs, and between them the one that wakes the gateway."""
        wakes, rings, self._unwanted = pipes
        self.options: Any = None  # of the run. Its `terminate` is set when nobody needs the result
        self.number = 0  # of the run that is under way, 0 for none
        self._shared = SharedMemory(memory, memory_size)
        self._tensors = SharedMemory(tensors, tensors_size)
        self._talk = Channel(self._shared, rings, wakes, worker=True)
        self._pipes = rings, wakes
        self._listener: threading.Thread | None = None

    @property
    def note(self) -> int:
        """The address of the memory in which a crash writes the op that it ran."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._shared.memory, NOTE))

    @property
    def times(self) -> int:
        """The address of the memory in which the worker writes how long ops took."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._shared.memory, TIMES))

    def _listen(self) -> None:
        """Ends runs that nobody needs any more."""
        while os.read(self._unwanted, 64):
            self._stop_if_unwanted()

    def _stop_if_unwanted(self) -> None:
        options = self.options
        if options is not None and self._talk.unwanted() == self.number:
            options.terminate = True

    def let_stop(self, options: Any) -> None:
        """Lets the gateway end the run by these options. It may have wanted to before."""
        self.options = options
        if self._listener is None:
            self._listener = threading.Thread(target=self._listen, daemon=True, name="gateway")
            self._listener.start()
        self._stop_if_unwanted()

    def next(self) -> tuple[bytes, int]:
        """Waits for a message of the gateway. Returns it with the number of its run. Raises EOFError at the end."""
        data, self.number = self._talk.receive()
        return data, self.number

    def answer(self, data: bytes) -> None:
        """Ends the run with an answer."""
        try:
            self._talk.send(data, self.number)
        except MessageTooLongError as error:
            text = f"the names and errors of its outputs are too long: {error}"
            self._talk.send(encoded(["error", "", text]), self.number)

    def view(self, entries: Sequence[Entry]) -> list[tuple[str, Array]]:
        """Returns tensors as views of the shared memory, which the next run changes."""
        return [view(entry, self._tensors.memory, self._tensors.size) for entry in entries]

    def write(self, names: Sequence[str], arrays: Sequence[Array], free: int) -> list[Entry]:
        """Copies tensors to the shared memory from `free` on, and returns their entries. Raises ValueError if there is
        no room."""
        layout = Layout(names, arrays, free)
        if layout.end > self._tensors.size:
            limit = f"a run has {self._tensors.size} bytes in memory (OPGATE_MAX_WORKER_BYTES)"
            raise ValueError(f"{', '.join(names)[:200]}: {layout.end - free} bytes with {free} before them, {limit}")
        layout.write(self._tensors.memory)
        return layout.entries

    def conversation(self) -> Conversation:
        """Returns the connection over which a model in Python talks once it is open."""
        from opgate.service.isolation.conversation import Conversation
        from opgate.service.isolation.mail import Mail

        return Conversation(Mail(self._shared, self._tensors, *self._pipes, worker=True))
