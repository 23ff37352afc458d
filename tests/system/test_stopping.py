"""How the process ends: on SIGTERM without a lost request and in time, also when nothing works any more, and in a crash."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time

import pytest

from tests.service.onnx_models import double, endless
from tests.system.conftest import wait_until
from tests.system.running import Server
from tests.system.test_http import Connection, infer_request
from tests.system.test_leaving import WAYS

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n"


def records(server):
    return [json.loads(line) for line in server.log if line.startswith("{")]


def test_no_request_of_an_open_connection_is_lost(repository):
    """Each of many clients sends request after request until an answer says that the connection closes."""
    server = Server(repository)
    kinds = [infer_request(1.0), LIVE, infer_request(1.0, path="/v2/models/pipeline/infer"), infer_request(1.0) + LIVE]
    ends = []

    def client(number):
        count, end = 0, "closed without an answer"
        try:
            with Connection(server) as connection:
                request = kinds[number % len(kinds)]
                expected = 2 if request.endswith(LIVE) and request != LIVE else 1
                while True:
                    time.sleep(number % 7 * 0.01)
                    connection.send(request)
                    for _ in range(expected):
                        status, headers, _ = connection.read()
                        assert status == 200
                        count += 1
                    if headers.get("connection") == "close":
                        end = "told"
                        assert connection.closed()
                        return
        except Exception as error:
            end = f"{type(error).__name__} after {count}"
        finally:
            ends.append(end)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(64)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    status = server.stop()
    for thread in threads:
        thread.join()
    assert status == 0, "".join(server.log)
    assert ends == ["told"] * len(threads)


def test_readiness_turns_first(repository):
    server = Server(repository)
    with Connection(server) as waiting, Connection(server) as asking:
        for connection in (waiting, asking):
            assert connection.send(b"GET /v2/health/ready HTTP/1.1\r\nHost: t\r\n\r\n").read()[0] == 200
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        # A new client is still let in, and told not to stay.
        for connection in (asking, Connection(server)):
            status, headers, body = connection.send(b"GET /v2/health/ready HTTP/1.1\r\nHost: t\r\n\r\n").read()
            assert status == 400 and b"shutting down" in body and headers["connection"] == "close"
            assert connection.closed()
        assert waiting.closed()
        assert server.process.wait(20) == 0
        server.stop()


def test_requests_that_come_together_during_the_stop_are_all_answered(repository):
    server = Server(repository)
    with Connection(server) as connection:
        connection.send(LIVE).read()
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        connection.send(infer_request(1.0, path="/v2/models/none/infer") + infer_request(1.0) + LIVE)
        answers = [connection.read() for _ in range(3)]
        assert [status for status, _, _ in answers] == [404, 200, 200]
        assert [headers.get("connection") for _, headers, _ in answers] == [None, None, "close"]
        assert connection.closed()
        assert server.process.wait(20) == 0
        server.stop()


def test_clients_that_stand_still_do_not_delay_the_end(tmp_path):
    endless(tmp_path, "endless", config='backend: "onnxruntime"')
    double(tmp_path, "double", config='backend: "onnxruntime"', shape=("a", "b"))
    server = Server(tmp_path, env={"OPGATE_SHUTDOWN_TIMEOUT": "2"})
    with contextlib.ExitStack() as stack:

        def connect(data):
            connection = stack.enter_context(Connection(server))
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.send(data)

        tensor = {"name": "x", "shape": [1, 1 << 21], "datatype": "FP32", "data": [1.5] * (1 << 21)}
        body = json.dumps({"inputs": [tensor]}).encode()
        head = f"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        connect(b"")
        connect(LIVE[:20])  # half a head
        connect(head + body[:1000])  # half a body
        connect(head + body)  # an answer that nobody reads
        connect(WAYS["infer"])  # a run without end
        connect(WAYS["chunked"][:-3])
        time.sleep(1)
        began = time.monotonic()
        status = server.stop(10)
        assert status == 1  # the answer that nobody reads, and the run, are lost
        assert time.monotonic() - began < 5
        assert records(server)[-1]["message"] == "stopped in the midst of 2 requests"


@pytest.mark.parametrize("again", [False, True])
def test_a_run_that_holds_the_event_loop_is_told_and_does_not_stop_the_end(tmp_path, again):
    endless(tmp_path, "counts", config='backend: "onnxruntime"', times=None)
    server = Server(
        tmp_path,
        env={
            "OPGATE_RUN_TIMEOUT": "1",
            "OPGATE_SHUTDOWN_TIMEOUT": "20" if again else "1",
            "OPGATE_INLINE_LIMIT_US": "5000",
        },
    )

    def request(times):
        tensors = [
            {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]},
            {"name": "times", "shape": [1], "datatype": "INT64", "data": [times]},
        ]
        body = json.dumps({"inputs": tensors})
        head = f"POST /v2/models/counts/infer HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n"
        return (head + body).encode()

    with Connection(server) as connection:
        for _ in range(60):  # until its runs happen on the event loop
            assert connection.send(request(1)).read()[0] == 200
        connection.send(request(1 << 40))
        told = "a run of model 'counts' has held the event loop for 1 s"
        wait_until(lambda: any(told in record["message"] for record in records(server)), 20)
        server.process.send_signal(signal.SIGTERM)
        if again:
            time.sleep(0.2)
            server.process.send_signal(signal.SIGINT)
        assert server.process.wait(10) == 1
        server.stop()
        last = records(server)[-1]["message"]
        assert ("a second signal" if again else "model 'counts' still holds the event loop") in last


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_the_last_words_name_the_model(tmp_path, number, form):
    endless(tmp_path, "endless", config='backend: "onnxruntime"')
    # The log names the ports only as JSON.
    server = Server(tmp_path) if form == "json" else Server(tmp_path, program="tests.system.text_server")
    with Connection(server) as connection:
        connection.send(WAYS["infer"])
        time.sleep(0.3)
        os.kill(server.process.pid, number)
        assert server.process.wait(10) == -number
        server.stop()
        last = server.log[-1]
        assert number.name in last and "Under way: model 'endless' version 1" in last
        if form == "json":
            record = json.loads(last)
            assert record["level"] == "critical" and record["time"][:10] == json.loads(server.log[0])["time"][:10]
