"""Real servers in processes of their own, on free ports."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.service.onnx_models import batching, double, identity, pick, ragged_sum, write_config

ROOT = Path(__file__).resolve().parents[2]
TYPES = [
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BYTES",
]

PIPELINE = """platform: "ensemble" max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [
  { model_name: "double" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "mid" } },
  { model_name: "double" model_version: -1 input_map { key: "x" value: "mid" } output_map { key: "y" value: "y" } } ] }"""


class Server:
    """`opgate serve` as a process; ports are read from its log."""

    def __init__(self, repository, *options, env=None):
        command = [sys.executable, "-m", "opgate", "serve", "--model-repository", str(repository)]
        command += ["--http-port", "0", "--grpc-port", "0", *options]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
        )
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            record = json.loads(line) if line.startswith("{") else {}
            if record.get("message") == "listening":
                self.http, self.grpc = record["http_port"], record.get("grpc_port")
                break
        else:
            raise RuntimeError("the server did not start:\n" + "".join(self.log))

    @property
    def url(self):
        return f"http://127.0.0.1:{self.http}"

    def stop(self, seconds=30):
        """SIGTERM; returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(seconds)
        finally:
            self.process.kill()
            self.log += self.process.stderr.readlines()
            self.process.stderr.close()
        return status


@contextlib.contextmanager
def running(repository, *options, env=None):
    server = Server(repository, *options, env=env)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    double(folder, "double", config=batching(max_batch_size=16))
    double(folder, "large", config=batching(max_batch_size=4), shape=("batch", 3, 224, 224))
    double(folder, "plain", config='backend: "onnxruntime"', shape=("a", "b"))
    pick(folder, "pick", batching())
    ragged_sum(folder, "ragged")
    for name in TYPES:
        identity(folder, f"identity_{name}", name, config=batching())
    write_config(folder, "pipeline", PIPELINE)
    return folder


@pytest.fixture(scope="session")
def server(repository):
    with running(repository, "--max-body-bytes", str(8 << 20)) as made:
        yield made
        assert made.process.poll() is None, "the server died:\n" + "".join(made.log)


def wait_until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("it did not happen")
        time.sleep(0.01)
