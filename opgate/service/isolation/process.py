"""One worker process, as the gateway sees it: it starts, answers, and dies of something that can be named."""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import json
import os
import select
import shutil
import struct
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import opgate
from opgate.child_process import ChildProcess, cause_of_death
from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.op_times import OpTimes, read_times, sum_of
from opgate.service.isolation import channel, keeper
from opgate.service.isolation.channel import Channel
from opgate.service.isolation.confinement import Confinement
from opgate.service.isolation.mail import Mail
from opgate.service.isolation.memory import SharedMemory

# Seconds in which a process that is told to abort says which op it ran.
_LAST_WORDS = 3.0
# Seconds in which the keeper of a process has ended it and all that it has started.
_END = 15.0


class WorkerDiedError(ServingError):
    """The process ended before it answered. `unread` says that it had not read the question."""

    def __init__(self, reason: str, unread: bool = False) -> None:
        super().__init__(Kind.INTERNAL, reason)
        self.unread = unread


class WorkerProcess:
    """A worker process and the memory that it shares with the gateway. One thread at a time asks it.

    Nothing that the process does can hold up the gateway for longer than a timeout: writing to it never waits.
    """

    def __init__(
        self,
        command: Sequence[str],
        confinement: Confinement,
        tensor_bytes: int,
        kept: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the process. `command` runs the worker's module, and gets the arguments of its `main`.

        The tensors of a run may have `tensor_bytes`. The process also gets the file descriptors `kept`. It ends when
        the thread that started it ends. Raises OSError.
        """
        with contextlib.ExitStack() as failed:
            shared = SharedMemory.create("messages", channel.SIZE)
            self.tensors = SharedMemory.create("tensors", tensor_bytes)
            wakes_worker, wakes, unwanted = (_pipe(failed) for _ in range(3))
            theirs = (shared.file, shared.size, self.tensors.file, tensor_bytes, wakes_worker[0], wakes[1], unwanted[0])
            files = (shared.file, self.tensors.file, wakes_worker[0], wakes[1], unwanted[0])
            arguments = (json.dumps(asdict(confinement)), str(os.getpid()), *map(str, theirs))
            self._process = ChildProcess([*command, *arguments], (*files, *kept), env=environment)
            failed.callback(self.kill)
            self._pidfd = os.pidfd_open(self._process.pid)
            failed.pop_all()
        for file in (wakes_worker[0], wakes[1], unwanted[0]):
            os.close(file)
        self._ours: tuple[int, ...] = (wakes_worker[1], wakes[0], unwanted[1], self._pidfd)
        for file in self._ours[:3]:
            os.set_blocking(file, False)
        self._messages = shared
        self._channel = Channel(shared, wakes_worker[1], wakes[0], worker=False)
        self._unwanted = unwanted[1]
        self._ready = select.poll()
        self._ready.register(wakes[0], select.POLLIN)
        self._ready.register(self._pidfd, select.POLLIN)
        self._lock = threading.Lock()
        self._dead: str | None = None
        self._late = ""

    @property
    def pid(self) -> int:
        """The number of the process that runs the model, 0 if it has ended. Its keeper is the gateway's child."""
        keeper = self._process.pid
        try:
            children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
        except OSError:
            return 0
        return int(children[0]) if children else 0

    @property
    def pidfd(self) -> int:
        """A file descriptor that can be read when the process has ended, and all that it has started."""
        return self._pidfd

    def open(self, opening: bytes, timeout: float, stops: int) -> Any:
        """Lets the process open its model. Returns its answer. Raises WorkerDiedError, also if the descriptor `stops`
        can be read before."""
        self._ready.register(stops, select.POLLIN)
        try:
            late = f"the start of the worker process took longer than {timeout:g} s (OPGATE_START_TIMEOUT)"
            return self.parsed(self.ask(opening, 0, time.monotonic() + timeout, late))
        finally:
            self._ready.unregister(stops)

    def ask(self, question: bytes, number: int, until: float, late: str) -> bytes:
        """Sends a question that belongs to a run, or answers one of the process, and returns what the process says
        then. Both are JSON.

        Raises WorkerDiedError, also if time.monotonic() reaches `until`: `late` says what takes too long then. Raises
        MessageTooLongError for a question that can't be sent, and then the process knows nothing of it.
        """
        try:
            self._channel.send(question, number)
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                raise self.at_fault("it doesn't read what the gateway asks") from None
        while ready := dict(self._ready.poll(max(0.0, until - time.monotonic()) * 1000)):
            if ready.get(self._channel.wakes, 0) & select.POLLIN:
                return self._message(number)
            if self._pidfd in ready:
                raise WorkerDiedError(self.death(), _unread(self._channel.rings))
            if ready.keys() != {self._channel.wakes}:  # nobody needs it any more
                self.kill()
                raise WorkerDiedError(self.death())
            # The other end of the pipe is closed, so the process is about to be gone.
            self._ready.unregister(self._channel.wakes)
            until = min(until, time.monotonic() + _END)
        self.end_late(late)
        raise WorkerDiedError(self.death())

    def op_times(self, libraries: int) -> OpTimes:
        """Returns how long the ops of its model took, as so many libraries have counted them until the last run."""
        each = channel.TIMES_SIZE // max(1, libraries)
        begins = [channel.TIMES + i * each for i in range(libraries)]
        return sum_of(read_times(self._channel.memory, begin, begin + each) for begin in begins)

    def mail(self) -> Mail:
        """Returns the connection over which a model in Python talks once it is open."""
        return Mail(self._messages, self.tensors, self._channel.rings, self._channel.wakes, worker=False)

    def end_late(self, why: str) -> None:
        """Ends the process because something takes too long. An abort lets it say where it hangs."""
        self._late = f"{why}, so the worker process was ended"
        self._process.end((keeper.ABORT, _LAST_WORDS), (keeper.END, _END))

    def _message(self, number: int) -> bytes:
        """Returns the message that has come. Raises WorkerDiedError if it is none, or one of another run."""
        try:
            os.read(self._channel.wakes, 1)
            data, found = self._channel.read()
        except (BlockingIOError, ValueError) as error:
            raise self.at_fault(f"it had overwritten an answer ({error})") from None
        if found != number:
            raise self.at_fault(f"it answered run {found} in run {number}")
        return data

    def parsed(self, answer: bytes) -> Any:
        """Returns the values of an answer. Raises WorkerDiedError if it is no list in JSON."""
        try:
            found = json.loads(answer)
            if not isinstance(found, list) or not found:
                raise ValueError("no list")
        except (ValueError, RecursionError) as error:
            raise self.at_fault(f"it had overwritten an answer ({error})") from None
        return found

    def at_fault(self, why: str) -> WorkerDiedError:
        """Ends the process because it broke the rules, and returns the error that says so."""
        self.kill()
        return WorkerDiedError(f"{self.death()}, after {why}")

    def stop(self, number: int) -> None:
        """Ends a run before its next node, if it still runs."""
        self._channel.say_unwanted(number)
        with contextlib.suppress(OSError):  # it has died, or nobody there listens
            os.write(self._unwanted, b"!")

    def kill(self) -> None:
        """Ends the process and those that it has started. Returns when they have ended."""
        self._process.end((keeper.END, _END))

    def death(self) -> str:
        """Returns what the process died of. It must have ended."""
        with self._lock:
            if self._dead is None:
                self._dead = self._late or cause_of_death(self._process.wait(), "its worker process")
                note = self._channel.memory[channel.NOTE : channel.NOTE + channel.NOTE_SIZE]
                if op := note.split(b"\0")[0].decode(errors="replace"):
                    self._dead += f" in op {''.join(letter if letter.isprintable() else '?' for letter in op)}"
            return self._dead

    def free(self) -> None:
        """Gives back the descriptors and the memory of a process that has ended. Nobody may use it any more."""
        with contextlib.suppress(AttributeError):
            ours, self._ours = self._ours, ()
            for file in ours:
                os.close(file)
            self.tensors.free()
            self._messages.free()

    def __del__(self) -> None:
        self.free()


def _pipe(failed: contextlib.ExitStack) -> tuple[int, int]:
    """Returns the ends of a pipe, which `failed` closes."""
    ends = os.pipe2(os.O_CLOEXEC)
    for end in ends:
        failed.callback(os.close, end)
    return ends


def _unread(pipe: int) -> bool:
    """Returns whether bytes are left in a pipe."""
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))
    return bool(count)


# What a confined worker gets of the gateway's environment, besides what the operator names: where programs, libraries
# and files are, how libraries use the processor, and the language.
_HARMLESS = (
    "PATH", "HOME", "USER", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TERM", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "PYTHON*", "VIRTUAL_ENV", "CONDA_*", "XDG_CACHE_HOME", "CUDA_*", "NVIDIA_*", "OMP_*", "KMP_*", "OPENBLAS_*",
    "MKL_*", "MALLOC_*", "GLIBC_TUNABLES",
)  # fmt: skip
# What no worker gets: the gateway's own settings, which may have tokens, and the keys of object stores.
_OF_THE_GATEWAY = ("OPGATE_*", "AWS_*", "AZURE_*", "GOOGLE_*", "GCS_*", "S3_*")
_OF_OPS = ("OPGATE_CPU_LEVEL", "OPGATE_CUDA_PROVIDER", "OPGATE_GUARD", "OPGATE_TENSORRT_REGISTRY")


def environment(confinement: Confinement, named: Sequence[str]) -> dict[str, str]:
    """Returns the environment of a worker. `named` are names that the operator lets it have, with * and ?."""

    def passes(name: str) -> bool:
        if _fits(name, (*named, *_OF_OPS)):
            return True
        return _fits(name, _HARMLESS) if confinement.confines else not _fits(name, _OF_THE_GATEWAY)

    return {name: value for name, value in os.environ.items() if passes(name)}


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


# An environment of its own has no opgate, and must not get the other packages of the gateway's.
_BORROWED = """
import sys, types
sys.modules["opgate"] = opgate = types.ModuleType("opgate")
opgate.__path__ = [{folder!r}]
from opgate.service.isolation.worker import main
main(sys.argv[1:])
"""


# Programs and libraries of an environment are found by their names, as in Triton.
_ACTIVATED = """
source "$0" && export LD_LIBRARY_PATH="$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" && shift && exec "$@"
"""


def command(python: Path | None = None) -> list[str]:
    """Returns the command that runs a worker, with the gateway's packages or with those of another interpreter."""
    if python is None:
        return [sys.executable, "-P", "-m", "opgate.service.isolation.worker"]
    start = [str(python), "-c", _BORROWED.format(folder=str(Path(opgate.__file__).parent))]
    activate, bash = python.with_name("activate"), shutil.which("bash")
    if bash is None or not activate.is_file():
        return start
    return [bash, "-c", _ACTIVATED, str(activate), str(python.parents[1] / "lib"), *start]
