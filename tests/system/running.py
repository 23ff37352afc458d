"""A real gateway in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parent.parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Gateway:
    process: subprocess.Popen[bytes]
    http_port: int
    grpc_port: int

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=10) as answer:
            return answer.read().decode()

    def metric(self, name: str, model: str) -> float:
        """The value of a metric of a model, as /metrics has it."""
        for line in self.get("/metrics").splitlines():
            if line.startswith(f'{name}{{model="{model}"'):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(f"{name} of {model}")


@contextmanager
def running_gateway(repository: Path = PROJECT / "model_repository", **environment: str) -> Iterator[Gateway]:
    """A gateway that is ready; ends it with SIGTERM and checks that it went in peace."""
    http_port, grpc_port = free_port(), free_port()
    command = [sys.executable, "-m", "opgate", "serve", "--model-repository", str(repository),
               "--http-port", str(http_port), "--grpc-port", str(grpc_port)]  # fmt: skip
    process = subprocess.Popen(command, env=os.environ | environment, cwd=PROJECT)
    gateway = Gateway(process, http_port, grpc_port)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                gateway.get("/v2/health/ready")
                break
            except OSError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the gateway did not get ready") from error
                time.sleep(0.05)
        yield gateway
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
