"""docker-compose.yml on a container engine: `docker compose up` builds the images, and the stack runs from them.

`make test-all` runs this where `docker` has an engine. An image of others that can't be pulled is made of Debian's packages,
under its name, and removed afterwards. Grafana, Triton and TensorRT are in no package: their services are left out.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import numpy as np
import pytest
import yaml
from tritonclient import grpc, http

from tests.conftest import thorough
from tests.system.conftest import wait_until
from tests.system.running import ROOT, free_port
from tests.system.stack import compose

SERVICES = ("gateway", "prometheus", "locust", "locust-worker")
DEBIAN = re.findall(r"^FROM (\S+)", (ROOT / "deploy/gateway.Dockerfile").read_text(), re.MULTILINE)[0]
PROMETHEUS = compose({})["services"]["prometheus"]["image"]
#: An image as Prometheus publishes it: the same folders, user and entrypoint.
PROMETHEUS_OF_DEBIAN = f"""
FROM {DEBIAN}
RUN apt-get update && apt-get install -y --no-install-recommends prometheus wget && install -d -o nobody /prometheus
USER nobody
WORKDIR /prometheus
VOLUME /prometheus
ENTRYPOINT ["/bin/prometheus"]
"""


def docker(*arguments: str, check: bool = True, **named) -> str:
    """Returns what a command of docker writes to stdout and stderr. Raises AssertionError if it fails and `check` is set."""
    done = subprocess.run(["docker", *arguments], cwd=ROOT, stdout=-1, stderr=-2, text=True, timeout=7200, **named)
    assert not check or done.returncode == 0, done.stdout[-8000:]
    return done.stdout


def missing() -> str:
    """Returns why no engine can run the stack, nothing if one can."""
    try:
        for command in (["docker", "compose", "version"], ["docker", "info"]):
            if subprocess.run(command, capture_output=True).returncode:
                return f"`{' '.join(command)}` fails"
    except FileNotFoundError:
        return "docker is not installed"
    return ""


pytestmark = [
    thorough("it builds images on a container engine"),
    pytest.mark.skipif(bool(reason := missing()), reason=f"no container engine: {reason}"),
]


def absent(image: str) -> bool:
    """Returns whether an image is neither there nor to be pulled."""
    return all(
        subprocess.run(["docker", *way, image], capture_output=True).returncode for way in (["inspect"], ["pull"])
    )


@pytest.fixture(scope="module")
def bases(request):
    """Makes the images of others that the stack needs, where they can't be pulled."""
    made = []
    if absent(DEBIAN):
        if os.geteuid():
            pytest.skip(f"no container engine: {DEBIAN} can't be pulled, and making it needs root")
        folder = request.getfixturevalue("debian")
        subprocess.run(f"tar -C '{folder}' -c . | docker import - {DEBIAN}", shell=True, check=True)
        made.append(DEBIAN)
    if absent(PROMETHEUS):
        docker("build", "--tag", PROMETHEUS, "-", input=PROMETHEUS_OF_DEBIAN)
        made.append(PROMETHEUS)
    yield
    for image in made:
        docker("rmi", "--force", image)


class Stack:
    """The stack under a project name, registry and ports of its own. Nothing is published at the registry, so that every
    image of ours is built."""

    def __init__(self) -> None:
        self.ports = {name: str(free_port()) for name in ("HTTP_PORT", "GRPC_PORT", "PROMETHEUS_PORT", "LOCUST_PORT")}
        self.variables = {**os.environ, **self.ports, "REGISTRY": "registry.invalid/opgate"}

    def compose(self, *arguments: str, check: bool = True) -> str:
        command = ("compose", "--project-name", "opgate-test", "--profile", "load", *arguments)
        return docker(*command, check=check, env=self.variables)

    def run(self, service: str, *command: str) -> str:
        """Returns what a command in a container says."""
        return self.compose("exec", "-T", service, *command, check=False)

    def inspect(self, service: str) -> dict:
        container = self.compose("ps", "--all", "--quiet", service).split()[0]
        return json.loads(docker("inspect", container))[0]

    def get(self, port: str, path: str, data: bytes | None = None) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[port]}{path}", data, timeout=30) as answer:
            return answer.read()

    def answers(self, port: str, path: str) -> bool:
        try:
            return bool(self.get(port, path) is not None)
        except (OSError, urllib.error.URLError):
            return False


@pytest.fixture(scope="module")
def stack(bases):
    made = Stack()
    try:
        made.compose("up", "--detach", "--wait", *SERVICES)
        yield made
    finally:
        made.compose("down", "--volumes", "--timeout", "40")
        for line in set(made.compose("config", "--images", "gateway", "locust").splitlines()):
            if ":" in line and " " not in line:  # the others are what Compose warns of
                docker("rmi", "--force", line)


def test_the_gateway_answers_on_its_published_ports(stack):
    x = np.ones((1, 4), np.float32)
    for module, port in ((http, "HTTP_PORT"), (grpc, "GRPC_PORT")):
        inputs = [module.InferInput(name, x.shape, "FP32") for name in ("a", "b")]
        for tensor in inputs:
            tensor.set_data_from_numpy(x)
        with module.InferenceServerClient(f"127.0.0.1:{stack.ports[port]}") as client:
            assert client.is_server_ready()
            np.testing.assert_array_equal(client.infer("my_add", inputs).as_numpy("y"), 3 * x)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_has_only_the_rights_that_it_needs(stack, service):
    status = stack.run(service, "cat", "/proc/1/status")
    for expected in (r"CapEff:\s+0+\n", r"CapBnd:\s+0+\n", r"NoNewPrivs:\s+1\n"):
        assert re.search(expected, status), status
    assert re.findall(r"Uid:\s+(\d+)", status)[0] != "0"
    assert "Read-only file system" in stack.run(service, "mkdir", "/new")
    assert stack.run(service, "mkdir", "/tmp/new") == ""
    stated, found = compose({})["services"][service], stack.inspect(service)["HostConfig"]
    limits = stated["deploy"]["resources"]["limits"]
    assert found["NanoCpus"] == float(limits["cpus"]) * 1e9
    assert found["Memory"] == int(limits["memory"].removesuffix("g")) << 30
    assert found["RestartPolicy"]["Name"] == "unless-stopped"


def test_the_gateway_knows_its_limit_of_memory_and_keeps_what_it_prepares(stack):
    assert b"opgate_memory_limit_bytes 4.294967296e+09\n" in stack.get("HTTP_PORT", "/metrics")
    assert "Read-only file system" in stack.run("gateway", "touch", "/models/new")
    wait_until(lambda: stack.run("gateway", "ls", "/var/cache/opgate/models"), 60)
    assert "can't be used" not in stack.compose("logs", "gateway")
    for tool in ("g++", "cc", "cmake", "make"):
        assert "executable file not found" in stack.run("gateway", tool, "--version"), tool


def test_prometheus_scrapes_the_gateway_and_has_the_alerts(stack):
    def targets():
        found = json.loads(stack.get("PROMETHEUS_PORT", "/api/v1/targets"))["data"]["activeTargets"]
        return {target["labels"]["job"]: target["health"] for target in found}

    wait_until(lambda: targets() == {"opgate": "up", "prometheus": "up"}, 30)
    groups = json.loads(stack.get("PROMETHEUS_PORT", "/api/v1/rules"))["data"]["groups"]
    stated = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"]
    assert [r["name"] for g in groups for r in g["rules"]] == [r["alert"] for g in stated for r in g["rules"]]


def test_locust_sends_load_with_two_workers(stack):
    def statistics():
        return json.loads(stack.get("LOCUST_PORT", "/stats/requests"))

    wait_until(lambda: stack.answers("LOCUST_PORT", "/") and len(statistics()["workers"]) == 2, 60)
    form = urllib.parse.urlencode({"user_count": 4, "spawn_rate": 4, "host": "http://gateway:8000"}).encode()
    stack.get("LOCUST_PORT", "/swarm", form)
    wait_until(lambda: len([s for s in statistics()["stats"] if s["num_requests"] > 10]) >= 5, 120)
    assert statistics()["fail_ratio"] == 0, statistics()["errors"]
    stack.get("LOCUST_PORT", "/stop", b"")


def test_a_gateway_that_was_killed_is_started_again(stack):
    before = stack.inspect("gateway")
    # Another container in the process namespace of the machine: `docker kill` would count as a stop.
    killer = ("--rm", "--pid=host", "--user=10001", DEBIAN, "sh", "-c", f"kill -KILL {before['State']['Pid']}")
    docker("run", *killer)
    wait_until(lambda: stack.inspect("gateway")["RestartCount"] == before["RestartCount"] + 1, 30)
    wait_until(lambda: stack.inspect("gateway")["State"]["Health"]["Status"] == "healthy", 90)
    assert stack.answers("HTTP_PORT", "/v2/health/ready")


def test_every_service_stops_by_itself(stack):
    """None needs SIGKILL, with which an engine ends what has not stopped in its grace period."""
    begin = time.monotonic()
    stack.compose("stop")
    print(f"stopped in {time.monotonic() - begin:.1f} s")
    assert {service: stack.inspect(service)["State"]["ExitCode"] for service in SERVICES} == dict.fromkeys(SERVICES, 0)
