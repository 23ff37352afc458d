"""The process: how it starts, what it logs, how it ends."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import typer

from opgate.commands.serve import serve
from opgate.service.settings import Settings
from tests.service.onnx_models import batching, double
from tests.system.running import ROOT, Server, running
from tests.system.test_http import Connection, error, infer_request, output


def opgate(*arguments, **more):
    return subprocess.run(
        [sys.executable, "-m", "opgate", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, **more
    )


def test_sigterm_finishes_what_was_accepted(repository):
    server = Server(repository)
    with Connection(server) as half_sent, Connection(server) as idle:
        assert (output(idle.send(infer_request(1.0)).read()) == 2).all()
        data = infer_request(9.0, rows=16)
        half_sent.send(data[:300])
        assert (output(idle.send(infer_request(1.0)).read()) == 2).all()  # by now the server has read the first half
        ended = []
        stopper = threading.Thread(target=lambda: ended.append(server.stop()))
        stopper.start()
        assert idle.closed()  # idle connections end soon
        half_sent.send(data[300:])
        answer = half_sent.read()
        assert (output(answer) == 18).all()
        assert answer[1]["connection"] == "close"
        stopper.join(30)
    assert ended == [0]
    messages = [json.loads(line)["message"] for line in server.log if line.startswith("{")]
    assert messages[-1] == "stopped"


def test_sigterm_without_anything_to_do(repository):
    server = Server(repository, "--no-grpc")
    assert server.grpc is None
    assert server.stop() == 0


def test_a_model_that_fails_is_named_and_the_server_stays_up(tmp_path):
    double(tmp_path, "good", config=batching())
    double(tmp_path, "bad", config='model_repository_agents { agents [ { name: "a" } ] }')
    with running(tmp_path) as server, Connection(server) as connection:
        ready = connection.send(b"GET /v2/health/ready HTTP/1.1\r\nHost: t\r\n\r\n").read()
        assert error(ready) == (400, "not every model is available: bad")
        asked = connection.send(infer_request(path="/v2/models/bad/infer")).read()
        assert asked[0] == 503
        assert "model_repository_agents" in error(asked)[1]
        assert (output(connection.send(infer_request(path="/v2/models/good/infer")).read()) == 2).all()
        lines = [json.loads(line) for line in server.log if line.startswith("{")]
        assert any(line["level"] == "error" and line.get("model") == "bad" for line in lines)
    with running(tmp_path, "--no-strict-readiness") as server, Connection(server) as connection:
        assert connection.send(b"GET /v2/health/ready HTTP/1.1\r\nHost: t\r\n\r\n").read()[0] == 200


def test_overload_says_when_to_come_back(tmp_path):
    waits = "dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 300000 }"
    double(tmp_path, "double", config=batching(waits))
    with running(tmp_path, env={"OPGATE_MAX_CONCURRENT_REQUESTS": "1"}) as server, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(Connection(server)) for _ in range(4)]
        for connection in connections:
            connection.send(infer_request(1.0))
        answers = [connection.read() for connection in connections]
        assert sorted(status for status, _, _ in answers) == [200, 503, 503, 503]
        assert all(headers["retry-after"] == "1" for status, headers, _ in answers if status == 503)


def test_a_port_in_use_and_a_repository_that_is_not_there(server, tmp_path):
    double(tmp_path, "m")
    finished = opgate("serve", "--model-repository", str(tmp_path), "--http-port", str(server.http), "--grpc-port", "0")
    assert finished.returncode == 1
    assert "Address already in use" in finished.stderr and "name another with --http-port" in finished.stderr
    for options, named in ((["--http-host"], "--http-host"), (["--http-port", "0", "--grpc-host"], "--grpc-host")):
        finished = opgate("serve", "--model-repository", str(tmp_path), *options, "999.1.1.1")
        assert finished.returncode == 1 and f"name another with {named}" in finished.stderr
    finished = opgate("serve", "--model-repository", str(tmp_path / "none"))
    assert finished.returncode == 1
    assert "is not a directory" in finished.stderr
    finished = opgate("serve", "--http-port", "99999")
    assert finished.returncode == 2
    assert "--http-port" in finished.stderr


def test_each_option_is_that_of_a_setting():
    app = typer.Typer()
    app.command()(serve)
    command = typer.main.get_command(app)
    examples = {bool: ((), True), int: (("7",), 7), float: (("0.5",), 0.5), Path: (("a/b",), Path("a/b"))}
    for name in Settings.flags():
        annotation = Settings.model_fields[name].annotation
        kinds = [kind for kind in (annotation, *get_args(annotation)) if kind in examples]
        given, value = examples[kinds[0]] if kinds else (("abc",), "abc")
        if Settings.is_joined(name):
            given, value = ("abc", Settings.option(name), "def"), ["abc", "def"]
        context = command.make_context("serve", [Settings.option(name), *given])
        assert context.params.pop(name) == value, name
        assert not any(context.params.values()), name


class TestInfer:
    """`opgate infer` answers as /predict does, with and without a server."""

    @pytest.fixture(params=["here", "server"])
    def where(self, request, repository, server):
        return ["--model-repository", str(repository)] if request.param == "here" else ["--url", server.url]

    def test_values(self, where, tmp_path):
        finished = opgate("infer", "double", "-i", "x=[1, 2, 3, 4]", *where)
        assert finished.returncode == 0, finished.stderr
        assert json.loads(finished.stdout)["outputs"] == {"y": [2, 4, 6, 8]}
        np.save(tmp_path / "x.npy", np.ones(4, np.float32))
        finished = opgate("infer", "double", "-i", f"x=@{tmp_path / 'x.npy'}", *where)
        assert json.loads(finished.stdout)["outputs"] == {"y": [2, 2, 2, 2]}

    def test_mistakes(self, where):
        finished = opgate("infer", "double", "-i", "x=[1, 2]", *where)
        assert finished.returncode == 1
        assert "got shape [2]" in finished.stderr
        assert "Traceback" not in finished.stderr
        assert "unknown model" in opgate("infer", "none", "-i", "x=1", *where).stderr

    def test_a_file(self, where, tmp_path):
        """It may be a sound as well as a picture; --image is its older name."""
        (tmp_path / "sound.wav").write_bytes(b"RIFF")
        for name in ("--file", "--image"):
            finished = opgate("infer", "double", name, str(tmp_path / "sound.wav"), *where)
            assert finished.returncode == 1 and "model 'double' takes no file" in finished.stderr
