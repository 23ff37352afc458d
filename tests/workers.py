"""Runs the tests in several processes, which are forks of the one that has collected them.

pytest-xdist collects all tests in each of its processes. That takes a minute of processor time in each on a new machine.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import multiprocessing
import os
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

_FORK = multiprocessing.get_context("fork")


class Worker:
    """A process that runs tests. `tests` are the indices of those that it has been given and has not finished."""

    def __init__(self, number: int, session: pytest.Session, others: list[Worker]) -> None:
        self.number = number
        self.tests: deque[int] = deque()
        self.pipe, end = _FORK.Pipe()
        ends = [self.pipe, *(other.pipe for other in others)]  # which the new process must not keep open
        self.process = _FORK.Process(target=_Work(session, end).run, args=(number, ends))
        self.process.start()
        end.close()


class Workers:
    """A plugin of pytest that replaces its loop over the tests.

    `group_of` returns the name of a test's group. The tests of a group run in one process, one after the other. Groups
    begin in the order of their first tests.
    """

    def __init__(self, count: int, group_of: Callable[[pytest.Item], str]) -> None:
        self._count = count
        self._group_of = group_of

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Runs all tests, unless there are errors of the collection, or nothing is to be run."""
        if session.testsfailed or session.config.option.collectonly:
            return None
        groups: dict[str, deque[int]] = {}
        for index, item in enumerate(session.items):
            groups.setdefault(self._group_of(item), deque()).append(index)
        waiting = deque(groups.values())
        _keep_from_the_collector()
        workers: list[Worker] = []
        try:
            for number in range(min(self._count, len(waiting))):
                workers.append(Worker(number, session, workers))
            _give_out(session, waiting, workers)
        finally:
            for worker in workers:
                worker.process.terminate()
                worker.process.join()
        return True


def _give_out(session: pytest.Session, waiting: deque[deque[int]], workers: list[Worker]) -> None:
    """Gives the groups to the processes, and passes what they report on to the plugins of this process."""
    hook = session.config.hook
    while workers:
        pipes = {worker.pipe: worker for worker in workers}
        for pipe in wait(list(pipes)):
            assert isinstance(pipe, Connection)
            worker = pipes[pipe]
            what, data = _received(pipe)
            if what == "gone":
                workers.remove(worker)
                worker.process.join()
                if worker.tests:
                    died = worker.tests.popleft()
                    hook.pytest_runtest_logreport(report=_of_death(session.items[died], worker.process.exitcode))
                    if worker.tests:
                        waiting.appendleft(worker.tests)
                    workers.append(Worker(worker.number, session, workers))
            elif what == "next":
                group = waiting.popleft() if waiting else deque()
                worker.tests.extend(group)
                with contextlib.suppress(BrokenPipeError):  # the process has died, and is noticed above
                    pipe.send(list(group))
            elif what == "finished":
                worker.tests.popleft()
            else:
                report = hook.pytest_report_from_serializable(config=session.config, data=data)
                hook.pytest_runtest_logreport(report=report)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
    if left := sum(map(len, waiting)):
        raise session.Interrupted(f"{left} tests were not run, because the processes ended before them")


def _received(pipe: Connection) -> tuple[str, Any]:
    """Returns what a process says, with its data."""
    try:
        what, data = pipe.recv()
    except (EOFError, ConnectionResetError):
        return "gone", None
    return what, data


def _print_into_own_files(manager: Any) -> None:
    """Puts new files in the place of those that keep what tests print, which are those of the first process. Handlers
    of logs that were made there refer to them."""
    for stream in (manager._global_capturing.out, manager._global_capturing.err):
        if hasattr(stream, "targetfd"):
            with tempfile.TemporaryFile() as file:
                os.dup2(file.fileno(), stream.tmpfile.fileno())
                os.dup2(file.fileno(), stream.targetfd)


def _keep_from_the_collector() -> None:
    """Lets the garbage collector look only at objects that are made from now on. Else each test pays for what the tests
    before it have imported and left."""
    gc.collect()
    gc.freeze()


def _of_death(item: pytest.Item, exit_code: int | None) -> pytest.TestReport:
    """Returns the report of a test whose process has died."""
    how = f"signal {signal.Signals(-exit_code).name}" if exit_code and exit_code < 0 else f"exit code {exit_code}"
    text = f"the process that ran the test ended with {how}"
    return pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")


class _Work:
    """What a process does."""

    def __init__(self, session: pytest.Session, pipe: Connection) -> None:
        self._session = session
        self._pipe = pipe

    def run(self, number: int, others: list[Connection]) -> None:
        """Runs tests until there are none."""
        for other in others:
            other.close()
        config = self._session.config
        plugins = config.pluginmanager
        for name in ("terminalreporter", "stages"):
            if plugins.has_plugin(name):
                plugins.unregister(name=name)
        plugins.register(self)
        _print_into_own_files(plugins.getplugin("capturemanager"))
        factory = config._tmp_path_factory  # type: ignore[attr-defined]
        factory._basetemp = factory.getbasetemp() / f"worker{number}"
        factory._basetemp.mkdir(exist_ok=True)
        tests = self._tests()
        test = next(tests, None)
        file = None
        while test is not None:
            if test.path != file:
                file = test.path
                _keep_from_the_collector()
            following = next(tests, None)  # fixtures that it has, too, are kept
            test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            self._pipe.send(("finished", None))
            test = following
        atexit._run_exitfuncs()

    def _tests(self) -> Iterator[pytest.Item]:
        while True:
            self._pipe.send(("next", None))
            group = self._pipe.recv()
            if not group:
                return
            yield from (self._session.items[index] for index in group)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Sends a report to the first process."""
        data = self._session.config.hook.pytest_report_to_serializable(config=self._session.config, report=report)
        self._pipe.send(("report", data))
