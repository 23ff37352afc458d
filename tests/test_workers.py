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
    config.pluginmanager.register(Workers(2, lambda item: item.path.name))
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


def run(folder: Path, *options: str) -> str:
    """Runs two files of tests in two processes. Returns what pytest prints."""
    (folder / "conftest.py").write_text(CONFTEST)
    for name in ("a", "b"):
        (folder / f"test_{name}.py").write_text(TESTS)
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


def test_the_first_failure_can_end_all(tmp_path: Path) -> None:
    said = run(tmp_path, "--maxfail=1")
    assert "stopping after 1 failures" in said and "1 failed" in said, said
