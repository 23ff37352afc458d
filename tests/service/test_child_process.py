"""How child processes end: with their parent, in steps, and with what they have started. The processes are real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from opgate.child_process import ChildProcess, tied, wait_before_start
from tests.system.test_confinement import gone

SLEEPS = ["sleep", "300"]
#: Says a word when its signals are set, and goes on after SIGTERM.
STUBBORN = ["sh", "-c", "trap '' TERM; echo begun; while :; do sleep 0.05; done"]
#: Leaves a process behind in its group, says its number, and ends.
LEAVES = ["sh", "-c", "sleep 300 & echo $!; exit 7"]
#: Starts a process that ignores SIGHUP and says its number, and waits for it.
PARENT = """
import signal
from opgate.child_process import ChildProcess, tied
signal.signal(signal.SIGHUP, signal.SIG_IGN)
child = ChildProcess(tied(["sh", "-c", "echo $$; exec sleep 300"]))
child.wait()
"""


def first_line(process: ChildProcess) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def test_a_tied_process_ends_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        parent.kill()
    assert gone([child])


def test_a_tied_process_gets_descriptors_and_environment() -> None:
    ours, theirs = os.pipe()
    command = tied([sys.executable, "-c", f"import os; os.write({theirs}, os.environ['GIVEN'].encode())"])
    process = ChildProcess(command, [theirs], env=os.environ | {"GIVEN": "given"})
    os.close(theirs)
    assert process.wait(20) == 0
    with open(ours) as told:
        assert told.read() == "given"


def test_it_has_the_exit_status_of_its_command() -> None:
    assert ChildProcess(tied(["sh", "-c", "exit 7"])).wait(20) == 7
    assert ChildProcess(tied(["sh", "-c", "kill -ABRT $$"])).wait(20) == -signal.SIGABRT


def test_steps_end_it_in_their_order() -> None:
    assert ChildProcess(SLEEPS).end((signal.SIGTERM, 20.0)) == -signal.SIGTERM
    assert ChildProcess(SLEEPS).end() == -signal.SIGKILL
    stubborn = ChildProcess(STUBBORN, stdout=subprocess.PIPE)
    assert first_line(stubborn) == "begun"
    assert stubborn.end((signal.SIGTERM, 0.2), (signal.SIGUSR1, 20.0)) == -signal.SIGUSR1
    stubborn = ChildProcess(STUBBORN, stdout=subprocess.PIPE)
    assert first_line(stubborn) == "begun"
    assert stubborn.end((signal.SIGTERM, 0.2)) == -signal.SIGKILL


def test_a_stopped_process_takes_the_signal() -> None:
    process = ChildProcess(SLEEPS)
    process.send_signal(signal.SIGSTOP)
    assert process.end((signal.SIGTERM, 20.0)) == -signal.SIGTERM


@pytest.mark.parametrize("reaped", [False, True])
def test_what_it_leaves_behind_ends_too(reaped: bool) -> None:
    process = ChildProcess(LEAVES, stdout=subprocess.PIPE)
    left = int(first_line(process))
    os.kill(left, 0)
    if reaped:
        process.wait(20)
    assert process.end((signal.SIGCONT, 20.0)) == 7
    assert gone([left])


def test_a_process_that_dies_for_a_day_still_starts_again() -> None:
    assert [wait_before_start(n) for n in (1, 3, 4, 5, 6, 100_000)] == [0, 0, 0.5, 1, 2, 30]
