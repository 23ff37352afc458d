"""What a worker process does: it opens a model, and runs it on the tensors that the gateway puts into shared memory.

`python -m opgate.service.isolation.worker` is started by the gateway with the file descriptors of their connection.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
import sys
import threading
from typing import Any

from opgate.service.isolation import channel
from opgate.service.isolation.channel import Channel
from opgate.service.isolation.confinement import NotConfinedError, confine
from opgate.service.isolation.opening import Opening, Runner
from opgate.service.isolation.segments import Segment
from opgate.service.isolation.tensors import Layout, read

_PR_SET_PDEATHSIG = 1
_KEPT = 4096  # characters of an error's text


class _Gateway:
    """The gateway's end of the socket: it brings segments and stops runs, and its end ends this process."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._segments: dict[int, Segment] = {}
        self._arrived = threading.Condition()
        self._running = (0, None)  # the number of the run, and its options
        threading.Thread(target=self._listen, daemon=True, name="gateway").start()

    def _listen(self) -> None:
        while True:
            message, files, _, _ = socket.recv_fds(self._socket, 64, 1)
            if not message:
                os._exit(0)  # the gateway has gone, and nobody waits for a result
            first, second = map(int, message.split())
            if not files:
                number, options = self._running
                if number == first and options is not None:
                    options.terminate = True
                continue
            with self._arrived:
                self._segments[first] = Segment(first, files[0], second)
                self._arrived.notify_all()

    def segment(self, number: int) -> Segment:
        """Returns a segment. The gateway has sent it before it said its number."""
        found = self._segments.get(number)
        if found is None:
            with self._arrived:
                self._arrived.wait_for(lambda: number in self._segments)
            found = self._segments[number]
        return found

    def forget(self, numbers: list[int]) -> None:
        """Unmaps segments that the gateway no longer has."""
        for number in numbers:
            self._segments.pop(number, None)

    def runs(self, number: int, options: Any) -> None:
        """Says what runs now, so that the gateway can stop it."""
        self._running = (number, options)


def main(arguments: list[str]) -> None:
    """Serves the gateway until that ends. `arguments` are file descriptors, and the gateway's process."""
    connection, memory, wakes, rings, parent = map(int, arguments)
    # If the gateway is killed while this process is stopped, nothing else would end it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    segment = Segment(0, memory, channel.SIZE)
    talk = Channel(segment, rings, wakes, worker=True)
    with socket.socket(fileno=connection) as line:
        os.eventfd_read(wakes)
        opening: Opening = pickle.loads(talk.read_bytes())
        try:
            confine(opening.confinement)
            runner = opening.open(ctypes.addressof(ctypes.c_char.from_buffer(segment.memory, channel.NOTE)))
        except NotConfinedError as error:
            talk.send(["error", "", f"a worker process can't be confined: {error}"])
            return
        except Exception as error:
            talk.send(_error(error))
            return
        talk.send(["ready", runner.description()])
        _serve(talk, _Gateway(line), runner)


def _serve(talk: Channel, gateway: _Gateway, runner: Runner) -> None:
    while True:
        _, number, names, entries, source, target, forgotten = talk.receive()
        gateway.forget(forgotten)
        memory = gateway.segment(source)
        try:
            feeds = dict(read(entry, memory.memory, memory.size) for entry in entries)
            options = runner.run_options()
            gateway.runs(number, options)
            try:
                layout = Layout(names, runner.run(names, feeds, options))
            finally:
                gateway.runs(0, None)
        except Exception as error:
            talk.send(_error(error))
            continue
        out = gateway.segment(target)
        while layout.size > out.size:
            talk.send(["larger", layout.size])
            out = gateway.segment(talk.receive()[1])
        layout.write(out)
        del feeds, memory
        talk.send(["done", layout.entries])
        del layout, out


def _error(error: Exception) -> list[Any]:
    kind = getattr(error, "kind", None)
    text = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
    return ["error", "" if kind is None else kind.value, text[:_KEPT]]


if __name__ == "__main__":
    main(sys.argv[1:])
