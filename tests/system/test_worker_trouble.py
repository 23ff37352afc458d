"""Workers that fail, stop or ask too much: each client gets its own answer or an error in time, and nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.system.conftest import wait_until
from tests.system.resources import more_than, resources, settles
from tests.system.running import Server, running
from tests.system.test_python_models import write

TENSORS = """input [ { name: "X" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [ { name: "Y" data_type: TYPE_STRING dims: [ 1 ] } ]"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
HEAD = """
import os, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

def text(request):
    return pb_utils.get_input_tensor_by_name(request, "X").as_numpy().reshape(-1)[0].decode()

def answer(words):
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([words], object))])

class TritonPythonModel:
"""
ECHO = """
    def execute(self, requests):
        return [answer(str(os.getpid()) if text(request) == "pid" else text(request)) for request in requests]
"""
#: Calls another model with what it was told to be wrong, and goes on.
ASKS = """
    def execute(self, requests):
        return [answer(self.ask(request)) for request in requests]

    def ask(self, request):
        how, word = text(request).split(" ", 1)
        tensor = pb_utils.Tensor("X", np.array([word], object))
        options = {"inputs": [tensor], "model_name": "echo", "requested_output_names": ["Y"]}
        wrong = {
            "version": {"model_version": "latest"}, "timeout": {"timeout": None}, "name": {"model_name": "echo" * 200},
            "no name": {"model_name": None}, "inputs": {"inputs": [tensor] * 3}, "outputs": {"requested_output_names": ["Z"]},
            "parameters": {"parameters": {"a": "b" * 600_000}}, "id": {"request_id": "i" * 9_000_000},
            "huge": {"correlation_id": 10**30}, "": {},
        }
        try:
            options.update(wrong[how.replace("_", " ") if how != "right" else ""])
            found = pb_utils.InferenceRequest(**options).exec()
            if found.has_error():
                return "has_error"
            return pb_utils.get_output_tensor_by_name(found, "Y").as_numpy().reshape(-1)[0].decode()
        except Exception as error:
            return "failed " + type(error).__name__
"""
#: Its execute fails, and a thread sends afterwards.
LATE = """
    def execute(self, requests):
        for request in requests:
            words = text(request)
            threading.Thread(target=self.send, args=(request.get_response_sender(), words)).start()
            if words.startswith("fails"):
                time.sleep(0.01)
                raise RuntimeError("no")

    def send(self, sender, words):
        for i in range(20):
            time.sleep(0.005)
            try:
                sender.send(answer(words))
            except Exception:
                pass
        try:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        except Exception:
            pass
"""
#: Calls another model very often.
CALLS = """
    def execute(self, requests):
        return [answer(self.ask(text(request))) for request in requests]

    def ask(self, count):
        for i in range(int(count)):
            tensor = pb_utils.Tensor("X", np.array([str(i)], object))
            asked = pb_utils.InferenceRequest(model_name="echo", inputs=[tensor], requested_output_names=["Y"])
            found = asked.exec()
            assert pb_utils.get_output_tensor_by_name(found, "Y").as_numpy().reshape(-1)[0] == str(i).encode()
        return count
"""
ITSELF = CALLS.replace("int(count)", 'int(count != "0")').replace('"echo"', '"itself"')
#: Sends many responses of 100 kB and never asks whether somebody wants them.
SENDS = """
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for i in range(int(text(request))):
                sender.send(answer(str(i) + "x" * 100_000))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
MODELS = {
    "echo": ECHO,
    "asks": ASKS,
    "late": LATE,
    "calls": CALLS,
    "itself": ITSELF,
    "sends": SENDS,
}
RUN_TIMEOUT = 3.0


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trouble")
    for name, source in MODELS.items():
        write(folder, name, TENSORS + (DECOUPLED if name in ("late", "sends") else ""), HEAD + source)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with running(repository, "--allow-python-models", env={"OPGATE_RUN_TIMEOUT": str(RUN_TIMEOUT)}) as started:
        with ThreadPoolExecutor(8) as clients:  # threads that read long requests begin once
            for _ in range(40):
                clients.submit(ask, started, "echo", "x", parameters={"key": "v" * 600_000})
        yield started


def at_rest(server: Server) -> Counter[str]:
    """What the server has, when the workers that an earlier test has ended run again and each has answered."""
    for model in ("echo", "asks", "calls", "itself"):
        wait_until(lambda model=model: ask(server, model, "right 0" if model == "asks" else "0") == (200, "0"), 30)
    for model in ("late", "sends"):
        wait_until(lambda model=model: "0" in stream(server, model, "0" if model == "late" else "1")[-1], 30)
    return resources(server.process.pid)


def ask(
    server: Server, model: str, words: str, seconds: float = 20, parameters: dict[str, Any] | None = None, id: str = ""
) -> tuple[int, str]:
    """The status, and the answer or the error."""
    tensor = {"name": "X", "shape": [1], "datatype": "BYTES", "data": [words]}
    asked: dict[str, Any] = {"inputs": [tensor], **({"parameters": parameters} if parameters else {})}
    if id:
        asked["id"] = id
    url = f"{server.url}/v2/models/{model}/infer"
    try:
        with urllib.request.urlopen(url, json.dumps(asked).encode(), timeout=seconds) as found:
            return found.status, json.loads(found.read())["outputs"][0]["data"][0]
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]


def stream(server: Server, model: str, words: str) -> list[str]:
    """The words, or the error, of each event."""
    url = f"{server.url}/v2/models/{model}/generate_stream"
    try:
        with urllib.request.urlopen(url, json.dumps({"X": words}).encode(), timeout=20) as found:
            events = [line for line in found.read().decode().split("\n\n") if line]
    except urllib.error.HTTPError as error:
        events = ["data: " + error.read().decode()]
    told = [json.loads(event.removeprefix("data: ")) for event in events]
    return [event.get("Y", event.get("error")) for event in told]


WRONG = ["version", "timeout", "name", "no_name", "inputs", "outputs", "parameters", "id", "huge"]


@pytest.mark.parametrize("how", WRONG)
def test_a_call_that_fails_shifts_no_answer(server: Server, how: str) -> None:
    """An innocent model calls another wrongly for Alice. Bob gets what is his."""
    before = at_rest(server)
    for i in range(10):
        status, words = ask(server, "asks", f"{how} alice{i}")
        assert status == 200 and (words.startswith("failed ") or words in ("has_error", f"alice{i}")), words
        assert ask(server, "asks", f"right bob{i}") == (200, f"bob{i}")
    settles(server.process.pid, before)


def test_a_sender_is_of_its_run_only(server: Server) -> None:
    """A thread sends Alice's words after her run has failed, while Bob's stream runs."""
    for i in range(10):
        alice = stream(server, "late", f"fails alice{i}")
        assert "RuntimeError" in alice[-1] and set(alice[:-1]) <= {f"fails alice{i}"}
        assert stream(server, "late", f"bob{i}") == [f"bob{i}"] * 20


@pytest.mark.parametrize("model", ["echo", "asks"])
def test_long_parameters_and_ids(server: Server, model: str) -> None:
    """What a message to a worker may have is bounded, and what is refused leaves nothing."""
    ask(server, model, "right x")
    before = at_rest(server)
    for i in range(20):
        status, words = ask(server, model, "right x", parameters={f"key{i}": "v" * 600_000})
        assert status in (200, 413) and (status == 200 or "bytes" in words), words
        status, words = ask(server, model, "right x", id="i" * 600_000)
        assert status in (200, 413) and (status == 200 or "bytes" in words), words
        assert ask(server, model, "right y") == (200, "right y" if model == "echo" else "y")
    settles(server.process.pid, before)  # the gateway closes a moment after its client


def test_calls_without_number_hold_nothing(server: Server) -> None:
    assert ask(server, "calls", "3") == (200, "3")
    most, ended = 0, threading.Event()
    before = at_rest(server)

    def watch() -> None:
        nonlocal most
        while not ended.is_set():
            most = max(
                most, resources(server.process.pid)["descriptors"] + resources(server.process.pid)["shared memory"]
            )
            time.sleep(0.02)

    watching = threading.Thread(target=watch)
    watching.start()
    for _ in range(30):  # a busy machine takes longer than the run timeout for all of them
        assert ask(server, "calls", "50", 60) == (200, "50")
    ended.set()
    watching.join()
    assert most < before["descriptors"] + before["shared memory"] + 20
    settles(server.process.pid, before)


def test_a_stream_that_nobody_reads_holds_little(server: Server) -> None:
    """Also one whose client has left, whose model never asks whether somebody wants it."""
    assert len(stream(server, "sends", "3")) == 3
    before = at_rest(server)
    body = json.dumps({"X": "100000"}).encode()
    head = f"POST /v2/models/sends/generate_stream HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.http)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(head + body)
        time.sleep(1)
        assert all(now - then < 20 for then, now in more_than(server.process.pid, before).values())
    time.sleep(1)
    assert all(now - then < 20 for then, now in more_than(server.process.pid, before).values())
    wait_until(lambda: stream(server, "sends", "3")[-1].startswith("2x"), 30)
    settles(server.process.pid, before)


def test_a_model_that_calls_itself(server: Server) -> None:
    """Its one instance is busy with the call: the run ends at its time, and the model serves on."""
    began = time.monotonic()
    status, words = ask(server, "itself", "x", 60)
    assert status == 500 and time.monotonic() - began < RUN_TIMEOUT + 10, words
    wait_until(lambda: ask(server, "echo", "y") == (200, "y"))
    began = time.monotonic()
    assert ask(server, "itself", "x", 60)[0] in (500, 503) and time.monotonic() - began < 2 * RUN_TIMEOUT + 10


def worker_of(server: Server, model: str = "echo") -> int:
    """The process in which a model runs."""
    status, pid = ask(server, model, "pid")
    assert status == 200
    return int(pid)


def is_gone(pid: int) -> bool:
    """Whether a process has ended. Its last parent may not have noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@contextlib.contextmanager
def few_descriptors(pid: int) -> Iterator[None]:
    """A process can open nothing more."""
    most = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most + 1, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_a_worker_that_dies_while_there_are_no_descriptors(repository: Path) -> None:
    """It can't be started again then. Requests are answered in time, and the model serves when there are some again."""
    with running(repository, "--allow-python-models", env={"OPGATE_RUN_TIMEOUT": "3"}) as server:
        worker, before = worker_of(server), at_rest(server)
        with socket.create_connection(("127.0.0.1", server.http), timeout=10) as open_before:
            idle = [socket.create_connection(("127.0.0.1", server.http)) for _ in range(20)]
            time.sleep(0.2)
            with few_descriptors(server.process.pid):
                for client in idle:  # what they leave, new clients take
                    client.close()
                time.sleep(0.2)
                taken = [socket.create_connection(("127.0.0.1", server.http)) for _ in range(40)]
                time.sleep(0.2)
                os.kill(worker, signal.SIGKILL)
                time.sleep(0.5)
                body = json.dumps({"inputs": [{"name": "X", "shape": [1], "datatype": "BYTES", "data": ["x"]}]})
                head = f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n"
                open_before.sendall((head + body).encode())
                status = int(open_before.recv(65536).split()[1])
                assert status in (500, 503)
                for client in taken:
                    client.close()
        wait_until(lambda: ask(server, "echo", "x") == (200, "x"), 30)
        settles(server.process.pid, before)


@pytest.mark.parametrize("who", ["worker", "keeper"])
def test_a_worker_that_is_stopped(server: Server, who: str) -> None:
    """Its requests get an error in time, also when many clients leave meanwhile, and others are served."""
    worker, before = worker_of(server), at_rest(server)
    keeper = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(keeper if who == "keeper" else worker, signal.SIGSTOP)
    if who == "keeper":
        os.kill(worker, signal.SIGSTOP)
    body = json.dumps({"inputs": [{"name": "X", "shape": [1], "datatype": "BYTES", "data": ["x"]}]})
    whole = f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    found: list[tuple[int, str]] = []
    waiting = threading.Thread(target=lambda: found.append(ask(server, "echo", "y", 60)))
    waiting.start()
    began = time.monotonic()
    for _ in range(300):
        with socket.create_connection(("127.0.0.1", server.http), timeout=10) as client:
            client.sendall(whole)
        asked = time.monotonic()
        with urllib.request.urlopen(server.url + "/v2/health/live", timeout=10) as live:
            assert live.status == 200
        assert time.monotonic() - asked < 5
    waiting.join(60)
    assert found and found[0][0] in (200, 500, 503) and time.monotonic() - began < 60
    wait_until(lambda: ask(server, "echo", "x") == (200, "x"), 30)
    settles(server.process.pid, before)
    wait_until(lambda: is_gone(worker))


def test_a_gateway_whose_worker_is_stopped_ends_in_time(repository: Path) -> None:
    with running(repository, "--allow-python-models", env={"OPGATE_RUN_TIMEOUT": "3"}) as server:
        worker = worker_of(server)
        os.kill(worker, signal.SIGSTOP)
        began = time.monotonic()
    assert time.monotonic() - began < 15
    wait_until(lambda: is_gone(worker))


def test_unloading_a_model_whose_worker_is_stopped(repository: Path) -> None:
    options = ("--allow-python-models", "--model-control-mode", "explicit", "--load-model", "*")
    with running(repository, *options, env={"OPGATE_RUN_TIMEOUT": "3"}) as server:
        worker = worker_of(server)
        os.kill(worker, signal.SIGSTOP)
        for how in ("unload", "load"):
            url = f"{server.url}/v2/repository/models/echo/{how}"
            with urllib.request.urlopen(urllib.request.Request(url, b"", method="POST"), timeout=30) as done:
                assert done.status == 200
        assert ask(server, "echo", "x") == (200, "x")
        wait_until(lambda: is_gone(worker))


#: Ends at its start if there is no file.
NEEDS = """
    def initialize(self, args):
        if not os.path.exists({file!r}):
            os._exit(1)
"""


def test_the_health_of_grpc_is_readiness(tmp_path: Path) -> None:
    """Nobody tells the health service that a worker has died, and nobody that the next one serves."""
    file = tmp_path / "go"
    file.touch()
    write(tmp_path / "models", "needs", TENSORS, HEAD + NEEDS.format(file=str(file)) + ECHO)
    with (
        running(tmp_path / "models", "--allow-python-models") as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)

        def ready() -> bool:
            try:
                server.get("/v2/health/ready")
            except urllib.error.HTTPError:
                return False
            return True

        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        file.unlink()
        os.kill(int(ask(server, "needs", "pid")[1]), signal.SIGKILL)
        wait_until(lambda: not ready(), 30)
        for status in (health_pb2.HealthCheckResponse.NOT_SERVING, health_pb2.HealthCheckResponse.SERVING):
            for service in ("", "inference.GRPCInferenceService"):
                asked = health_pb2.HealthCheckRequest(service=service)
                wait_until(lambda asked=asked, status=status: stub.Check(asked).status == status)  # type: ignore[misc]
            while next(watch).status != status:  # each start of a worker is a change
                pass
            file.touch()
            wait_until(ready, 60)
        watch.cancel()
