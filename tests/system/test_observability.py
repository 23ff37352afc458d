"""What an operator sees: the log of failures and answers, the names that clients give their requests, metrics."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from opgate.service.telemetry.journal import LINES_A_SECOND
from opgate.service.telemetry.logs import JsonFormatter, LogHandler
from tests.service.onnx_models import batching, double, fragile
from tests.system.conftest import wait_until
from tests.system.running import ROOT, running
from tests.system.test_http import Connection, infer_request

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    double(folder, "double", config=batching(max_batch_size=16))
    fragile(folder, "fragile", batching(""))
    double(folder, "broken", config='model_repository_agents { agents [ { name: "a" } ] }')
    with running(folder, "--no-strict-readiness") as started:
        yield started


def access(server, **fields):
    """Returns the lines of the access log with these fields."""
    lines = [json.loads(line) for line in server.log if '"opgate.access"' in line]
    return [line for line in lines if fields.items() <= line.items()]


def failing(chunked=False):
    tensor = {"name": "n", "datatype": "INT64", "shape": [1, 1], "data": [3]}
    body = json.dumps({"id": "seven", "inputs": [tensor]})
    head = f"POST /v2/models/fragile/infer HTTP/1.1\r\nHost: t\r\nX-Request-Id: abc\r\ntraceparent: {TRACE}\r\n"
    if chunked:
        return f"{head}Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n{body}\r\n0\r\n\r\n".encode()
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_failing_model_is_logged(server, chunked):
    with Connection(server) as connection:
        before = len(access(server))
        status, headers, _ = connection.send(failing(chunked)).read()
        assert status == 500 and headers["x-request-id"] == "abc" and headers["traceparent"] == TRACE
        wait_until(lambda: len(access(server)) > before)
        (line,) = access(server)[before:]
        assert line["level"] == "error" and "model 'fragile'" in line["message"]
        assert (line["model"], line["id"], line["request_id"], line["traceparent"]) == (
            "fragile",
            "seven",
            "abc",
            TRACE,
        )
        assert (line["protocol"], line["code"], line["client"]) == ("http", "500", "127.0.0.1")
        assert 0 < line["duration_ms"] < 10_000


def test_a_failing_model_is_logged_over_grpc(server):
    before = len(access(server))
    n = triton_grpc.InferInput("n", [1, 1], "INT64")
    n.set_data_from_numpy(np.array([[3]], np.int64))
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        with pytest.raises(Exception, match="model 'fragile'"):
            client.infer("fragile", [n], request_id="eight", headers={"x-request-id": "def", "traceparent": TRACE})
        wait_until(lambda: len(access(server)) > before)
    (line,) = access(server)[before:]
    assert (line["level"], line["protocol"], line["code"]) == ("error", "grpc", "INTERNAL")
    assert (line["model"], line["id"], line["request_id"], line["traceparent"]) == ("fragile", "eight", "def", TRACE)
    assert "ModelInfer" in line["route"] and line["duration_ms"] > 0


@pytest.mark.parametrize(
    "request_",
    [
        infer_request(1.0, extra="X-Request-Id: me-1\r\n"),
        b"GET /v2/models/double HTTP/1.1\r\nHost: t\r\nX-Request-Id: me-1\r\n\r\n",
        b"GET /v2/nothing HTTP/1.1\r\nHost: t\r\nX-Request-Id: me-1\r\n\r\n",
        infer_request(1.0, path="/v2/models/none/infer", extra="X-Request-Id: me-1\r\n"),
    ],
)
def test_the_name_of_a_request_comes_back(server, request_):
    with Connection(server) as connection:
        assert connection.send(request_).read()[1]["x-request-id"] == "me-1"
        # What could break a header or the log does not.
        for bad in (b"a b", b"x" * 129, b"\xff", b"a\tb"):
            answer = connection.send(request_.replace(b"me-1", bad)).read()
            assert "x-request-id" not in answer[1]


def test_the_access_log_covers_every_protocol(tmp_path):
    double(tmp_path, "double", config=batching(max_batch_size=16))
    with running(tmp_path, env={"OPGATE_ACCESS_LOG": "1"}) as server:
        with Connection(server) as connection:
            connection.send(infer_request(1.0)).read()
            connection.send(b"GET /v2/models/double HTTP/1.1\r\nHost: t\r\n\r\n").read()
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
            x = triton_grpc.InferInput("x", [1, 4], "FP32")
            x.set_data_from_numpy(np.ones((1, 4), np.float32))
            client.infer("double", [x], request_id="nine")
            assert client.is_server_ready()
        wait_until(lambda: access(server, route="/inference.GRPCInferenceService/ServerReady"))
        assert access(server, route="/v2/models/{model}/infer", model="double", code="200", protocol="http")
        assert access(server, route="/v2/models/{model}", model="double", code="200")
        assert access(server, route="/inference.GRPCInferenceService/ModelInfer", model="double", code="OK", id="nine")


def test_metrics_of_the_gateway_itself(server):
    with Connection(server) as held:
        held.send(infer_request(1.0)[:-5])
        wait_until(lambda: "opgate_http_connections 2" in server.get("/metrics"))
        text = server.get("/metrics")
    assert 'opgate_model_ready{model="double",version="1"} 1.0' in text
    assert 'opgate_model_ready{model="broken",version=""} 0.0' in text
    assert 'opgate_build_info{onnxruntime="' in text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["process_resident_memory_bytes"]) > 1e7 and float(values["process_open_fds"]) > 5
    assert float(values["opgate_held_bytes"]) > 50
    assert values["opgate_running_requests"] == "0.0"
    assert 'opgate_overdue_runs_total{model="double",version="1"}' in values


def test_a_client_that_leaves_within_its_body_is_logged(server):
    with Connection(server) as connection:
        connection.send(infer_request(1.0, extra="X-Request-Id: gone-1\r\n")[:-5])
    wait_until(lambda: access(server, request_id="gone-1"))
    (line,) = access(server, request_id="gone-1")
    assert (line["code"], line["message"], line["model"], line["level"]) == ("499", "the client left", "double", "info")


def test_a_body_that_does_not_come_is_logged(tmp_path):
    double(tmp_path, "double", config=batching(max_batch_size=16))
    misspelt = {"OPGATE_MAX_BODY_BYTE": "1000", "OPGATE_EXIT_TIMEOUT_SECS": "abc"}
    with running(tmp_path, env={"OPGATE_BODY_TIMEOUT": "0.3", **misspelt}) as server:
        with Connection(server) as connection:
            connection.send(infer_request(1.0)[:-5])
            assert connection.closed()
        wait_until(lambda: access(server))
        (line,) = access(server)
        assert (line["code"], line["model"]) == ("408", "double") and "nothing of the body for 0.3 s" in line["message"]
        # A setting with a slip of the pen is named.
        assert any(
            "unknown variable OPGATE_MAX_BODY_BYTE: did you mean OPGATE_MAX_BODY_BYTES?" in line for line in server.log
        )
        # The variable has the name of the setting, not that of its option.
        option = "unknown variable OPGATE_EXIT_TIMEOUT_SECS: did you mean OPGATE_SHUTDOWN_TIMEOUT?"
        assert any(option in line for line in server.log)


def test_a_flood_of_mistakes_leaves_a_trace_and_does_not_fill_the_log(server):
    """It is the last test, because no other line is logged in the second of the flood."""
    with Connection(server) as connection:
        before = len(access(server))
        for _ in range(500):
            assert connection.send(b"GET /nothing HTTP/1.1\r\nHost: t\r\n\r\n").read()[0] == 404
        assert connection.send(b"\x00\r\n\r\n").read()[0] == 400
    lines = access(server)[before:]
    assert 0 < len(lines) <= 10 * LINES_A_SECOND
    counted = [line for line in server.get("/metrics").splitlines() if 'code="404"' in line and 'route="none"' in line]
    assert float(counted[0].rsplit(" ", 1)[1]) >= 500
    assert 'opgate_responses_total{code="400",protocol="http",route="none"}' in server.get("/metrics")


def test_nobody_forges_lines_of_the_text_log(tmp_path):
    """What clients write into names and ids stays in one line, and steers no terminal."""
    double(tmp_path, "double", config=batching())
    forged = "2026-01-01T00:00:00.000+00:00 ERROR opgate: forged"
    with running(tmp_path) as server:

        def send(path, body):
            request = urllib.request.Request(server.url + path, json.dumps(body).encode())
            with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=10) as answer:
                answer.read()

        send("/v2/logging", {"log_format": "ISO8601"})
        for end in ("\n", "\r", "\r\n", "\x0b", "\x0c", "\x1b[2K", "\x85", "\u2028", "\u2029", "\x9b2J", "\u202e"):
            name = f"a{end}{forged}"
            tensor = {"name": name, "shape": [1, 4], "datatype": "FP32", "data": [1.0] * 4}
            send("/v2/models/double/infer", {"inputs": [tensor], "id": name})
            send(f"/v2/models/{urllib.parse.quote(name)}/infer", {"inputs": []})
            send(f"/v2/models/double/versions/{urllib.parse.quote(name)}/infer", {"inputs": []})
        wait_until(lambda: sum("forged" in line for line in list(server.log)) > 5)
        send("/v2/logging", {"log_format": "default"})
        lines = [line for line in list(server.log) if "forged" in line and not line.startswith("{")]
    assert lines
    for line in lines:
        assert re.match(r"\S+ (INFO|WARNING|ERROR) opgate\.access: ", line), line
        assert line.rstrip("\n").isprintable() and len(line.splitlines()) == 1


def test_a_log_that_nobody_reads_stops_nothing(tmp_path):
    """A pipe holds a few hundred lines. The rest waits or is counted, and the requests are answered."""
    double(tmp_path, "double", config=batching())
    command = [sys.executable, "-m", "opgate", "serve", "--model-repository", str(tmp_path)]
    command += ["--http-port", "0", "--grpc-port", "0", "--access-log"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    lines = []
    try:
        while '"listening"' not in (line := process.stderr.readline()):
            assert line, "".join(lines)
            lines.append(line)
        server = SimpleNamespace(http=json.loads(line)["http_port"])
        with Connection(server) as connection:
            connection.socket.settimeout(20)
            for _ in range(2000):
                assert connection.send(infer_request(1.0)).read()[0] == 200
        process.terminate()
        assert process.wait(30) == 0
        assert sum('"answered"' in line for line in process.stderr) > 100
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_lines_that_have_no_room_are_counted():
    reading, writing = os.pipe()
    sent, found = 60, []
    with os.fdopen(reading) as reader:
        readers = threading.Thread(target=lambda: found.extend(json.loads(line)["message"] for line in reader))
        with os.fdopen(writing, "wb"):
            handler = LogHandler(writing)
            handler.setFormatter(JsonFormatter())
            for i in range(sent):
                handler.emit(logging.makeLogRecord({"msg": f"{i} " + "x" * 100_000, "levelname": "INFO"}))
            readers.start()
            handler.flush()
            handler.emit(logging.makeLogRecord({"msg": "after", "levelname": "INFO"}))
            handler.flush()
        readers.join()
    lost = [int(line.split()[0]) for line in found if "lost" in line]
    lines = [line for line in found if "lost" not in line]
    assert lost and lines.pop() == "after" and sum(lost) + len(lines) == sent
    assert [int(line.split()[0]) for line in lines] == list(range(len(lines)))


@pytest.mark.parametrize("blocks", [True, False])
def test_lines_of_several_processes_do_not_mix(blocks):
    """They share a pipe whose reader is slow. One of them may have made it so that writing doesn't wait."""
    program = """
import logging, sys
from opgate.service.telemetry.logs import JsonFormatter, LogHandler
handler = LogHandler(1)
handler.setFormatter(JsonFormatter())
for i in range(4000):
    handler.emit(logging.makeLogRecord({"msg": sys.argv[1] * 200, "levelname": "INFO"}))
while handler._waiting:
    handler.flush()
"""
    reading, writing = os.pipe()
    os.set_blocking(writing, blocks)
    processes = [subprocess.Popen([sys.executable, "-c", program, letter], stdout=writing) for letter in "ab"]
    os.close(writing)
    found = []
    with os.fdopen(reading) as reader:
        for i, line in enumerate(reader):
            found.append(json.loads(line)["message"])
            if i % 100 == 0:
                time.sleep(0.005)
    assert [process.wait(30) for process in processes] == [0, 0]
    assert sorted(found) == ["a" * 200] * 4000 + ["b" * 200] * 4000


@pytest.mark.parametrize("rate", ["1_000", "\u0663", " 7", "+7", "7.0", "", "1" * 5000])
def test_a_rate_is_written_in_digits(server, rate):
    with Connection(server) as connection:
        body = json.dumps({"trace_rate": rate}).encode()
        head = f"POST /v2/trace/setting HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n"
        status, _, answer = connection.send(head.encode() + body).read()
        assert status == 400 and "expected a number" in json.loads(answer)["error"]
