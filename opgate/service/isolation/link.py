"""What a worker process does: it opens a model, and runs it on the tensors that the gateway puts into shared memory."""

from __future__ import annotations

import ctypes
import json
import os
import threading
from collections.abc import Sequence
from typing import Any

from opgate.service.isolation.channel import NOTE, Channel, MessageTooLongError, encoded
from opgate.service.isolation.memory import Array, SharedMemory
from opgate.service.isolation.tensors import Entry, Layout, copy, view


class Refusal(Exception):
    """The gateway could not do what the worker asked for. `kind` is that of its error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class RunEndedError(RuntimeError):
    """The run that something was asked for has ended."""


class Link:
    """The worker's side of the connection."""

    def __init__(self, memory: int, memory_size: int, tensors: int, tensors_size: int, *pipes: int) -> None:
        """Gets the descriptors and sizes of both pieces of shared memory, and the ends of the pipes: two that wake this
        process, for a message and for a run that nobody needs, and between them the one that wakes the gateway."""
        wakes, rings, self._unwanted = pipes
        self.options: Any = None  # of the run. Its `terminate` is set when nobody needs the result
        self.number = 0  # of the run that is under way, 0 for none
        self.free: int | None = None  # where the memory of that run is free, once the run may ask for something
        self._shared = SharedMemory(memory, memory_size)
        self._tensors = SharedMemory(tensors, tensors_size)
        self._talk = Channel(self._shared, rings, wakes, worker=True)
        self._turn = threading.Lock()
        threading.Thread(target=self._listen, daemon=True, name="gateway").start()

    @property
    def note(self) -> int:
        """The address of the memory in which a crash writes the op that it ran."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._shared.memory, NOTE))

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
        self._stop_if_unwanted()

    def next(self) -> tuple[bytes, int]:
        """Waits for a message of the gateway. Returns it with the number of its run. Raises EOFError at the end."""
        data, number = self._talk.receive()
        with self._turn:
            self.number, self.free = number, None
        return data, number

    def begin(self, free: int) -> None:
        """Lets the run ask for something. Its memory is free from `free` on."""
        with self._turn:
            self.free = free

    def finish(self) -> None:
        """Ends the run, but for its answer. What asks for something after that is refused."""
        with self._turn:
            self.free = None

    def answer(self, data: bytes) -> None:
        """Ends the run with an answer."""
        with self._turn:
            self.free = None
            try:
                self._talk.send(data, self.number)
            except MessageTooLongError as error:
                text = f"the names and errors of its outputs are too long: {error}"
                self._talk.send(encoded(["error", "", text]), self.number)

    def ask(
        self, message: Any, number: int, names: Sequence[str], arrays: Sequence[Array]
    ) -> list[list[tuple[str, Array]]]:
        """Asks the gateway something about tensors within a run, and returns those of its answer, copied. Threads take
        turns.

        The entries of the tensors, and where the gateway may write, come behind the message. Raises Refusal,
        RunEndedError, and ValueError if there is no room for the message or for the tensors.
        """
        with self._turn:
            if not number:
                raise RunEndedError("only execute can send responses and call other models")
            if number != self.number or self.free is None:
                raise RunEndedError("the run has ended: it can't send responses and call other models any more")
            entries, end = self._write(names, arrays, self.free)
            self._talk.send(encoded([*message, entries, end]), number)
            answer = json.loads(self._talk.receive()[0])
            if answer[0] == "error":
                raise Refusal(answer[1], answer[2])
            return [[self._copy(entry) for entry in result] for result in answer[1:]]

    def view(self, entries: Sequence[Entry]) -> list[tuple[str, Array]]:
        """Returns tensors as views of the shared memory, which the next run changes."""
        return [view(entry, self._tensors.memory, self._tensors.size) for entry in entries]

    def copy(self, entries: Sequence[Entry]) -> list[tuple[str, Array]]:
        """Returns tensors of their own."""
        return [self._copy(entry) for entry in entries]

    def _copy(self, entry: Entry) -> tuple[str, Array]:
        return copy(entry, self._tensors.memory, self._tensors.size)

    def write(self, names: Sequence[str], arrays: Sequence[Array], free: int) -> list[Entry]:
        """Copies tensors to the shared memory from `free` on, and returns their entries. Raises ValueError if there is
        no room."""
        with self._turn:
            return self._write(names, arrays, free)[0]

    def _write(self, names: Sequence[str], arrays: Sequence[Array], free: int) -> tuple[list[Entry], int]:
        layout = Layout(names, arrays, free)
        if layout.end > self._tensors.size:
            limit = f"a run has {self._tensors.size} bytes in memory (OPGATE_MAX_WORKER_BYTES)"
            raise ValueError(f"{', '.join(names)[:200]}: {layout.end - free} bytes with {free} before them, {limit}")
        layout.write(self._tensors.memory)
        return layout.entries, layout.end
