"""`opgate serve --workers N`: several processes on one port that are one gateway to clients. The processes are real."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from tests.conftest import ALL
from tests.service.onnx_models import batching, double, endless
from tests.service.stateful_models import accumulator
from tests.system.conftest import over, wait_until
from tests.system.running import ROOT, Server, running
from tests.system.shared_files import shared_file
from tests.system.test_http import Connection, infer_request
from tests.system.test_leaving import WAYS
from tests.system.test_python_models import write

EXPLICIT = ("--workers", "2", "--model-control-mode", "explicit", "--load-model", "double")
# New connections. That all of them come to the same one of two processes happens once in half a million times.
MANY = 20
ONES = np.ones((1, 4), np.float32)
ESTABLISHED = "01"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    for name in ("double", "other", "third"):
        double(folder, name, config=batching())
    accumulator(folder, "sum")
    return folder


@pytest.fixture(scope="module")
def server(repository):
    with running(repository, *EXPLICIT) as started:
        yield started


def test_an_engine_that_nobody_has_tried_is_said_once(repository, tmp_path):
    """Each process of Python begins with this file."""
    old = "import opgate.tried_versions as tried; tried.TRIED = {'onnxruntime': ('1.0', '1.1')}"
    (tmp_path / "sitecustomize.py").write_text(old)
    path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    python = str(Path(sys.executable).with_name("python3"))  # a new process, not one that has begun already
    with running(repository, *EXPLICIT, env={"PYTHONPATH": path}, python=python) as server:
        pass
    said = [line for line in server.log if "is newer than what the op libraries were tried with: 1.0 to 1.1" in line]
    assert len(said) == 1


def connect(server, protocol):
    """A client with a connection of its own."""
    if protocol == "http":
        return http_client.InferenceServerClient(f"127.0.0.1:{server.http}")
    alone = [("grpc.use_local_subchannel_pool", 1)]
    return grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc}", channel_args=alone)


def everywhere(server, protocol, ask):
    """What `ask` returns on each of many new connections."""
    answers = []
    for _ in range(MANY):
        with connect(server, protocol) as client:
            answers.append(ask(client))
    return answers


def given(client, region=None):
    module = http_client if isinstance(client, http_client.InferenceServerClient) else grpc_client
    tensor = module.InferInput("x", [1, 4], "FP32")
    if region is None:
        tensor.set_data_from_numpy(ONES)
    else:
        tensor.set_shared_memory(region, ONES.nbytes)
    return [tensor]


def infer(client, model="double", region=None):
    return client.infer(model, given(client, region)).as_numpy("y")[0, 0]


def status_of(call):
    """The status of the error that a call raises, "" if it raises none."""
    try:
        call()
    except InferenceServerException as error:
        return error.status()
    return ""


def processes(server):
    """The gateway processes of a server."""
    found = []
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return sorted(found)


def connections(pid, port):
    """How many clients are connected with a process."""
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    at_port = {row[9] for row in rows if int(row[1].split(":")[1], 16) == port and row[3] == ESTABLISHED}
    files = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            files.append(os.readlink(file))
    return sum(f"socket:[{inode}]" in files for inode in at_port)


def test_every_process_serves(server, protocol):
    port = server.http if protocol == "http" else server.grpc
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server, protocol)) for _ in range(MANY)]
        assert [infer(client) for client in clients] == [2.0] * MANY
        counts = [connections(pid, port) for pid in processes(server)]
    assert len(counts) == 2 and min(counts) > 0 and sum(counts) >= MANY


def test_the_metrics_are_those_of_all(server, protocol):
    before = server.metric("nv_inference_request_success", "double")
    rows = server.metric("opgate_batch_size_count", "double")
    everywhere(server, protocol, infer)
    for _ in range(MANY):  # each request comes on a new connection
        assert server.metric("nv_inference_request_success", "double") == before + MANY
    assert server.metric("opgate_batch_size_count", "double") == rows + MANY
    text = server.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["opgate_gateway_processes"].samples[0].value == 2
    assert families["opgate_gateway_process_deaths"].samples[0].value == 0
    assert families["opgate_build_info"].samples[0].value == 1
    assert server.metric("opgate_model_ready", "double") == 1
    assert server.metric("opgate_instances", "double") == 2
    cores = len(os.sched_getaffinity(0))
    assert 1 <= server.metric("opgate_intra_op_threads", "double") <= max(1, cores // 2)
    began = families["process_start_time_seconds"].samples[0].value
    assert abs(began - time.time()) < 3600


def test_the_metrics_have_the_form_of_one_process(repository, server):
    with running(repository, *EXPLICIT[2:]) as alone:
        names = [re.sub(r" \S+$", "", line) for line in alone.get("/metrics").splitlines() if "opgate_resp" not in line]
    merged = [re.sub(r" \S+$", "", line) for line in server.get("/metrics").splitlines() if "opgate_resp" not in line]
    heads = [line for line in merged if line.startswith("#")]
    assert heads == [line for line in names if line.startswith("#")]
    assert set(names) <= set(merged)
    assert len(merged) == len(set(merged))


def test_the_statistics_are_those_of_all(server, protocol):
    def count(client):
        found = client.get_inference_statistics("double")
        stats = found["model_stats"][0] if protocol == "http" else found.model_stats[0]
        if protocol == "http":
            return stats["inference_count"], stats["inference_stats"]["success"]["count"]
        return stats.inference_count, stats.inference_stats.success.count

    (before, succeeded), *others = everywhere(server, protocol, count)
    assert set(others) == {(before, succeeded)}
    everywhere(server, protocol, infer)
    assert set(everywhere(server, protocol, count)) == {(before + MANY, succeeded + MANY)}


def test_load_and_unload_reach_all(server, protocol):
    with connect(server, protocol) as client:
        client.load_model("other")
        assert everywhere(server, protocol, lambda each: infer(each, "other")) == [2.0] * MANY
        client.unload_model("other")
        assert set(everywhere(server, protocol, lambda each: each.is_model_ready("other"))) == {False}


WAITS_FOR_A_FILE = """
import pathlib
import time

class TritonPythonModel:
    def initialize(self, args):
        while not pathlib.Path({go!r}).exists():
            time.sleep(0.05)

    def execute(self, requests):
        return []
"""
IN_AND_OUT = """max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


@over("grpc")
def test_loads_go_on_beside_one_that_waits(tmp_path, protocol):
    repository, go = tmp_path / "models", tmp_path / "go"
    for name in ("double", "other"):
        double(repository, name, config=batching())
    write(repository, "waits", IN_AND_OUT, WAITS_FOR_A_FILE.format(go=str(go)))
    with (
        running(repository, *EXPLICIT, "--allow-python-models") as server,
        connect(server, protocol) as first,
        connect(server, protocol) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        waiting = pool.submit(first.load_model, "waits")
        time.sleep(1)  # the other load comes after it, in every process
        try:
            pool.submit(client.load_model, "other").result(30)
            assert everywhere(server, protocol, lambda each: infer(each, "other")) == [2.0] * MANY
            pool.submit(client.unload_model, "other").result(30)
            assert not waiting.done()
        finally:
            go.touch()
        waiting.result(60)
        assert set(everywhere(server, protocol, lambda each: each.is_model_ready("waits"))) == {True}


def test_a_load_with_files_reaches_all(repository, server, protocol):
    content = (repository / "double" / "1" / "model.onnx").read_bytes()
    config = json.dumps({"max_batch_size": 3, "backend": "onnxruntime"})
    with connect(server, protocol) as client:
        client.load_model("sent", config=config, files={"file:7/model.onnx": content})

        def size(each):
            found = each.get_model_config("sent")
            return found["max_batch_size"] if protocol == "http" else found.config.max_batch_size

        assert set(everywhere(server, protocol, size)) == {3}
        assert everywhere(server, protocol, lambda each: infer(each, "sent")) == [2.0] * MANY
        client.unload_model("sent")


@over("http")
def test_the_files_of_a_load_are_written_once(repository, tmp_path, protocol):
    """They stay for a process that takes the place of another, and go with the model."""
    content = (repository / "double" / "1" / "model.onnx").read_bytes()
    config = json.dumps({"max_batch_size": 3, "backend": "onnxruntime"})

    def written():
        return [place for place, _, files in os.walk(tmp_path) if "model.onnx" in files]  # it may go meanwhile

    with running(repository, *EXPLICIT, env={"TMPDIR": str(tmp_path)}) as server:
        with connect(server, protocol) as client:
            for _ in range(2):
                client.load_model("sent", config=config, files={"file:7/model.onnx": content})
                wait_until(lambda: len(written()) == 1)
            with pytest.raises(InferenceServerException, match="failed to load"):
                client.load_model("sent", config=config, files={"file:7/model.onnx": b"no model"})
            wait_until(lambda: len(written()) == 1)
        os.kill(processes(server)[0], signal.SIGKILL)
        listens_again(server)
        assert everywhere(server, protocol, lambda each: infer(each, "sent")) == [2.0] * MANY
        with connect(server, protocol) as client:
            client.unload_model("sent")
            wait_until(lambda: not written())
            client.load_model("sent", config=config, files={"file:7/model.onnx": content})
    assert not written()


def test_a_load_that_fails_says_why_as_one_process_does(server, protocol):
    with connect(server, protocol) as client, pytest.raises(InferenceServerException) as caught:
        client.load_model("none")
    assert caught.value.message() == "failed to load 'none': no repository has a folder of that name"


def test_a_region_is_registered_with_all(server, protocol):
    with shared_file(ONES.tobytes()) as file, connect(server, protocol) as client:
        client.register_system_shared_memory("region", file.key, ONES.nbytes)
        assert everywhere(server, protocol, lambda each: infer(each, region="region")) == [2.0] * MANY
        assert status_of(lambda: client.register_system_shared_memory("region", file.key, ONES.nbytes))
        client.unregister_system_shared_memory("region")
        gone = "404" if protocol == "http" else "StatusCode.NOT_FOUND"
        found = everywhere(server, protocol, lambda each: status_of(lambda: infer(each, region="region")))
        assert set(found) == {gone}


def test_log_settings_reach_all(server, protocol):
    def verbose(client):
        found = client.get_log_settings()
        return found["log_verbose_level"] if protocol == "http" else found.settings["log_verbose_level"].uint32_param

    with connect(server, protocol) as client:
        client.update_log_settings({"log_verbose_level": 1})
        assert set(everywhere(server, protocol, verbose)) == {1}
        client.update_log_settings({"log_verbose_level": None})
        assert set(everywhere(server, protocol, verbose)) == {0}


def test_trace_settings_reach_all(server, protocol):
    def rate(client):
        found = client.get_trace_settings("double")
        return found["trace_rate"] if protocol == "http" else found.settings["trace_rate"].value[0]

    with connect(server, protocol) as client:
        client.update_trace_settings("double", {"trace_rate": "7"})
        assert set(everywhere(server, protocol, rate)) == {"7"}
        client.update_trace_settings("double", {"trace_rate": None})
        assert set(everywhere(server, protocol, rate)) == {"1000"}


def test_the_log_says_what_was_chosen(server):
    records = [json.loads(line) for line in server.log]
    loaded = [record for record in records if record["message"] == "model loaded" and record["model"] == "double"]
    assert {record["gateway_process"] for record in loaded} == {1, 2}
    threads = server.metric("opgate_intra_op_threads", "double")
    chosen = {(record["instances"], record["intra_op_threads"], record["processes"]) for record in loaded}
    assert chosen == {(1, threads, 2)}
    listening = [record for record in records if record["message"] == "listening"]
    assert [(record["http_port"], record["processes"]) for record in listening] == [(server.http, 2)]


def test_a_model_with_sequences_is_refused(server, protocol):
    with connect(server, protocol) as client, pytest.raises(InferenceServerException, match=r"expected --workers 1"):
        client.load_model("sum")


def get(connection, path):
    status, _, body = connection.send(f"GET {path} HTTP/1.1\r\nHost: t\r\n\r\n".encode()).read()
    return status, body.decode()


def connection_with(server, pid):
    """A connection with one of the processes."""
    while True:
        before = connections(pid, server.http)
        connection = Connection(server)
        assert get(connection, "/v2/health/live")[0] == 200
        if connections(pid, server.http) > before:
            return connection
        connection.socket.close()


def test_metrics_without_those_of_a_process_are_none(server):
    asked, hangs = processes(server)
    with connection_with(server, asked) as connection:
        assert get(connection, "/metrics")[0] == 200
        os.kill(hangs, signal.SIGSTOP)
        try:
            for path, what in ("/metrics", "metrics"), ("/v2/models/stats", "statistics"):
                status, text = get(connection, path)
                assert status == 503
                assert re.search(rf"gateway process [12] did not tell its {what} in 5 s", text)
            assert connection.send(infer_request(1.0)).read()[0] == 200
        finally:
            os.kill(hangs, signal.SIGCONT)
        assert get(connection, "/metrics")[0] == 200


def served_by_others(server, count=MANY):
    """Waits until so many new connections in a row are answered."""
    for _ in range(count):
        with Connection(server) as connection:
            assert get(connection, "/v2/health/live")[0] == 200


def test_a_process_that_hangs_is_replaced(repository):
    """Its connections end, and others take the new ones before that."""
    with running(repository, *EXPLICIT, env={"OPGATE_RUN_TIMEOUT": "12"}) as server:
        victim, other = processes(server)
        with connection_with(server, victim) as connection:
            os.kill(victim, signal.SIGSTOP)
            connection.send(b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n")
            wait_until(lambda: any("others take its new connections" in line for line in list(server.log)), 30)
            served_by_others(server)
            with pytest.raises((EOFError, OSError)):
                connection.read()
        listens_again(server)
        assert other in processes(server) and victim not in processes(server) and len(processes(server)) == 2
        assert any("was ended because it hung" in line for line in server.log)


def test_a_process_that_hangs_for_a_while_serves_again(repository):
    with running(repository, *EXPLICIT) as server:
        victim, _ = processes(server)
        os.kill(victim, signal.SIGSTOP)
        try:
            wait_until(lambda: any("others take its new connections" in line for line in list(server.log)), 30)
        finally:
            os.kill(victim, signal.SIGCONT)
        wait_until(lambda: any("answers again" in line for line in list(server.log)), 30)
        with connection_with(server, victim) as connection:
            assert get(connection, "/v2/health/live")[0] == 200
        assert victim in processes(server)


@over("grpc")
def test_changes_while_a_process_hangs(repository, protocol):
    """Whoever asks hears which process doesn't answer. What was asked holds once it is replaced."""
    with (
        shared_file(ONES.tobytes()) as file,
        running(repository, *EXPLICIT, env={"OPGATE_RUN_TIMEOUT": "12"}) as server,
    ):
        asked, victim = processes(server)
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(connect(server, protocol))
            port = server.http if protocol == "http" else server.grpc
            while not connections(asked, port):
                client = stack.enter_context(connect(server, protocol))
                assert client.is_server_live()
            os.kill(victim, signal.SIGSTOP)
            for change in (
                lambda: client.register_system_shared_memory("region", file.key, ONES.nbytes),
                lambda: client.load_model("other"),
                lambda: client.update_log_settings({"log_verbose_level": 1}),
                lambda: client.update_trace_settings("double", {"trace_rate": "7"}),
                lambda: client.unload_model("double"),
            ):
                with pytest.raises(InferenceServerException, match=r"gateway process [12] has not answered for 5 s"):
                    change()
        listens_again(server)

        def known(client):
            return infer(client, "other", region="region"), client.is_model_ready("double")

        assert set(everywhere(server, protocol, known)) == {(2.0, False)}


@pytest.mark.parametrize(
    ("protocol", "short"), [(p, s) for p in ("http", "grpc") for s in (0, 1)] if ALL else [("http", 0), ("grpc", 1)]
)
def test_a_load_that_fails_in_one_process_holds_in_none(repository, protocol, short):
    """No two processes serve different models: what served before still does."""
    with running(repository, *EXPLICIT) as server, connect(server, protocol) as client:
        pid = processes(server)[short]
        usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        double(repository, "fragile", config=batching())
        client.load_model("fragile")
        config = json.dumps({"max_batch_size": 3, "backend": "onnxruntime"})
        assert client.is_server_live()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, usual[1]))
        try:
            with pytest.raises(InferenceServerException, match="in 1 of 2 processes: "):
                client.load_model("fragile", config=config)
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)

        def size(each):
            found = each.get_model_config("fragile")
            return found["max_batch_size"] if protocol == "http" else found.config.max_batch_size

        assert set(everywhere(server, protocol, size)) == {8}
        assert everywhere(server, protocol, lambda each: infer(each, "fragile")) == [2.0] * MANY

        client.load_model("fragile", config=config)
        assert set(everywhere(server, protocol, size)) == {3}


class Load(threading.Thread):
    """A client that sends one request after the other, and connects again when its connection is lost."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server = server
        self.answered = self.lost = 0
        self.wrong = []
        self.ends = threading.Event()
        self.connection = Connection(server)
        self.start()

    def run(self):
        while not self.ends.is_set():
            try:
                status, headers, _ = self.connection.send(infer_request(1.0)).read()
            except (OSError, EOFError):
                self.lost += 1
                self.connect_again()
                continue
            self.answered += status == 200
            if status != 200:
                self.wrong.append(status)
            if headers.get("connection") == "close":
                self.connect_again()
        self.connection.socket.close()

    def connect_again(self):
        self.connection.socket.close()
        self.connection = Connection(self.server)


def listens_again(server):
    wait_until(lambda: any("listens again" in line for line in list(server.log)), 30)


def all_served(clients):
    """Waits until each client has got further answers, ends them, and checks that no answer was an error."""
    before = [each.answered for each in clients]
    wait_until(lambda: all(each.answered > count for each, count in zip(clients, before, strict=True)))
    for each in clients:
        each.ends.set()
    for each in clients:
        each.join(10)
    assert [each.wrong for each in clients] == [[]] * len(clients)


def test_a_process_that_dies_is_replaced_and_knows_what_the_others_know(repository):
    with shared_file(ONES.tobytes()) as file, running(repository, *EXPLICIT) as server:
        with connect(server, "http") as client:
            client.load_model("other")
            client.load_model("third")
            client.unload_model("third")
            client.unload_model("double")
            client.load_model("double", config=json.dumps({"max_batch_size": 3, "backend": "onnxruntime"}))
            client.register_system_shared_memory("gone", file.key, ONES.nbytes)
            client.unregister_system_shared_memory("gone")
            client.register_system_shared_memory("region", file.key, ONES.nbytes)
            client.update_log_settings({"log_verbose_level": 1})
            client.update_trace_settings("double", {"trace_rate": "7"})
        clients = [Load(server) for _ in range(8)]
        wait_until(lambda: all(each.answered > 20 for each in clients))
        counted = server.metric("nv_inference_request_success", "double")
        victim, other = processes(server)
        mine = connections(victim, server.http)
        os.kill(victim, signal.SIGKILL)
        listens_again(server)
        assert other in processes(server) and victim not in processes(server) and len(processes(server)) == 2
        all_served(clients)
        # Each connection had one request at most.
        assert sum(each.lost for each in clients) <= mine
        assert any("gateway process" in line and "died of SIGKILL" in line for line in server.log)

        def known(client):
            return (
                infer(client, "other"),
                client.is_model_ready("third"),
                client.get_model_config("double")["max_batch_size"],
                [region["name"] for region in client.get_system_shared_memory_status()],
                client.get_log_settings()["log_verbose_level"],
                client.get_trace_settings("double")["trace_rate"],
                infer(client, region="region"),
            )

        assert everywhere(server, "http", known) == [(2.0, False, 3, ["region"], 1, "7", 2.0)] * MANY
        assert server.metric("nv_inference_request_success", "double") >= counted
        assert "opgate_gateway_process_deaths_total 1.0" in server.get("/metrics")
        assert "opgate_gateway_processes 2.0" in server.get("/metrics")


def test_a_process_that_is_stopped_alone_loses_nothing(repository):
    with running(repository, *EXPLICIT) as server:
        clients = [Load(server) for _ in range(8)]
        wait_until(lambda: all(each.answered > 20 for each in clients))
        os.kill(processes(server)[0], signal.SIGTERM)
        listens_again(server)
        all_served(clients)
        assert [each.lost for each in clients] == [0] * len(clients)


def test_sigterm_loses_no_request(repository):
    server = Server(repository, *EXPLICIT)
    ends = []

    def send():
        end = "closed without an answer"
        try:
            with Connection(server) as connection:
                while True:
                    status, headers, _ = connection.send(infer_request(1.0)).read()
                    assert status == 200
                    if headers.get("connection") == "close":
                        end = "told"
                        return
        except Exception as error:
            end = repr(error)
        finally:
            ends.append(end)

    threads = [threading.Thread(target=send) for _ in range(16)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    status = server.stop()
    for thread in threads:
        thread.join()
    assert status == 0, "".join(server.log)
    assert ends == ["told"] * len(threads)


@pytest.mark.parametrize("signals", [[signal.SIGTERM, signal.SIGTERM], [signal.SIGKILL]])
def test_the_processes_end_with_the_supervisor(tmp_path, signals):
    endless(tmp_path, "endless", config='backend: "onnxruntime"')
    server = Server(tmp_path, "--workers", "2")
    children = processes(server)
    with Connection(server) as connection:
        connection.send(WAYS["infer"])
        time.sleep(0.3)
        began = time.monotonic()
        for number in signals:
            server.process.send_signal(number)
            time.sleep(0.3)
        assert server.stop(10) == (1 if len(signals) == 2 else -signal.SIGKILL)
        assert time.monotonic() - began < 8
        wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in children))


def test_a_request_that_is_cut_off_makes_the_exit_status_1(tmp_path):
    endless(tmp_path, "endless", config='backend: "onnxruntime"')
    server = Server(tmp_path, "--workers", "2", "--exit-timeout-secs", "1")
    with Connection(server) as connection:
        connection.send(WAYS["infer"])
        time.sleep(0.3)
        assert server.stop(10) == 1


def start(*options):
    command = [sys.executable, "-m", "opgate", "serve", "--workers", "2", *map(str, options)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "options", [("--rate-limit", "execution_count"), ("--trace-config", "triton,file=/tmp/traces.json")]
)
def test_what_one_process_must_do_alone_is_refused(repository, options):
    ended = start("--model-repository", repository, *options)
    assert ended.returncode == 2
    assert options[0] in ended.stderr and "expected --workers 1 (OPGATE_WORKERS), got 2" in ended.stderr


def test_a_port_that_is_taken_is_refused(repository, server):
    ended = start("--model-repository", repository, "--http-port", server.http, "--grpc-port", 0)
    assert ended.returncode == 1
    assert "name another with --http-port" in ended.stderr and len(ended.stderr.splitlines()) == 1


def test_a_repository_that_is_missing_ends_the_start(tmp_path):
    ended = start("--model-repository", tmp_path / "none", "--http-port", 0, "--grpc-port", 0)
    assert ended.returncode == 1
    assert "before all served" in ended.stderr and "listening" not in ended.stderr
