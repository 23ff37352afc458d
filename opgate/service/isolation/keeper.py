"""The parent of a worker process. It ends the worker, and all that the worker has started, when the gateway wants that
or is gone, and otherwise ends as the worker does.

Every worker has one. It needs only the standard library, and begins before the worker has any thread. Processes that
lose their parent become children of the keeper, also those that left the worker's session, so it finds them all.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time
from pathlib import Path

from opgate.service.isolation.cgroup import Cgroup

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
#: What the gateway sends to the keeper: end the worker, and let it abort, so that it says where it is.
END, ABORT = signal.SIGUSR1, signal.SIGABRT
# The signal that tells the keeper that the gateway has gone. It also continues a keeper that somebody has stopped.
_GONE = signal.SIGCONT
_SIGNALS = {END, ABORT, _GONE, signal.SIGCHLD}
# Who stops all processes of a service at once means the gateway, which finishes its requests first.
_NOT_MEANT = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Seconds in which the processes of a worker that starts ever more of them are ended.
_LONGEST = 10.0


def keep(gateway: int, memory_bytes: int) -> bool:
    """Starts the worker, in which this returns. In the keeper it doesn't return. `gateway` is the parent's number.

    Returns whether a cgroup limits the worker to `memory_bytes`, if that is not 0.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, int(_GONE), 0, 0, 0)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    if os.getppid() != gateway:
        os._exit(0)
    keeper = os.getpid()
    group = Cgroup.limited(memory_bytes) if memory_bytes else None
    worker = os.fork()
    if not worker:
        # If somebody kills the keeper, nothing else would end the worker.
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != keeper:
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return group is not None and group.join()
    libc.prctl(_PR_SET_NAME, b"opgate-keeper", 0, 0, 0)
    for ignored in _NOT_MEANT:
        signal.signal(ignored, signal.SIG_IGN)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    status = _watch(worker, gateway)
    if group is not None:
        group.remove()
    _end_as(status)
    raise AssertionError


def _watch(worker: int, gateway: int) -> int:
    """Waits until the worker has ended, or must end. Ends what it has started. Returns the status of `waitpid`."""
    while True:
        arrived = signal.sigwait(_SIGNALS)
        if arrived == ABORT:
            os.kill(worker, ABORT)
            os.kill(worker, signal.SIGCONT)  # somebody may have stopped it
        elif arrived == END or (arrived == _GONE and os.getppid() != gateway):
            os.kill(worker, signal.SIGKILL)
        status = _reap(worker)
        if status is not None:
            _end_descendants()
            return status


def _reap(worker: int) -> int | None:
    """Takes the status of all children that have ended. Returns that of the worker, None if it runs."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == worker:
                found = ended[1]
    return found


def _end_descendants() -> None:
    """Ends the children that are left. Theirs become children of this process, so it goes on until there are none."""
    end = time.monotonic() + _LONGEST
    while time.monotonic() < end:
        children = _children()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    """Returns the numbers of this process' children."""
    own = os.getpid()
    with contextlib.suppress(OSError):
        return [int(number) for number in Path(f"/proc/{own}/task/{own}/children").read_text().split()]
    found = []
    for folder in Path("/proc").iterdir():  # a kernel without that file
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == own:
                    found.append(int(folder.name))
    return found


def _end_as(status: int) -> None:
    """Ends this process as one with that status did."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the worker has left the core file
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if not os.WIFSIGNALED(status) else 1)
