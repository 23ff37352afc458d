"""Starts gateways in processes that have the packages of a gateway already: their imports take most of a start.

The fork server of `multiprocessing` imports PACKAGES once. Each gateway is a process of its own, which it forks.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

#: What nothing but a gateway's own modules would import, these do. ONNX Runtime begins a thread, which only waits: a
#: forked process works without it. Models run in sessions of their own, with threads of their own.
PACKAGES = (
    "opgate.service.run", "anyio._backends._asyncio", "fastapi_offline", "opentelemetry", "pynvml", "rapidjson", "typer",
    "uvloop", "watchfiles",
)  # fmt: skip

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([*PACKAGES, __name__])


class Prepared:
    """A process that runs `python -m program *arguments`. It has what is used here of `subprocess.Popen`."""

    def __init__(self, program: str, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.args = [sys.executable, "-m", program, *arguments]
        receiving, sending = _CONTEXT.Pipe(duplex=False)
        self._process = _CONTEXT.Process(
            target=_run, args=(program, arguments, str(folder), dict(environment), sending), daemon=True
        )
        self._process.start()
        sending.close()
        self.stderr = os.fdopen(os.dup(receiving.fileno()), errors="replace")
        receiving.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (status := self.poll()) is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended, and the server of processes knows first
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(
    program: str, arguments: Sequence[str], folder: str, environment: Mapping[str, str], stderr: Connection
) -> None:
    os.dup2(stderr.fileno(), 2)
    stderr.close()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    try:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    finally:
        logging.shutdown()  # a process of multiprocessing ends without what is registered with atexit
