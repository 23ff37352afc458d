"""The gateway in front of real Triton servers: balance, servers that are killed, stand still or come back, timeouts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
import tritonclient.http as http_client
from tritonclient.utils import np_to_triton_dtype

from tests.conftest import ALL, thorough
from tests.service.onnx_models import batching, double, endless, write_config
from tests.system.conftest import PIPELINE, wait_until
from tests.system.differential import http_body
from tests.system.running import ROOT, free_port, running
from tests.system.test_triton import Triton, installed, serving

SLOW = """backend: "onnxruntime"
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, -1 ] }, { name: "times" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]"""
STATED = """input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pool") / "models"
    double(folder, "double", config=batching(extra=STATED))
    double(
        folder,
        "local",
        config=batching(extra=STATED + 'parameters { key: "gateway_backend" value { string_value: "onnxruntime" } }'),
    )
    endless(folder, "slow", config=SLOW, times=None)
    write_config(folder, "pipeline", PIPELINE)
    mixed = PIPELINE.replace('step [\n  { model_name: "double"', 'step [\n  { model_name: "local"')
    assert mixed != PIPELINE
    write_config(folder, "mixed", mixed)
    return folder


@pytest.fixture(scope="module")
def pool(models):
    """Three servers of these models."""
    installed()
    servers = [serving(server, lambda: Triton(models)) for server in [Triton(models) for _ in range(3)]]
    yield servers
    for server in servers:
        server.process.send_signal(signal.SIGTERM)
    for server in servers:
        server.stop()


def urls(servers):
    return ",".join(f"127.0.0.1:{server.grpc}" for server in servers)


@contextmanager
def gateway(models, servers, *options, **settings):
    variables = {f"OPGATE_{name.upper()}": str(value) for name, value in settings.items()}
    with running(models, "--backend", "triton", "--triton-url", urls(servers), *options, env=variables) as started:
        yield started


def infer(server, model="double", parameters=None, **arrays):
    """Returns the status of the answer, and its outputs or its error."""
    arrays = arrays or {"x": np.ones((1, 4), np.float32)}
    inputs = {name: (np_to_triton_dtype(array.dtype), array) for name, array in arrays.items()}
    body, headers = http_body(inputs, parameters=parameters or {})
    request = urllib.request.Request(f"{server.url}/v2/models/{model}/infer", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())["outputs"]
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]


def slow(server, seconds, **more):
    """Asks for a run of so many seconds."""
    times = np.array([int(seconds * slow.a_second)])
    return infer(server, "slow", x=np.ones((1, 1), np.float32), times=times, **more)


@pytest.fixture(scope="module", autouse=True)
def _measure_a_second(pool, models):
    with gateway(models, pool) as server:
        # The first run of each instance takes longer than its work, so runs become longer until that no longer counts. The
        # shortest counts: on a busy machine the others say too much, and a slow run would end too early.
        slow.a_second, shortest = 20_000, 0
        while shortest < 0.15:
            taken = []
            for _ in range(6):
                begin = time.monotonic()
                assert slow(server, 0.3)[0] == 200
                taken.append(time.monotonic() - begin)
            shortest = min(taken)
            slow.a_second = int(slow.a_second * 0.3 / shortest)


def calls(server):
    """Returns the calls of each Triton server by its address."""
    found = re.findall(r'opgate_triton_calls_total{code="OK",server="([^"]+)"} (\S+)', server.get("/metrics"))
    return {url: float(count) for url, count in found}


def up(server):
    return dict(re.findall(r'opgate_triton_up{server="([^"]+)"} (\S+)', server.get("/metrics")))


def ready(server):
    try:
        server.get("/v2/health/ready")
    except urllib.error.HTTPError:
        return False
    return True


class Load:
    """Threads that send requests until the block ends, and count the answers. They leave a server that starts meanwhile
    some of the processor."""

    def __init__(self, server, threads=8):
        self.server, self.answers, self.going = server, Counter(), True
        self.threads = [threading.Thread(target=self._work) for _ in range(threads)]

    def _work(self):
        while self.going:
            status, outputs = infer(self.server)
            self.answers[status if status == 200 and outputs[0]["data"] == [2.0] * 4 else (status, str(outputs))] += 1
            time.sleep(0.05)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.going = False
        for thread in self.threads:
            thread.join(60)

    def more(self, count=100):
        """Waits for so many more answers."""
        end = self.answers.total() + count
        wait_until(lambda: self.answers.total() >= end, 30)


def test_servers_share_the_load(models, pool):
    with gateway(models, pool) as server:
        with Load(server) as load:
            wait_until(lambda: len(calls(server)) == 3, 30)  # the first run of a server takes a while
            before = calls(server)
            load.more(300)
        assert set(load.answers) == {200}
        shares = [count - before[url] for url, count in calls(server).items()]
        assert len(shares) == 3 and min(shares) > 0.2 * sum(shares), shares


def test_a_killed_server_costs_no_client_an_error(models, pool):
    """It comes back on the same port, and gets requests again."""
    with gateway(models, pool) as server, Load(server) as load:
        load.more()
        dead = pool[1]
        child = int(
            subprocess.run(["pgrep", "-P", str(dead.process.pid)], capture_output=True, text=True).stdout.split()[0]
        )
        os.kill(child, signal.SIGKILL)
        dead.process.wait(30)
        load.more()
        address = f"127.0.0.1:{dead.grpc}"
        wait_until(lambda: up(server)[address] == "0.0", 30)
        for _ in range(3):  # the start of a Triton may collide with that of another one
            pool[1] = Triton(models, http=dead.http, grpc=dead.grpc)
            if pool[1].listens.wait(120) and pool[1].process.poll() is None:
                break
            pool[1].stop()
        assert pool[1].process.poll() is None, "".join(pool[1].log)
        wait_until(lambda: up(server)[address] == "1.0", 120)
        before = calls(server)[address]
        wait_until(lambda: calls(server)[address] > before, 60)  # its first run takes a while
        load.going = False
    assert set(load.answers) == {200}
    assert any("gets no requests" in line and address in line for line in server.log)
    assert any("gets requests again" in line and address in line for line in server.log)


def test_the_calls_of_a_server_that_stands_still_go_to_others(models, pool):
    """It accepts connections and bytes, and never answers."""
    with gateway(models, pool) as server, Load(server) as load:
        load.more()
        child = subprocess.run(
            ["pgrep", "-P", str(pool[2].process.pid)], capture_output=True, text=True
        ).stdout.split()[0]
        os.kill(int(child), signal.SIGSTOP)
        try:
            wait_until(lambda: up(server)[f"127.0.0.1:{pool[2].grpc}"] == "0.0", 20)
            load.more()
            wait_until(
                lambda: float(re.findall(r"opgate_triton_retries_total ([0-9.]+)", server.get("/metrics"))[0]) > 0, 20
            )
        finally:
            os.kill(int(child), signal.SIGCONT)
        wait_until(lambda: up(server)[f"127.0.0.1:{pool[2].grpc}"] == "1.0", 20)
        load.going = False
    assert set(load.answers) == {200}


def test_no_server_is_there(models):
    """Requests end with 503, and the gateway is not ready until a server is back."""
    installed()
    only = Triton(models)
    assert only.listens.wait(120)
    with gateway(models, [only]) as server:
        assert infer(server)[0] == 200 and ready(server)
        only.stop()
        wait_until(lambda: not ready(server), 20)
        status, text = infer(server)
        assert status == 503 and f"127.0.0.1:{only.grpc}" in text, text
        again = Triton(models, http=only.http, grpc=only.grpc)
        try:
            assert again.listens.wait(120)
            wait_until(lambda: ready(server), 20)
            assert infer(server)[0] == 200
        finally:
            again.stop()


def test_a_start_without_a_server(models):
    command = [sys.executable, "-m", "opgate", "serve", "--model-repository", str(models), "--backend", "triton"]
    variables = {**os.environ, "OPGATE_TRITON_URL": f"127.0.0.1:{free_port()}", "OPGATE_TRITON_START_TIMEOUT": "0.5"}
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=variables, timeout=60)
    assert ended.returncode == 1
    assert "no Triton server answers after 0.5 s: 127.0.0.1:" in ended.stderr


def test_a_model_that_triton_lacks(models, pool, tmp_path):
    """It is unavailable, with the words of each server. The others serve."""
    import shutil

    shutil.copytree(models, tmp_path / "models")
    double(tmp_path / "models", "new", config=batching(extra=STATED))
    with gateway(tmp_path / "models", pool, "--no-strict-readiness") as server:
        status, text = infer(server, "new")
        assert status == 503 and "no Triton server serves it" in text
        assert all(f"127.0.0.1:{one.grpc}: " in text for one in pool), text
        assert infer(server)[0] == 200


@thorough("two more servers start")
def test_a_model_that_a_server_has_unloaded(models):
    """The others answer for it, and the server goes on to serve its other models."""
    installed()
    explicit = ["--", "--model-control-mode=explicit", "--load-model=*"]
    servers = [Triton(models, *explicit) for _ in range(2)]
    try:
        assert all(server.listens.wait(120) for server in servers)
        with gateway(models, servers) as server:
            unload = f"http://127.0.0.1:{servers[0].http}/v2/repository/models/double/unload"
            urllib.request.urlopen(unload, b"{}").close()
            before = calls(server)
            for _ in range(20):
                assert infer(server)[0] == 200
            assert set(up(server).values()) == {"1.0"}
            after = calls(server)
            other = f"127.0.0.1:{servers[1].grpc}"
            assert after[other] - before.get(other, 0) == 20
            unload = f"http://127.0.0.1:{servers[1].http}/v2/repository/models/double/unload"
            urllib.request.urlopen(unload, b"{}").close()
            wait_until(lambda: infer(server)[0] == 503)
            assert slow(server, 0.01)[0] == 200
        assert not any("gets no requests" in line for line in server.log)
    finally:
        for triton_server in servers:
            triton_server.stop()


@thorough("another server starts")
def test_a_version_that_one_server_lacks(models, pool, tmp_path):
    """Its server says that there is no such version, at once. The other one answers all requests."""
    import shutil

    shutil.copytree(models, tmp_path / "models")
    shutil.copytree(tmp_path / "models/double/1", tmp_path / "models/double/2")
    newer = Triton(tmp_path / "models")
    try:
        assert newer.listens.wait(120)
        with gateway(tmp_path / "models", [pool[0], newer]) as server:
            wait_until(lambda: set(up(server).values()) == {"1.0"})
            for _ in range(20):
                assert infer(server, "double/versions/2")[0] == 200
            assert set(up(server).values()) == {"1.0"}
    finally:
        newer.stop()


@thorough("another server starts")
def test_a_server_that_stops_finishes_its_calls(models):
    """It says that it is exiting, and the gateway waits for the answer."""
    only = Triton(models)
    assert only.listens.wait(120)
    with gateway(models, [only]) as server:
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(slow(server, 4)))
        waiting.start()
        wait_until(lambda: server.metric("nv_inference_pending_request_count", "slow") == 1)
        time.sleep(0.5)
        only.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not ready(server), 20)
        waiting.join()
        assert answers[0][0] == 200, answers
    assert only.stop() == 0


@pytest.mark.parametrize(
    "urls", ["", ",", "localhost", "http://localhost:8011", "localhost:8011,"] if ALL else ["", "localhost:8011,"]
)
def test_addresses_that_are_none(models, urls):
    command = [sys.executable, "-m", "opgate", "serve", "--backend", "triton", "--triton-url", urls]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert ended.returncode == 2
    assert "--triton-url: expected HOST:PORT of gRPC, several joined by commas" in ended.stderr


def test_steps_on_either_side(models, pool):
    """An ensemble goes to Triton as one call if Triton runs every step."""
    with gateway(models, pool) as server:
        x = np.ones((2, 4), np.float32)
        for model in ("pipeline", "mixed"):
            before = sum(calls(server).values())
            status, outputs = infer(server, model, x=x)
            assert status == 200 and outputs[0]["data"] == [4.0] * 8
            assert sum(calls(server).values()) - before == 1
        assert server.metric("nv_inference_request_success", "local") == 1
        assert server.metric("nv_inference_request_success", "double") == 1  # of the mixed one
        before = sum(calls(server).values())
        assert infer(server, "local")[0] == 200 and sum(calls(server).values()) == before


def test_timeouts_and_limits(models, pool):
    with gateway(models, pool, max_queue_size=2, run_timeout=1) as server:
        begin = time.monotonic()
        status, text = slow(server, 3, parameters={"timeout": 200_000})
        assert status == 504 and "timeout ran out" in text and time.monotonic() - begin < 5
        status, text = slow(server, 3)
        assert status == 504 and "did not answer in 1 s" in text
        waiting = [threading.Thread(target=slow, args=(server, 0.8)) for _ in range(2)]
        for thread in waiting:
            thread.start()
        wait_until(lambda: server.metric("nv_inference_pending_request_count", "slow") == 2)
        status, text = slow(server, 0.1)
        assert status == 503 and "is full: 2 requests wait" in text
        for thread in waiting:
            thread.join()
        wait_until(lambda: server.metric("nv_inference_pending_request_count", "slow") == 0)


def test_large_tensors_and_answers(models, pool):
    """32 MB each way, written and read on threads, while small requests are answered."""
    with gateway(models, pool) as server, Load(server, 2) as load:
        client = http_client.InferenceServerClient(f"127.0.0.1:{server.http}", network_timeout=60)
        array = np.random.default_rng(0).random((1024, 8192), np.float32)
        tensors = [http_client.InferInput("x", array.shape, "FP32"), http_client.InferInput("times", [1], "INT64")]
        tensors[0].set_data_from_numpy(array)
        tensors[1].set_data_from_numpy(np.array([1]))
        assert (client.infer("slow", tensors).as_numpy("y") == array + 1).all()
        client.close()
        load.more(20)
        load.going = False
    assert set(load.answers) == {200}
