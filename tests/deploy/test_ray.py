"""deploy/ray/serve.yaml on a real Ray cluster of two nodes: it serves, loses a replica, and rolls out a new version."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from onnx import TensorProto, helper
from pydantic import ValidationError

from tests.conftest import thorough
from tests.service.onnx_models import batching, save, value
from tests.skips import need
from tests.system.running import ROOT, free_port

need("ray")

FILE = ROOT / "deploy" / "ray" / "serve.yaml"
CLIENTS = 6
#: Seconds that the cluster has for whatever it is told to do. A busy machine takes most of them.
PATIENCE = 300


def model(repository: Path, factor: float, version: int = 1) -> None:
    """Writes the model `scale`: y = factor * x."""
    constant = helper.make_tensor("factor", TensorProto.FLOAT, [1], [factor])
    node = helper.make_node("Mul", ["x", "factor"], ["y"])
    shape = ["batch", 4]
    tensors = [value("x", "FP32", shape)], [value("y", "FP32", shape)]
    save(repository, "scale", [node], *tensors, config=batching(), version=version, initializers=[constant])


class Cluster:
    """The cluster, and what `serve deploy` says of it."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder / "models"
        self.port, dashboard = free_port(), free_port()
        self._file = folder / "serve.yaml"
        # A deployment fails after two failed starts of a replica, instead of six, because each takes many seconds.
        retries = {"RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": "1"}
        self._env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", **retries}
        self._address = f"http://127.0.0.1:{dashboard}"
        command = [sys.executable, "-m", "tests.deploy.ray_cluster", str(dashboard)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=self._env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        while line and line != "ready\n":
            line = self._process.stdout.readline()
        assert line, "the cluster did not start"

    def _serve(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).with_name("serve"))
        return subprocess.run(
            [program, *arguments, "--address", self._address], env=self._env, capture_output=True, text=True
        )

    def deploy(self, version: object, **scaling: object) -> None:
        """Runs `serve deploy` with the file of the project, on another port and with other numbers."""
        document = yaml.safe_load(FILE.read_text())
        document |= {"proxy_location": "HeadOnly", "http_options": {"host": "127.0.0.1", "port": self.port}}
        application = document["applications"][0]
        application["args"] |= {"model_repository": str(self.repository), "version": version}
        application["deployments"][0]["autoscaling_config"] |= {"max_replicas": 2, **scaling}
        self._file.write_text(yaml.safe_dump(document))
        end = time.monotonic() + PATIENCE
        while (finished := self._serve("deploy", str(self._file))).returncode:
            assert time.monotonic() < end, finished.stderr
            time.sleep(0.5)

    def application(self) -> dict:
        """Returns what `serve status` prints."""
        with urllib.request.urlopen(f"{self._address}/api/serve/applications/", timeout=30) as answer:
            told = json.loads(answer.read())
        found = told["applications"]["opgate"]
        for deployment in found["deployments"].values():
            states = [replica["state"] for replica in deployment["replicas"]]
            deployment["replica_states"] = {state: states.count(state) for state in states}
        return found

    def wait_for(self, status: str, replicas: int | None = None) -> dict:
        end = time.monotonic() + PATIENCE
        while True:
            found = self.application()
            running = found["deployments"].get("gateway", {}).get("replica_states", {})
            if found["status"] == status and (replicas is None or running == {"RUNNING": replicas}):
                return found
            assert time.monotonic() < end, found
            time.sleep(0.5)

    def replicas(self) -> list[int]:
        """Returns the processes of the replicas."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if b"ServeReplica:opgate:gateway" in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    def infer(self) -> float:
        """Returns the factor of the model that answers. Raises OSError if the answer is no good one."""
        body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 1, 1, 1]}]}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v2/models/scale/infer", json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            data = json.loads(answer.read())["outputs"][0]["data"]
        assert np.allclose(data, data[0])
        return float(data[0])

    def wait_for_an_answer(self) -> None:
        """Waits until the proxy listens, which it may do after the application runs."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.infer()
                return
            except urllib.error.URLError:
                assert time.monotonic() < end, "the proxy gives no answer"
                time.sleep(0.5)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()


class Load:
    """Clients that send one request after the other, and what they got."""

    def __init__(self, cluster: Cluster) -> None:
        self.answers: list[float] = []
        self.errors: list[str] = []
        self._cluster = cluster
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work) for _ in range(CLIENTS)]

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                self.answers.append(self._cluster.infer())
            except Exception as error:
                self.errors.append(repr(error))

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        try:
            self.wait(50)
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait(self, answers: int) -> None:
        """Waits until so many more answers have come."""
        wanted, end = len(self.answers) + answers, time.monotonic() + PATIENCE
        while len(self.answers) < wanted:
            assert time.monotonic() < end, self.errors[-3:]
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = Cluster(tmp_path_factory.mktemp("ray"))
    try:
        model(started.repository, 2.0)
        started.deploy(1, min_replicas=1, target_ongoing_requests=1, upscale_delay_s=1)
        started.wait_for("RUNNING", replicas=1)
        started.wait_for_an_answer()
        yield started
    finally:
        started.close()


def test_settings_are_checked_before_they_are_deployed() -> None:
    from opgate.ray import Arguments

    assert Arguments(settings={"max_queue_size": 5}).settings == {"max_queue_size": 5}
    for settings, said in (
        ({"max_queue_sise": 5}, "no setting max_queue_sise"),
        ({"max_queue_size": 0}, "greater than 0"),
        ({"model_control_mode": "poll"}, "expected none"),
    ):
        with pytest.raises(ValidationError, match=said):
            Arguments(settings=settings)


@thorough("a cluster starts")
def test_it_serves_the_gateway(cluster: Cluster) -> None:
    assert cluster.infer() == 2.0
    assert len(cluster.replicas()) == 1
    missing = urllib.request.Request(f"http://127.0.0.1:{cluster.port}/v2/models/none/infer", b"{}")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(missing)
    assert refused.value.code == 404 and "none" in json.loads(refused.value.read())["error"]


@thorough("a second replica starts")
def test_load_adds_a_replica_on_the_other_node(cluster: Cluster) -> None:
    """A node has one core, and so has a replica."""
    (first,) = cluster.replicas()
    with Load(cluster) as load:
        cluster.wait_for("RUNNING", replicas=2)
    # A change of the number alone replaces nobody.
    cluster.deploy(1)
    cluster.wait_for("RUNNING", replicas=2)
    assert first in cluster.replicas() and len(cluster.replicas()) == 2
    assert not load.errors


@thorough("a second replica starts")
def test_a_killed_replica_costs_its_requests_in_flight_at_most(cluster: Cluster) -> None:
    victim = cluster.replicas()[0]
    with Load(cluster) as load:
        assert not load.errors
        os.kill(victim, signal.SIGKILL)
        end = time.monotonic() + PATIENCE
        while victim in (now := cluster.replicas()) or len(now) != 2:
            assert time.monotonic() < end, now
            time.sleep(0.2)
        cluster.wait_for("RUNNING", replicas=2)
        load.wait(100)
    assert len(load.errors) <= CLIENTS, load.errors
    assert set(load.answers) == {2.0}


@thorough("two replicas start anew")
def test_a_new_version_rolls_out_without_an_error(cluster: Cluster) -> None:
    old = cluster.replicas()
    model(cluster.repository, 3.0, version=2)
    with Load(cluster) as load:
        cluster.deploy(2)
        end = time.monotonic() + PATIENCE
        while not set(old).isdisjoint(cluster.replicas()):
            assert time.monotonic() < end, cluster.application()
            time.sleep(0.2)
        cluster.wait_for("RUNNING", replicas=2)
        load.wait(100)
    assert not load.errors
    assert set(load.answers) == {2.0, 3.0} and load.answers[-1] == 3.0


@thorough("replicas start until the cluster gives up")
def test_a_version_that_can_not_be_served_is_not_rolled_out(cluster: Cluster) -> None:
    (cluster.repository / "scale" / "3").mkdir()
    (cluster.repository / "scale" / "3" / "model.onnx").write_bytes(b"no model")
    with Load(cluster) as load:
        cluster.deploy(3)
        told = cluster.wait_for("DEPLOY_FAILED")
        load.wait(100)
    assert not load.errors
    assert set(load.answers) == {3.0}
    assert "scale" in told["deployments"]["gateway"]["message"]


@thorough("the arguments are checked without a cluster, too")
def test_wrong_arguments_are_named(cluster: Cluster) -> None:
    cluster.deploy([4])
    end = time.monotonic() + PATIENCE
    while "Input should be a valid string" not in (found := cluster.application())["message"]:
        assert time.monotonic() < end, found
        time.sleep(0.5)
    assert "version" in found["message"]
    assert cluster.infer() == 3.0
