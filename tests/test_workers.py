"""The processes that run the tests: nothing is lost when one of them dies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import PROJECT

CONFTEST = """
from tests.workers import Workers

def pytest_configure(config):
    config.pluginmanager.register(Workers(COUNT, lambda item: item.path.name))
"""
TESTS = """
import os, signal, pytest

@pytest.fixture(scope="module")
def kept():
    return os.getpid()

@pytest.mark.parametrize("number", range(5))
def test(number, kept, tmp_path):
    print("said", number)
    if number == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 2:
        os._exit(0)
    assert kept == os.getpid() and number != 3
"""


LAST = """
import os

def test_first():
    pass

def test_last():
    os._exit(0)
"""


DEAD = """
import os

def pytest_plugin_registered(plugin):
    if type(plugin).__name__ == "_Work":
        os._exit(3)
"""


def run(folder: Path, *options: str, tests: str = TESTS, count: int = 2, more: str = "") -> str:
    """Runs two files of tests in so many processes. Returns what pytest prints."""
    (folder / "conftest.py").write_text(CONFTEST.replace("COUNT", str(count)) + more)
    for name in ("a", "b"):
        (folder / f"test_{name}.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *options, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=60).stdout


def test_every_test_is_reported_once(tmp_path: Path) -> None:
    """Also those that end their process, and those that would have run after them."""
    said = run(tmp_path)
    for name in ("a", "b"):
        for number, outcome in enumerate(("PASSED", "FAILED", "FAILED", "FAILED", "PASSED")):
            assert said.count(f"{outcome} test_{name}.py::test[{number}]") == 1, said
    assert said.count("ended with signal SIGSEGV") == said.count("ended with exit code 0") == 4, said
    assert said.count("said 3\n") == 2 and "6 failed, 4 passed" in said


def test_a_death_in_the_last_test_of_a_group_ends_no_other(tmp_path: Path) -> None:
    said = run(tmp_path, tests=LAST, count=1)
    assert "2 failed, 2 passed" in said, said


def test_processes_that_die_before_their_first_test_are_noticed(tmp_path: Path) -> None:
    said = run(tmp_path, tests=LAST, more=DEAD)
    assert "4 tests were not run, because the processes ended before them" in said, said


def test_the_first_failure_can_end_all(tmp_path: Path) -> None:
    said = run(tmp_path, "--maxfail=1")
    assert "stopping after 1 failures" in said and "1 failed" in said, said
