"""What a worker process does: it opens a model, and runs it on the tensors that the gateway puts into shared memory.

`python -m opgate.service.isolation.worker` is started by the gateway with the file descriptors of their connection.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

from opgate.service.isolation import channel
from opgate.service.isolation.channel import Channel, encoded
from opgate.service.isolation.confinement import NotConfinedError, confine
from opgate.service.isolation.opening import Opening
from opgate.service.isolation.segments import Array, Segment
from opgate.service.isolation.tensors import Entry, Layout, read

_PR_SET_PDEATHSIG = 1
_KEPT = 4096  # characters of an error's text


class Refusal(Exception):
    """The gateway could not do what the worker asked for. `kind` is that of its error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class Link:
    """The worker's side of the connection."""

    def __init__(self, talk: Channel, connection: socket.socket) -> None:
        """After this the process ends when the gateway does."""
        self.number = 0  # of the run
        self.options: Any = None  # of the run. Its `terminate` is set when nobody needs the result
        self._talk = talk
        self._socket = connection
        self._segments: dict[int, Segment] = {}
        self._arrived = threading.Condition()
        self._turn = threading.Lock()
        threading.Thread(target=self._listen, daemon=True, name="gateway").start()

    def _listen(self) -> None:
        while True:
            message, files, _, _ = socket.recv_fds(self._socket, 64, 1)
            if not message:
                os._exit(0)  # the gateway has gone, and nobody waits for a result
            first, second = map(int, message.split())
            if not files:
                options = self.options
                if self.number == first and options is not None:
                    options.terminate = True
                continue
            with self._arrived:
                self._segments[first] = Segment(first, files[0], second)
                self._arrived.notify_all()

    def forget(self, numbers: Sequence[int]) -> None:
        """Unmaps segments that the gateway no longer has."""
        for number in numbers:
            self._segments.pop(number, None)

    def ask(self, message: Any) -> Any:
        """Asks the gateway something within a run. Raises Refusal. Threads take turns."""
        with self._turn:
            self._talk.send(message)
            answer = self._talk.receive()
        if answer[0] == "error":
            raise Refusal(answer[1], answer[2])
        return answer

    def segment(self, number: int) -> Segment:
        """Returns a segment. The gateway sends it before it says its number."""
        found = self._segments.get(number)
        if found is None:
            with self._arrived:
                self._arrived.wait_for(lambda: number in self._segments)
            found = self._segments[number]
        return found

    def read(self, entries: Sequence[Entry], number: int) -> list[tuple[str, Array]]:
        """Returns the tensors in a segment."""
        segment = self.segment(number)
        return [read(entry, segment.memory, segment.size) for entry in entries]

    def write(self, names: Sequence[str], arrays: Sequence[Array], number: int = 0) -> tuple[list[Entry], int]:
        """Copies tensors to a segment: to one of the gateway's choice if that one is 0 or too small.

        Returns their entries, and the number of the segment.
        """
        layout = Layout(names, arrays)
        if not number or layout.size > self.segment(number).size:
            number = self.ask(["segment", layout.size])[1]
        layout.write(self.segment(number))
        return layout.entries, number


def main(arguments: list[str]) -> None:
    """Serves the gateway until that ends. `arguments` are file descriptors, and the gateway's process."""
    connection, memory, wakes, rings, parent = map(int, arguments)
    # If the gateway is killed while this process is stopped, nothing else would end it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    segment = Segment(0, memory, channel.SIZE)
    talk = Channel(segment, rings, wakes, worker=True)
    os.eventfd_read(wakes)
    opening: Opening = pickle.loads(talk.read_bytes()[0])
    link = Link(talk, socket.socket(fileno=connection))
    try:
        confine(opening.confinement)
        runner = opening.open(ctypes.addressof(ctypes.c_char.from_buffer(segment.memory, channel.NOTE)), link)
    except NotConfinedError as error:
        talk.send(["error", "", f"a worker process can't be confined: {error}"])
        return
    except Exception as error:
        talk.send(failure(error))
        return
    talk.send(["done", runner.description()])
    while True:
        os.eventfd_read(wakes)
        data, link.number = talk.read_bytes()
        try:
            answer = runner.again(data)
            if answer is None:
                question = json.loads(data)
                link.forget(question[1])
                answer = encoded(runner.answer(question, data))
                del question
        except Exception as error:
            answer = encoded(failure(error))
        talk.send_bytes(answer)


def failure(error: Exception) -> list[Any]:
    """Returns the answer that says what failed."""
    kind = getattr(error, "kind", "")
    text = getattr(error, "message", None)
    if not isinstance(text, str):
        text = f"{type(error).__name__}: {error}"
    return ["error", getattr(kind, "value", kind), text[:_KEPT]]


if __name__ == "__main__":
    main(sys.argv[1:])
