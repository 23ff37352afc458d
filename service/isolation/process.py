"""One worker process, as the gateway sees it: it starts, answers, and dies of something that can be named."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import opgate
from opgate.service.errors import Kind, ServingError
from opgate.service.isolation import channel
from opgate.service.isolation.channel import Channel
from opgate.service.isolation.segments import Segment

# Seconds in which a process that is told to abort says which op it ran.
_LAST_WORDS = 1.0
_SIGNALS = {
    signal.SIGSEGV: "SIGSEGV (a bad memory access)",
    signal.SIGBUS: "SIGBUS (a bad memory access)",
    signal.SIGFPE: "SIGFPE (a bad calculation)",
    signal.SIGILL: "SIGILL (an illegal instruction)",
    signal.SIGABRT: "SIGABRT (it gave up)",
    signal.SIGKILL: "SIGKILL (from outside; the kernel sends it when memory runs out)",
}


class WorkerDiedError(ServingError):
    """The process ended before it answered. `unread` says that it had not read the question."""

    def __init__(self, reason: str, unread: bool = False) -> None:
        super().__init__(Kind.INTERNAL, reason)
        self.unread = unread


class WorkerProcess:
    """A worker process and the memory that it shares with the gateway. One thread at a time asks it."""

    def __init__(self, command: Sequence[str], kept: Sequence[int] = ()) -> None:
        """Starts the process. `command` runs the worker's module, and gets the file descriptors as its arguments. The
        process also gets the file descriptors `kept`.

        The process ends when the thread that started it ends. Raises ServingError (UNAVAILABLE).
        """
        self._segment = Segment.create(0, channel.SIZE)
        rings, wakes = os.eventfd(0, os.EFD_CLOEXEC), os.eventfd(0, os.EFD_CLOEXEC)
        self._channel = Channel(self._segment, rings, wakes, worker=False)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        files = (theirs.fileno(), self._segment.file, rings, wakes)
        arguments = [str(file) for file in (*files, os.getpid())]
        try:
            # In a session of its own no Ctrl-C reaches it: the gateway finishes its requests first.
            self._process = subprocess.Popen(
                [*command, *arguments],
                pass_fds=(*files, *kept),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._socket.close()
            os.close(rings)
            os.close(wakes)
            raise ServingError(Kind.UNAVAILABLE, f"no worker process can be started: {error}") from error
        finally:
            theirs.close()
        self._pidfd = os.pidfd_open(self._process.pid)
        self._ready = select.poll()
        self._ready.register(wakes, select.POLLIN)
        self._ready.register(self._pidfd, select.POLLIN)
        self._wakes = wakes
        self._known: set[int] = set()
        self._lock = threading.Lock()
        self._dead: str | None = None
        self._late = ""

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def pidfd(self) -> int:
        """A file descriptor that can be read when the process has ended."""
        return self._pidfd

    def open(self, opening: bytes, timeout: float) -> Any:
        """Lets the process open its model. Returns its answer. Raises WorkerDiedError."""
        self._channel.send_bytes(opening)
        return self.parsed(self._answer(timeout, "the start of the worker process"))

    def ask(self, question: bytes, timeout: float, number: int = 0) -> bytes:
        """Sends a question, which may belong to a run with a number, and returns the answer. Both are JSON.

        Raises WorkerDiedError, also after `timeout` seconds.
        """
        self._channel.send_bytes(question, number)
        return self._answer(timeout, "a run")

    def parsed(self, answer: bytes) -> Any:
        """Returns the values of an answer. Raises WorkerDiedError if it is not JSON."""
        try:
            return json.loads(answer)
        except ValueError as error:
            raise self._overwritten(error) from None

    def _answer(self, timeout: float, what: str) -> bytes:
        """Waits for a message. `what` names what takes too long."""
        for file, _ in self._ready.poll(timeout * 1000):
            if file == self._wakes:
                os.eventfd_read(file)
                try:
                    return self._channel.read_bytes()[0]
                except ValueError as error:
                    raise self._overwritten(error) from None
            unread = select.select([self._channel.rings], [], [], 0)[0]
            raise WorkerDiedError(self.death(), bool(unread))
        self._late = f"{what} took longer than {timeout:g} s, so the worker process was ended"
        self._end_with_words()
        raise WorkerDiedError(self.death())

    def _overwritten(self, error: ValueError) -> WorkerDiedError:
        self.kill()
        return WorkerDiedError(f"{self.death()}, after it had overwritten an answer ({error})")

    def share(self, segment: Segment) -> int:
        """Lets the process have a segment. Returns its number."""
        if segment.number not in self._known:
            self._known.add(segment.number)
            with contextlib.suppress(OSError):  # it has died, as the next answer tells
                socket.send_fds(self._socket, [f"{segment.number} {segment.size}".encode()], [segment.file])
        return segment.number

    def forget(self, numbers: Sequence[int]) -> None:
        """Takes segments as gone."""
        self._known.difference_update(numbers)

    def stop(self, number: int) -> None:
        """Ends a run before its next node, if it still runs."""
        with contextlib.suppress(OSError):
            self._socket.send(f"{number} 0".encode())

    def kill(self) -> None:
        """Ends the process and those that it has started. Returns when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def death(self) -> str:
        """Returns what the process died of. It must have ended."""
        with self._lock:
            if self._dead is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)  # what it has started
                self._dead = self._late or cause_of_death(self._process.wait(), "its worker process")
                op = bytes(self._segment.memory[channel.NOTE : channel.NOTE + channel.NOTE_SIZE]).split(b"\0")[0]
                if op:
                    self._dead += f" in op {op.decode(errors='replace')}"
            return self._dead

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            self._socket.close()
            for file in (self._channel.rings, self._wakes, self._pidfd):
                os.close(file)

    def _end_with_words(self) -> None:
        """Ends a process that hangs. An abort lets it say where."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORDS)
        self.kill()


# An environment of its own has no opgate, and must not get the other packages of the gateway's.
_BORROWED = """
import sys, types
sys.modules["opgate"] = opgate = types.ModuleType("opgate")
opgate.__path__ = [{folder!r}]
from opgate.service.isolation.worker import main
main(sys.argv[1:])
"""


def command(python: Path | None = None) -> list[str]:
    """Returns the command that runs a worker, with the gateway's packages or with those of another interpreter."""
    if python is None:
        return [sys.executable, "-P", "-m", "opgate.service.isolation.worker"]
    return [str(python), "-c", _BORROWED.format(folder=str(Path(opgate.__file__).parent))]


def cause_of_death(status: int, what: str) -> str:
    """Returns the sentence that says what a process died of. `status` is that of subprocess, `what` names it."""
    if status < 0:
        number = signal.Signals(-status) if -status in set(signal.Signals) else None
        name = _SIGNALS.get(number, number.name) if number is not None else f"signal {-status}"
        return f"{what} died of {name}"
    return f"{what} ended with the exit status {status}"
