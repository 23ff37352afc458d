"""Runs a real gateway in a separate process, on free ports."""

from __future__ import annotations

import json
import os
import queue
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.system.prepared import Prepared

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """Returns a port of 127.0.0.1 that nobody listens on now. It is none of those that the system gives to connections:
    one of them, even the connection to a server that is gone, could take it before a server does."""
    while True:
        try:
            with socket.create_server(("127.0.0.1", random.randrange(10_000, 32_000))) as listener:
                return int(listener.getsockname()[1])
        except OSError:
            continue


class Server:
    """A process of `opgate serve`. A thread reads its log, so that it never blocks, and finds its ports there."""

    def __init__(
        self,
        repository: Path,
        *options: str,
        env: Mapping[str, str] | None = None,
        program: str = "opgate",
        python: str = sys.executable,
        folder: Path = ROOT,
    ) -> None:
        arguments = ["serve", "--model-repository", str(repository), "--http-port", "0", "--grpc-port", "0", *options]
        environment = {**os.environ, **(env or {})}
        self.process: Prepared | subprocess.Popen[str]
        if python == sys.executable:
            self.process = Prepared(program, arguments, folder, environment)
        else:
            command = [python, "-m", program, *arguments]
            self.process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, env=environment)
        self.log: list[str] = []
        listening: queue.SimpleQueue[dict[str, int] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(listening,), daemon=True)
        self._reader.start()
        record = listening.get(timeout=180)  # a busy machine starts Triton and compilers beside it
        if record is None:
            raise RuntimeError("the server did not start:\n" + "".join(self.log))
        self.http = record["http_port"]
        self.grpc = record.get("grpc_port")

    def _read(self, listening: queue.SimpleQueue[dict[str, int] | None]) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            record = json.loads(line) if line.startswith("{") else {}
            if record.get("message") == "listening":
                listening.put(record)
        listening.put(None)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}"

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return str(answer.read().decode())

    def metric(self, name: str, model: str) -> float:
        """Returns the value of a metric for a model, from /metrics."""
        for line in self.get("/metrics").splitlines():
            if line.startswith(f'{name}{{model="{model}"'):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(f"{name} of {model}")

    def number(self, name: str) -> float:
        """Returns the value of a metric without labels."""
        for line in self.get("/metrics").splitlines():
            if line.startswith(f"{name} "):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(name)

    def longest_turn(self) -> float:
        """Returns the most milliseconds of CPU time that the event loop took for a turn, see `longest_turns`."""
        return self.longest_turns()[0]

    def longest_turns(self) -> tuple[float, float]:
        """Returns the most milliseconds between two turns of the event loop since the last call: CPU time of its
        thread, and time.

        Only for the program tests.system.watched_server.
        """
        told = self.tell("longest turn")
        return float(told["cpu_ms"]), float(told["ms"])

    def tell(self, message: str) -> dict[str, Any]:
        """Sends SIGUSR1, and returns the record that the program logs then."""
        before = len(self.log)
        self.process.send_signal(signal.SIGUSR1)
        for _ in range(1000):
            for line in self.log[before:]:
                if f'"{message}"' in line:
                    return dict(json.loads(line))
            time.sleep(0.01)
        raise TimeoutError(f"the server did not tell: {message}")

    def megabytes(self, field: str) -> float:
        """Returns memory of the process: VmRSS is what it has, VmHWM the most that it had since `forget_peak`."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{field}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    def forget_peak(self) -> None:
        """Makes the most memory that the process had what it has now."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def stop(self, seconds: float = 30) -> int:
        """Sends SIGTERM, waits, and returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()
            self._reader.join(10)
            assert self.process.stderr is not None
            self.process.stderr.close()


@contextmanager
def running(repository: Path, *options: str, **how: Any) -> Iterator[Server]:
    """Runs a server that has loaded its repository. It must be alive at the end of the block, and exit with 0. `how`
    are the named arguments of Server."""
    server = Server(repository, *options, **how)
    try:
        yield server
        assert server.process.poll() is None, "the server died:\n" + "".join(server.log)
    finally:
        status = server.stop()
    assert status == 0, "".join(server.log)
