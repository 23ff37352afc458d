"""What docs/workers.md promises of confinement, against a model that tries all of it in every thread that it can reach."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from opgate.service.isolation.confinement import Confinement
from opgate.service.isolation.process import environment
from tests.system.clients import connect
from tests.system.running import Server, running
from tests.system.test_python_models import tensor, write

CONFIG = """input [ { name: "WHAT" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [ { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] } ]"""
CONFINED = ("--isolation-memory-bytes", str(500 << 20), "--no-isolation-network", "--no-isolation-writes")
SECRETS = {
    "OPGATE_HTTP_RESTRICTED_API": "model-repository:x=secret-token",
    "AWS_SECRET_ACCESS_KEY": "secret-key",
    "MY_PASSWORD": "secret-password",
}
REFUSED = {"PermissionError", "MemoryError", "ProcessLookupError"}


def repository_of(folder: Path) -> Path:
    models = folder / "models"
    version = write(models, "hostile", CONFIG) / "1"
    for name in ("victim", "victim2"):
        (version / name).write_text("mine")
    (version / "empty").mkdir()
    return models


def ask(server: Server, what: str) -> Any:
    client = connect(server, "http")
    try:
        inputs = [tensor("http", "WHAT", np.array([what], np.object_), "BYTES")]
        return json.loads(client.infer("hostile", inputs).as_numpy("TOLD")[0])
    finally:
        client.close()


@pytest.fixture(scope="module")
def confined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    models = repository_of(tmp_path_factory.mktemp("confined"))
    options = (*CONFINED, "--isolation-environment", "MY_NAME", "--isolation-environment", "MY_OTHER*")
    env = {**SECRETS, "MY_NAME": "bob", "MY_OTHERS": "alice"}
    with socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0opgate-test-abstract")
        abstract.listen()
        with running(models, "--allow-python-models", *options, env=env) as server:
            yield server


def assert_refused(found: dict[str, str]) -> None:
    assert found
    done = {name: how for name, how in found.items() if how not in REFUSED}
    assert not done


@pytest.mark.parametrize(
    "where", ["import", "initialize", "here:writes,network,gateway,machine", "thread:writes,network,gateway"]
)
def test_a_confined_model_does_nothing_of_it(confined: Server, where: str) -> None:
    assert_refused(ask(confined, where))
    assert confined.get("/v2/health/live") == ""


def test_threads_of_the_worker_neither(confined: Server) -> None:
    """A thread that is not the model's asks whether the model is ready."""
    client = connect(confined, "http")
    assert client.is_model_ready("hostile")
    client.close()
    assert_refused(ask(confined, "elsewhere"))


@pytest.mark.parametrize("way", ["allocate", "allocate in steps", "numpy", "shared anonymous", "memfd", "children"])
def test_its_memory_has_a_bound(confined: Server, way: str) -> None:
    """It can't have it, or the kernel ends the worker."""
    try:
        assert_refused(ask(confined, f"thread:memory:{way}"))
    except InferenceServerException as error:
        assert "died of SIGKILL" in str(error)
    wait_until_it_serves(confined)


def wait_until_it_serves(server: Server) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            ask(server, "threads")
            return
        except InferenceServerException:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_every_thread_is_confined(confined: Server) -> None:
    found = ask(confined, "threads")
    assert len(found) > 1
    assert {tuple(fields[1:3]) for fields in found} == {("1", "2")}
    assert all(int(fields[3], 16) & ~(1 << 2) == 0 for fields in found)


def test_it_inherits_nothing_that_it_does_not_need(confined: Server) -> None:
    env = ask(confined, "environment")
    assert "secret" not in json.dumps(env)
    assert env["MY_NAME"] == "bob" and env["MY_OTHERS"] == "alice" and env["PATH"]
    kinds = ask(confined, "descriptors")
    ours = {os.readlink(f"/proc/{confined.process.pid}/fd/{number}") for number in (1, 2)}  # where the log goes
    known = ("/dev/null", "/memfd:opgate-", "pipe:", "/proc/")
    assert not [kind for kind in kinds if not kind.startswith(known) and kind not in ours]


def test_the_log_says_what_is_in_force(confined: Server) -> None:
    line = next(line for line in confined.log if "a worker process runs model" in line)
    assert "no new privileges, at most 524288000 bytes" in line and "no network, no files written" in line


@pytest.fixture(scope="module")
def unconfined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(repository_of(tmp_path_factory.mktemp("unconfined")), "--allow-python-models", env=SECRETS) as server:
        yield server


@pytest.mark.parametrize("where", ["import", "initialize", "here:gateway", "thread:gateway", "child:gateway"])
def test_no_model_gets_into_the_gateway(unconfined: Server, where: str) -> None:
    found = ask(unconfined, where)
    assert_refused({name: how for name, how in found.items() if name.endswith(("of the gateway", "of the keeper"))})
    assert "secret-token" not in json.dumps(ask(unconfined, "environment"))
    assert ask(unconfined, "environment")["MY_PASSWORD"] == "secret-password"


def gone(pids: list[int]) -> bool:
    """Whether none of the processes runs, within some seconds."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        running_now = []
        for pid in pids:
            try:
                state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            running_now += [pid] * (state != "Z")
        if not running_now:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("way", ["SIGKILL", "SIGTERM", "crash", "unload", "worker", "keeper stopped"])
def test_what_a_model_starts_ends_with_it(tmp_path: Path, way: str) -> None:
    models = repository_of(tmp_path)
    options = ("--model-control-mode", "explicit", "--load-model", "*") if way == "unload" else ()
    server = Server(models, "--allow-python-models", *options)
    try:
        pids = sorted(set(ask(server, "spawn")))
        assert len(pids) == 2 and all(Path(f"/proc/{pid}").exists() for pid in pids)
        workers = [
            int(pid)
            for path in Path(f"/proc/{server.process.pid}/task").glob("*/children")
            for pid in path.read_text().split()
        ]
        if way == "keeper stopped":
            for pid in workers:
                os.kill(pid, signal.SIGSTOP)
            server.process.kill()
        elif way == "SIGKILL":
            server.process.kill()
        elif way == "SIGTERM":
            assert server.stop() == 0
        elif way == "crash":
            with pytest.raises(Exception, match="SIGABRT"):
                ask(server, "crash")
        elif way == "unload":
            client = connect(server, "http")
            client.unload_model("hostile")
            client.close()
        else:
            for pid in workers:
                for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                    with contextlib.suppress(ProcessLookupError):  # its keeper was quicker
                        os.kill(int(child), signal.SIGKILL)
        assert gone(pids)
    finally:
        server.process.kill()
        server.stop()


def test_the_environment_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPGATE_TOKEN", "AWS_KEY", "MINE", "CUDA_VISIBLE_DEVICES", "OPGATE_CPU_LEVEL"):
        monkeypatch.setenv(name, "1")
    open_ = environment(Confinement(), [])
    assert "OPGATE_TOKEN" not in open_ and "AWS_KEY" not in open_ and {"MINE", "OPGATE_CPU_LEVEL"} <= open_.keys()
    closed = environment(Confinement(no_network=True), ["AWS_*"])
    assert "MINE" not in closed and {"AWS_KEY", "CUDA_VISIBLE_DEVICES", "PATH"} <= closed.keys()
