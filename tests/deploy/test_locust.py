"""The load tests as locust processes against real servers."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import numpy as np
import pytest
from onnx import helper
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.conftest import thorough
from tests.service.onnx_models import batching, save, value
from tests.system.running import ROOT, Server, running

FOLDER = ROOT / "deploy" / "locust"
DIGITS = ROOT / "docs" / "examples" / "digits.jpg"
PICTURES = {f"digit_detector, {size} picture" for size in ("small", "middle", "large")}

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("locust"), reason="locust is not installed")


@dataclass
class Run:
    """A locust process that has ended: its exit status, what it wrote to stderr, and its statistics by name."""

    status: int
    log: str
    rows: dict[str, dict]

    @property
    def requests(self) -> int:
        return sum(row["num_requests"] for row in self.rows.values())

    @property
    def failures(self) -> int:
        return sum(row["num_failures"] for row in self.rows.values())

    def p99(self, name: str) -> float:
        """Returns the 99th percentile of response times in milliseconds, as locust rounds them."""
        times = self.rows[name]["response_times"]
        return float(np.quantile([float(ms) for ms, count in times.items() for _ in range(count)], 0.99))

    def started(self) -> tuple[int, float, int]:
        """Returns what an open loop tells: requests started, percentage of late ones, requests never started."""
        (line,) = re.findall(r"open loop: (\d+) requests started, ([\d.]+)% .*; (\d+) were due", self.log)
        return int(line[0]), float(line[1]), int(line[2])


class Locust:
    """A running locust process."""

    def __init__(self, *options: str, folder: Path = FOLDER, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "locust", "-f", str(folder / "locustfile.py"), "--headless", "--json"]
        self._process = subprocess.Popen(
            [*command, *options],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )

    def ended(self) -> Run:
        """Waits for the end."""
        try:
            out, log = self._process.communicate(timeout=60)
        finally:
            self._process.kill()
        rows = json.loads(out) if out.startswith("[") else []
        return Run(self._process.returncode, log, {row["name"]: row for row in rows})


def load(*options: str, **keywords) -> Run:
    return Locust(*options, **keywords).ended()


def distributed(count: int, *options: str) -> list[Run]:
    """Runs a master with so many workers. Returns the run of the master and those of the workers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    workers = [Locust("--worker", "--master-port", port) for _ in range(count)]
    expected = ("--expect-workers", str(count), "--expect-workers-max-wait", "30")
    master = load("--master", "--master-bind-port", port, *expected, *options)
    return [master, *(worker.ended() for worker in workers)]


def to(server: Server) -> tuple[str, ...]:
    """Returns the options that name a server."""
    return ("--host", server.url, "--grpc-host", f"127.0.0.1:{server.grpc}")


@pytest.fixture(scope="module")
def gateway(library: Path) -> Iterator[Server]:
    with running(ROOT / "model_repository") as server:
        yield server


@contextmanager
def slow_http(seconds: float) -> Iterator[str]:
    """Serves my_add over HTTP, one request at a time and each in so many seconds. Yields HOST:PORT."""
    turn = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            a, b = (
                tensor["data"] for tensor in json.loads(self.rfile.read(int(self.headers["Content-Length"])))["inputs"]
            )
            with turn:
                time.sleep(seconds)
            y = {
                "name": "y",
                "datatype": "FP32",
                "shape": [1, 4],
                "data": [2 * x + z for x, z in zip(a, b, strict=True)],
            }
            body = json.dumps({"outputs": [y]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Writes nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def slow_grpc(seconds: float) -> Iterator[str]:
    """Serves my_add over gRPC, one request at a time and each in so many seconds. Yields HOST:PORT."""

    class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):
        def ModelInfer(self, request, context):
            time.sleep(seconds)
            a, b = (np.frombuffer(raw, np.float32) for raw in request.raw_input_contents)
            answer = service_pb2.ModelInferResponse(raw_output_contents=[(2 * a + b).tobytes()])
            answer.outputs.add(name="y", datatype="FP32", shape=[1, 4])
            return answer

    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


class TestRuns:
    def test_every_user_class_gets_right_answers(self, gateway, tmp_path):
        """The folder is alone, as in its container, and a variable names the picture."""
        folder = tmp_path / "load"
        shutil.copytree(FOLDER, folder)
        env = {"OPGATE_PICTURE": str(DIGITS), "PYTHONDONTWRITEBYTECODE": "1"}
        limits = ("--max-p50-ms", "30000", "--max-p99-ms", "30000", "--min-rps", "1")
        run = load(*to(gateway), "-u", "4", "-t", "3s", *limits, folder=folder, env=env)
        assert run.status == 0, run.log
        assert "threshold violated" not in run.log
        assert set(run.rows) == {"my_add, JSON", "my_add, binary tensors", "my_add, gRPC", *PICTURES}
        assert run.failures == 0
        assert run.requests > 20

    def test_violated_thresholds_are_named(self, gateway):
        limits = ("--max-p50-ms", "1e-6", "--max-p99-ms", "1e-6", "--min-rps", "1e9")
        # locust rounds to milliseconds, and no picture takes less than half of one.
        run = load(*to(gateway), "-u", "2", "-t", "1s", *limits, "PictureUser")
        assert run.status == 1
        assert set(run.rows) <= PICTURES
        assert re.findall(r"threshold violated: (--[\w-]+): expected at (?:most|least) (\S+)", run.log) == [
            ("--max-p50-ms", "1e-06"),
            ("--max-p99-ms", "1e-06"),
            ("--min-rps", "1000000000"),
        ]

    def test_a_wrong_sum_is_a_failure(self, tmp_path):
        tensors = [value(name, "FP32", ["batch", 4]) for name in "aby"]
        node = helper.make_node("Add", ["a", "b"], ["y"])
        save(tmp_path, "my_add", [node], tensors[:2], tensors[2:], config=batching())
        users = ("JsonUser", "BinaryUser", "GrpcUser")
        with running(tmp_path) as server:
            options = (*to(server), "-u", "3", "-t", "1s")
            strict, tolerant = [Locust(*options, "--max-error-rate", rate, *users) for rate in ("0.5", "1")]
            runs = strict, tolerant = strict.ended(), tolerant.ended()
        for run in runs:
            assert len(run.rows) == 3
            assert run.failures == run.requests > 0
            assert run.log.count("y is not 2a + b") == 3
        assert strict.status == 1
        failed = f"{strict.requests} of {strict.requests} requests failed"
        assert f"--max-error-rate: expected at most 0.5, measured 1: {failed}" in strict.log
        assert tolerant.status == 0
        assert "threshold violated" not in tolerant.log

    @thorough("a wrong sum is a failure, too")
    def test_a_wrong_detection_is_a_failure(self, gateway, tmp_path):
        picture = tmp_path / "digits.jpg"
        shutil.copy(DIGITS, picture)
        objects = json.loads(DIGITS.with_suffix(".json").read_text())
        objects["objects"][0]["label"] = "9"  # the picture shows a 6
        picture.with_suffix(".json").write_text(json.dumps(objects))
        run = load(*to(gateway), "-u", "1", "-t", "1s", "--picture", str(picture), "PictureUser")
        assert run.status == 1
        assert run.failures == run.requests > 0
        assert re.search(r"the 9 at [\d, ]+ was not found", run.log)

    def test_a_dead_host_fails_the_run(self):
        with socket.socket() as bound:  # bound and not listening: it refuses connections
            bound.bind(("127.0.0.1", 0))
            port = bound.getsockname()[1]
            run = load("--host", f"http://127.0.0.1:{port}", "--grpc-host", f"127.0.0.1:{port}", "-u", "4", "-t", "1s")
        assert run.status == 1
        assert run.failures == run.requests > 0
        assert "Connection refused" in run.log
        assert "--max-error-rate: expected at most 0, measured 1" in run.log

    def test_a_missing_picture_is_named(self):
        run = load("--host", "http://127.0.0.1:9", "-t", "1s", "--picture", "/none.jpg", "PictureUser")
        assert run.status == 1
        assert "--picture /none.jpg: [Errno 2] No such file" in run.log

    def test_an_open_loop_reports_the_waiting(self):
        """Each server answers 20 requests a second. If 60 are due, the last ones wait for seconds."""

        def hosts() -> tuple[str, ...]:
            http, grpc_host = stack.enter_context(slow_http(0.05)), stack.enter_context(slow_grpc(0.05))
            return ("--host", f"http://{http}", "--grpc-host", grpc_host, "-u", "2", "-t", "4s", "JsonUser", "GrpcUser")

        with ExitStack() as stack:
            both = [Locust("--arrival-rate", "120", *hosts()), Locust(*hosts())]
            opened, closed = (locust.ended() for locust in both)
        for run in (opened, closed):
            assert (run.status, run.failures) == (0, 0), run.log
        for name in ("my_add, JSON", "my_add, gRPC"):
            assert opened.p99(name) > 1500
            assert opened.p99(name) > 3 * closed.p99(name)
        started, late, dropped = opened.started()
        assert started == opened.requests
        assert late > 50
        assert dropped > 20

    def test_a_master_with_two_workers(self, gateway):
        rate = ("--arrival-rate", "40", "--min-rps", "1e9")
        master, *workers = distributed(2, *to(gateway), "-u", "8", "-t", "2s", *rate)
        assert master.status == 1
        assert "2 workers connected" in master.log
        assert "threshold violated: --min-rps: expected at least 1000000000 requests a second" in master.log
        assert len(master.rows) >= 4
        assert master.failures == 0
        started, _, _ = master.started()
        assert started == master.requests > 10
        for worker in workers:
            assert worker.status == 0
            assert "threshold violated" not in worker.log

    @thorough("it waits for the end of a run")
    def test_requests_without_an_answer_at_the_end_are_failures(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            target = f"127.0.0.1:{silent.getsockname()[1]}"
            hosts = ("--host", f"http://{target}", "--grpc-host", target)
            master, _ = distributed(1, *hosts, "-u", "2", "-t", "1s", "--request-timeout", "2", "JsonUser", "GrpcUser")
        assert master.status == 1
        assert master.failures == master.requests >= 2
        assert "timed out" in master.log
        assert "gRPC DEADLINE_EXCEEDED" in master.log


class TestMake:
    def make(self, folder: Path, *variables: str) -> subprocess.CompletedProcess[str]:
        """Runs `make load-test` so that it writes to a folder and installs nothing."""
        for name in ("Makefile", "deploy"):
            (folder / name).symlink_to(ROOT / name)
        command = ["make", "-o", ".venv/.load", "load-test", f"BIN={Path(sys.executable).parent}", *variables]
        # `make test` gives its own variables to every make below it.
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARGS")
        }
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)

    def test_writes_a_report(self, gateway, tmp_path):
        hosts = (f"HOST={gateway.url}", f"GRPC_HOST=127.0.0.1:{gateway.grpc}")
        run = self.make(tmp_path, *hosts, "DURATION=3s", "USERS=4", "ARGS=--shape ramp --min-rps 1")
        assert run.returncode == 0, run.stderr
        assert "The report is build/load-test/report.html, its tables are build/load-test/*.csv" in run.stdout
        for name in ("report.html", "load_stats.csv"):
            assert "my_add, binary tensors" in (tmp_path / "build" / "load-test" / name).read_text()
        users = [int(count) for count in re.findall(r"Shape test updating to (\d+) users", run.stderr)]
        assert 1 <= users[0] < users[-1] <= 4
        assert users == sorted(users)

    def test_says_that_no_gateway_answers(self, tmp_path):
        run = self.make(tmp_path, "HOST=http://127.0.0.1:9")
        assert run.returncode == 2
        assert run.stdout.splitlines()[0].startswith("no gateway is ready at http://127.0.0.1:9: run make serve first")
        assert not (tmp_path / "build").exists()
