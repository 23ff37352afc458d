"""Runs a real gateway in a separate process, on free ports."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Server:
    """A process of `opgate serve`. A thread reads its log, so that it never blocks, and finds its ports there."""

    def __init__(self, repository: Path, *options: str, env: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "opgate", "serve", "--model-repository", str(repository)]
        command += ["--http-port", "0", "--grpc-port", "0", *options]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
        )
        self.log: list[str] = []
        listening: queue.SimpleQueue[dict[str, int] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(listening,), daemon=True)
        self._reader.start()
        record = listening.get(timeout=60)
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
def running(repository: Path, *options: str, env: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Runs a server that has loaded its repository. It must be alive at the end of the block, and exit with 0."""
    server = Server(repository, *options, env=env)
    try:
        yield server
        assert server.process.poll() is None, "the server died:\n" + "".join(server.log)
    finally:
        status = server.stop()
    assert status == 0, "".join(server.log)
