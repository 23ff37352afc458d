"""What happens while the system has no more descriptors, memory, threads or room for files: a clear error for what needs
them, and everything as before once they are back."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from tests.service.onnx_models import batching, double
from tests.system.conftest import wait_until
from tests.system.resources import descendants, resources, settles
from tests.system.running import running
from tests.system.test_python_models import write
from tests.system.test_residency import ON_DEMAND, large

BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 1, 1, 1]}]}).encode()
ISOLATED = 'parameters { key: "isolation" value { string_value: "process" } }'
DOUBLES = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [4]})
        config.set_max_batch_size(4)
        return config

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy() * 2)]) for r in requests]
"""
#: What is taken away, and how much of it is left. Each of these steps of a load needs another amount.
SHORTAGES = {
    "descriptors": ("nofile", [0, 1, 2, 3, 5, 8, 13, 21]),
    "memory": ("as", [0, 1 << 16, 1 << 20, 5 << 20, 9 << 20, 20 << 20, 70 << 20]),
    "files": ("fsize", [0, 1, 1 << 12, 1 << 16, 1 << 20]),
    "processes": ("nproc", [0, 1, 2, 3, 5, 8]),
}
#: A user that has no process but the gateway's: root may have any number. It reads what root may read.
USER = 61234
AS_USER = f"""#!/bin/sh
exec setpriv --reuid={USER} --clear-groups --inh-caps=+dac_override,+dac_read_search \\
    --ambient-caps=+dac_override,+dac_read_search --bounding-set=-sys_admin,-sys_resource {sys.executable} "$@"
"""
CASES = [(kind, left) for kind, (_, amounts) in SHORTAGES.items() for left in amounts]


def in_use(pid, kind):
    """Returns how much of what a limit bounds a process has."""
    if kind == "descriptors":
        return max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()) + 1
    if kind == "memory":
        return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    if kind == "processes":
        return sum(len([*Path(f"/proc/{one}/task").iterdir()]) for one in descendants(pid))
    return 0


@contextmanager
def short(pid, kind, left):
    """Takes away what is left of something, but for so much."""
    option = f"--{SHORTAGES[kind][0]}"
    before = prlimit(pid, option, "--output=SOFT", "--noheadings")
    prlimit(pid, f"{option}={in_use(pid, kind) + left}:")
    try:
        yield
    finally:
        prlimit(pid, f"{option}={before}:")


def prlimit(pid, *options):
    """Runs prlimit as the user of a process."""
    is_user = f"Uid:\t{USER}" in Path(f"/proc/{pid}/status").read_text()
    user = ["setpriv", f"--reuid={USER}", "--clear-groups"] if is_user else []
    done = subprocess.run([*user, "prlimit", f"--pid={pid}", *options], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def ask(server, path, body=BODY, seconds=30):
    """Returns the status and the answer. Raises OSError if the server takes no connection."""
    request = urllib.request.Request(f"{server.url}{path}", body)
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def answers_well(server, name):
    try:
        status, answer = ask(server, f"/v2/models/{name}/infer")
    except OSError:
        return False
    return status == 200 and json.loads(answer)["outputs"][0]["data"] == [2, 2, 2, 2]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A gateway of a user whose processes and threads the system counts."""
    folder = tmp_path_factory.mktemp("shortages")
    options = {}
    if os.geteuid() == 0:
        program = folder.with_name("as_user")
        program.write_text(AS_USER)
        program.chmod(0o755)
        options = {"python": str(program)}
    for number, _ in enumerate(CASES):
        double(folder, f"plain{number}", batching() + ON_DEMAND)
        double(folder, f"worker{number}", batching() + ON_DEMAND + ISOLATED)
        write(folder, f"python{number}", ON_DEMAND, DOUBLES)
    double(folder, "there", batching())
    large(folder, "large", 2)
    with running(folder, "--allow-python-models", **options) as started:
        yield started


@pytest.mark.parametrize("kind", ["plain", "worker", "python"])
@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{kind}-{left}" for kind, left in CASES])
def test_a_load_fails_with_a_clear_error_and_is_tried_again(server, kind, number):
    """The models that serve answer meanwhile, unless a connection needs what is short."""
    what, left = CASES[number]
    name = f"{kind}{number}"
    pid = server.process.pid
    # The connection is there before the shortage begins.
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        given = grpc.InferInput("x", [1, 4], "FP32")
        given.set_data_from_numpy(np.ones((1, 4), np.float32))
        client.infer("there", [given])
        with short(pid, what, left):
            try:
                assert (client.infer(name, [given], client_timeout=40).as_numpy("y") == 2).all()
            except InferenceServerException as error:
                assert error.message() and "DEADLINE" not in str(error.status()), error
            assert (client.infer("there", [given], client_timeout=40).as_numpy("y") == 2).all()
    wait_until(lambda: answers_well(server, name), 60)
    assert ask(server, "/v2/health/ready", None)[0] == 200
    assert answers_well(server, "there")


@pytest.mark.parametrize(("kind", "left"), CASES)
def test_requests_and_metrics_are_answered_or_refused(server, kind, left):
    pid = server.process.pid
    before = resources(pid)
    paths = [
        ("/v2/models/there/infer", BODY),
        ("/metrics", None),
        ("/v2", None),
        ("/predict/there", b'{"x":[1,1,1,1]}'),
    ]
    with short(pid, kind, left):
        for path, body in paths:
            try:
                status, answer = ask(server, path, body, 20)
            except TimeoutError:
                assert kind == "descriptors", path  # the connection waits to be accepted
            except OSError as error:
                assert kind == "descriptors" or "timed out" not in str(error), error
            else:
                assert status == 200 or answer, (path, status)
    assert answers_well(server, "there")
    assert ask(server, "/metrics", None)[0] == 200
    settles(pid, before)


def test_many_loads_at_once_without_memory_leave_nothing_behind(tmp_path):
    for i in range(12):
        large(tmp_path, f"m{i}", 3, i)
        (tmp_path / f"m{i}" / "config.pbtxt").write_text(ON_DEMAND)
    x = {"inputs": [{"name": "x", "shape": [1, 1024], "datatype": "FP32", "data": [1.0] * 1024}]}
    body = json.dumps(x).encode()
    with running(tmp_path) as server:
        pid = server.process.pid
        assert ask(server, "/v2/models/m0/infer", body)[0] == 200
        got = []
        with short(pid, "memory", 20 << 20):
            threads = [
                threading.Thread(target=lambda i=i: got.append(ask(server, f"/v2/models/m{i}/infer", body)))
                for i in range(12)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(got) == 12 and all(status in (200, 503) for status, _ in got), [
            g for g in got if g[0] not in (200, 503)
        ]
        assert any(status == 503 for status, _ in got)
        time.sleep(1.1)
        for i in range(12):
            assert ask(server, f"/v2/models/m{i}/infer", body)[0] == 200
