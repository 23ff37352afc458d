"""Runs a gateway with one configuration of a model in a process of its own, and loads it."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from opgate.child_process import ChildProcess, tied
from opgate.load.http import HttpClient
from opgate.load.run import Measured, Plan, Run
from opgate.load.sequences import length_of
from opgate.load.target_model import Input, LoadError
from opgate.service.repository.loader import copied

_START_SECONDS = 120


class Gateway:
    """A gateway that serves one model on a free port of 127.0.0.1."""

    def __init__(self, process: ChildProcess, url: str, model: str, sequence_length: int | None) -> None:
        self._process, self._model, self._sequence_length = process, model, sequence_length
        self.url = url

    def loop_seconds(self) -> float:
        """Returns the CPU time that the event loop has used, which is the first thread of the process."""
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9

    async def load(self, inputs: Sequence[Input], plan: Plan) -> Measured:
        """Sends load to the model. Raises LoadError if the first request is refused."""
        client = HttpClient(self.url)
        try:
            await client.model(self._model, "")
            client.prepare(inputs, length_of(self._sequence_length, client.serves_sequences))
            await client.first()
            return await Run(client, plan).run()
        finally:
            await client.close()


@contextmanager
def serving(repository: Path, config: Any, version: int, sequence_length: int | None = None) -> Iterator[Gateway]:
    """Serves a version of a model with another config. Raises LoadError if it doesn't start.

    `sequence_length` is how many requests a sequence of its load has, None for what is usual.
    """
    with tempfile.TemporaryDirectory(prefix="opgate-tune-") as temporary:
        folder = Path(temporary) / config.name
        folder.mkdir()
        for path in (repository / config.name).iterdir():
            if path.is_file() and path.name != "config.pbtxt":
                _link_or_copy(str(path), str(folder / path.name))
            elif path.name == str(version):
                shutil.copytree(path, folder / path.name, copy_function=_link_or_copy)
        alone = copied(config)
        alone.ClearField("version_policy")
        (folder / "config.pbtxt").write_text(text_format.MessageToString(alone))
        command = [sys.executable, "-m", "opgate", "serve", "--model-repository", temporary]
        # The gateway must say where it listens, whatever its variables are.
        command += ["--log-format", "json", "--log-level", "info", "--allow-http", "--no-grpc"]
        command += ["--http-host", "127.0.0.1", "--http-port", "0", "--backend", "onnxruntime"]
        process = ChildProcess(tied(command), stderr=subprocess.PIPE, text=True)
        try:
            yield Gateway(process, f"http://127.0.0.1:{_port(process)}", config.name, sequence_length)
        finally:
            process.end((signal.SIGTERM, 40.0))


def _link_or_copy(source: str, target: str) -> None:
    """A model file may be large. It is linked where that is possible."""
    with suppress(OSError):
        os.link(os.path.realpath(source), target)
        return
    shutil.copy2(source, target)


def _port(process: ChildProcess) -> int:
    """Waits until the gateway listens, and returns its port. Raises LoadError."""
    told: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    log: list[str] = []

    def read() -> None:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                log.append(line)
                with suppress(ValueError):
                    record = json.loads(line)
                    if record.get("message") == "listening":
                        told.put(record["http_port"])
        finally:
            told.put(None)

    threading.Thread(target=read, daemon=True).start()
    try:
        port = told.get(timeout=_START_SECONDS)
    except queue.Empty:
        port = None
    if port is None:
        raise LoadError(f"the gateway did not start: {''.join(log[-5:]).strip()}")
    return port
