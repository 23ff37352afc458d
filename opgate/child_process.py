"""Child processes: how they start, end with their parent, are ended, and are started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

# Has the kernel kill this process when its parent ends (PR_SET_PDEATHSIG). That holds for the command that takes its
# place, too.
_TIE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
_SIGNALS = {
    signal.SIGSEGV: "SIGSEGV (a bad memory access)",
    signal.SIGBUS: "SIGBUS (a bad memory access)",
    signal.SIGFPE: "SIGFPE (a bad calculation)",
    signal.SIGILL: "SIGILL (an illegal instruction)",
    signal.SIGABRT: "SIGABRT (it gave up)",
    signal.SIGKILL: "SIGKILL (from outside; the kernel sends it when memory runs out)",
}
# After this many deaths in a row the next start waits: twice as long after each further death.
_AT_ONCE = 3
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0


class ChildProcess(subprocess.Popen[Any]):
    """A process in a session of its own, so no Ctrl-C reaches it. The process that started it ends it."""

    def __init__(self, command: Sequence[str], files: Sequence[int] = (), **options: Any) -> None:
        """Starts a process, which gets the file descriptors `files`. `options` are those of Popen. Raises OSError."""
        self._group_is_left = True
        super().__init__(command, stdin=subprocess.DEVNULL, pass_fds=files, start_new_session=True, **options)

    def end(self, *steps: tuple[signal.Signals, float]) -> int:
        """Ends the process. Each step sends a signal and waits for so many seconds. Then the process is killed, and all
        others in its group. Returns its exit status, as that of Popen."""
        for number, seconds in steps:
            self.send_signal(number)
            self.send_signal(signal.SIGCONT)  # somebody may have stopped it
            with suppress(subprocess.TimeoutExpired):
                self.wait(seconds)
                break
        if self._group_is_left:
            self._group_is_left = False  # another group may get its number
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        return self.wait()


def tied(command: Sequence[str]) -> list[str]:
    """Returns a command that runs `command` and is killed when the thread that starts it ends."""
    return [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), *command]


def cause_of_death(status: int, what: str) -> str:
    """Returns the sentence that says what a process died of. `status` is that of Popen, `what` names the process."""
    if status < 0:
        number = signal.Signals(-status) if -status in set(signal.Signals) else None
        name = _SIGNALS.get(number, number.name) if number is not None else f"signal {-status}"
        return f"{what} died of {name}"
    return f"{what} ended with the exit status {status}"


def wait_before_start(failures: int) -> float:
    """Returns how many seconds the next start of a process waits after so many deaths in a row."""
    return 0.0 if failures <= _AT_ONCE else min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(failures - _AT_ONCE - 1, 10))
