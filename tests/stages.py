"""Says where the tests are: how many of each part have run, every few seconds, and each failure when it is found."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.parts import PARTS, part_of

#: Seconds from one line to the next.
EVERY = 20.0


class Stages:
    """A plugin of pytest for the process that prints."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._began = self._said = time.monotonic()
        self._all: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        self._failed: list[str] = []

    @property
    def _terminal(self) -> Any:
        return self._config.pluginmanager.getplugin("terminalreporter")

    def _begin(self, tests: Iterable[str]) -> None:
        if not self._all:
            self._all.update(part_of(Path(test.split("::", maxsplit=1)[0])) for test in tests)
            self._say(f"3 of 3  {self._all.total()} tests: {self._counts(self._all)}")

    def _say(self, line: str) -> None:
        self._terminal.write_line(line)
        self._terminal.flush()  # also into a pipe

    def _counts(self, counts: Counter[str]) -> str:
        return ", ".join(f"{part} {counts[part]}" for part in PARTS if self._all[part])

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Counts the tests of this process, if no others run them."""
        if session.items:
            self._begin(item.nodeid for item in session.items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """Prints no letter for a test that has passed, failed or was skipped."""
        if not isinstance(report, pytest.TestReport) or hasattr(report, "wasxfail"):
            return None
        if report.passed:
            return ("passed" if report.when == "call" else ""), "", ""
        if report.failed:
            return ("failed" if report.when == "call" else "error"), "", "FAILED"
        return "skipped", "", "SKIPPED"

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts a test that has ended, and says how far all are."""
        if report.failed:
            self._failed.append(report.nodeid)
            self._say(f"failed: {report.nodeid}")
        if report.when == "teardown":
            self._done[part_of(Path(report.nodeid.split("::", maxsplit=1)[0]))] += 1
        now = time.monotonic()
        if now - self._said >= EVERY:
            self._said = now
            done = ", ".join(f"{part} {self._done[part]}/{n}" for part in PARTS if (n := self._all[part]))
            failed = f"; {len(self._failed)} failed" if self._failed else ""
            minutes, seconds = divmod(int(now - self._began), 60)
            self._say(f"{minutes:3}:{seconds:02}  {done}{failed}")
