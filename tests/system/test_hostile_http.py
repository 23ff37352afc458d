"""Attacks by a hostile client that once succeeded and must not succeed again."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import struct
import threading
import time

import numpy as np
import pytest

from tests.system.conftest import wait_until
from tests.system.running import Server, running
from tests.system.test_http import Connection, alive, connection, error, infer_request, output  # noqa: F401


def infer_json(tensor, **more):
    body = json.dumps({"inputs": [tensor], **more}).encode()
    head = f"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


UPGRADE = "Connection: Upgrade\r\nUpgrade: h2c\r\n"


def test_a_body_after_an_upgrade_is_not_read_as_a_request(connection, server):  # noqa: F811
    inner = b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n"
    head = f"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\n{UPGRADE}Content-Length: {len(inner)}\r\n\r\n"
    connection.send(head.encode())
    time.sleep(0.1)
    connection.send(inner + infer_request(2.0))
    assert error(connection.read())[0] == 400  # it is no JSON
    assert output(connection.read())[0] == 4
    alive(server)


OFFERS = [
    UPGRADE,
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n",
    "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
]


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("pieces", [1, 7, 200])
def test_a_client_that_offers_another_protocol_is_answered_in_http_1(connection, offer, pieces):  # noqa: F811
    """The HTTP clients of JDK 17 and `curl --http2` offer it with every request."""
    requests = [
        infer_request(3.0, extra=offer),
        f"GET /v2 HTTP/1.1\r\nHost: t\r\n{offer}\r\n".encode(),
        infer_json({"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 1, 1, 1]}).replace(
            b"Host: t\r\n", b"Host: t\r\n" + offer.encode()
        ),
        b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n",
    ]
    sent = b"".join(requests)
    size = -(-len(sent) // pieces)
    for start in range(0, len(sent), size):
        connection.send(sent[start : start + size])
        time.sleep(0.001 if pieces > 1 else 0)
    assert output(connection.read())[0] == 6
    assert [connection.read()[0] for _ in range(3)] == [200, 200, 200]


def test_an_offer_to_close_too_is_heard(connection):  # noqa: F811
    head = "GET /v2 HTTP/1.1\r\nHost: t\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n"
    connection.send(head.encode())
    status, headers, _ = connection.read()
    assert status == 200 and headers["connection"] == "close" and connection.closed()


def test_a_chunked_body_may_follow_an_offer(connection):  # noqa: F811
    body = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 1, 1, 1]}]})
    head = f"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\n{UPGRADE}Transfer-Encoding: chunked\r\n\r\n"
    connection.send(f"{head}{len(body):x}\r\n{body}\r\n0\r\n\r\n".encode())
    assert json.loads(connection.read()[2])["outputs"][0]["data"] == [2, 2, 2, 2]


CHUNKED = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("path", ["/v2/models/double/infer", "/predict/double", "/v2/nothing"])
@pytest.mark.parametrize(
    ("head", "chunks"),
    [
        (CHUNKED, "xyz\r\n"),
        (CHUNKED, "2\r\n{}\r\nxyz\r\n"),
        (CHUNKED, "2\r\n{}!!"),
        (CHUNKED, "-1\r\n"),
        (CHUNKED, "ffffffffffffffffff\r\n"),
        ("Transfer-Encoding: xchunked\r\n\r\n", ""),
        ("Transfer-Encoding: chunked, gzip\r\n\r\n", ""),
        ("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", "abc"),
    ],
)
def test_a_body_that_cannot_be_read_is_answered_at_once(server, path, head, chunks):
    with Connection(server) as sending:
        began = time.monotonic()
        sending.send(f"POST {path} HTTP/1.1\r\nHost: t\r\n{head}".encode())
        time.sleep(0.05)  # so that the request has begun
        with contextlib.suppress(OSError):
            sending.send(chunks.encode())
        status, _, _ = sending.read()
        # Some paths are answered before their body is read.
        assert status == 400 or (path, status) in (("/v2/nothing", 404), ("/predict/double", 415))
        assert sending.closed() and time.monotonic() - began < 2
    alive(server)


def test_an_answer_that_has_begun_is_not_mixed_with_an_error(server):
    """The first request is answered, then the second one of the connection can't be read."""
    with Connection(server) as sending:
        sending.send(b"GET /v2 HTTP/1.1\r\nHost: t\r\n\r\n" + b"\x00\x01nonsense\r\n\r\n")
        assert sending.read()[0] in (200, 400)
        assert sending.closed()
    alive(server)


def test_a_client_that_leaves_while_it_sends_a_body_leaves_no_traceback(tmp_path, server):
    for path in ("/v2/models/double/infer", "/predict/double"):
        with Connection(server) as leaving:
            head = f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            leaving.send(head.encode() + b"40\r\n{")
            time.sleep(0.1)
    boundary = "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 1000\r\n"
    with Connection(server) as leaving:
        leaving.send(f"POST /predict/double HTTP/1.1\r\nHost: t\r\n{boundary}\r\n--b\r\n".encode())
        time.sleep(0.1)
    time.sleep(0.2)
    alive(server)
    assert "Traceback" not in "".join(server.log)


def test_pipelined_requests_before_an_unfinished_head_are_all_answered(connection):  # noqa: F811
    count = 400
    connection.send(b"".join(infer_request(float(i)) for i in range(count)) + b"POST /v2/models/dou")
    for i in range(count):
        assert (output(connection.read()) == 2 * i).all()


def test_pending_answers_come_before_the_refusal_of_garbage(connection):  # noqa: F811
    connection.send(infer_request(4.0) + b"GARBAGE\r\n\r\n")
    assert (output(connection.read()) == 8).all()
    assert connection.closed()


def test_a_large_head_in_one_piece_is_refused(connection):  # noqa: F811
    connection.send(b"GET /v2 HTTP/1.1\r\nHost: t\r\n" + b"X-Filler: " + b"y" * 100_000 + b"\r\n\r\n")
    assert error(connection.read())[0] == 431


def test_trailers_are_limited(connection, server):  # noqa: F811
    head = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    with pytest.raises((ConnectionError, EOFError)):
        connection.send(head)
        for _ in range(2000):
            connection.send(b"X-Trailer: " + b"y" * 1000 + b"\r\n")
            time.sleep(0.0005)
        connection.read()
        raise EOFError
    alive(server)


@pytest.mark.parametrize(
    ("tensor", "status", "text"),
    [
        ({"name": "x", "datatype": "FP32", "shape": [0, 1 << 61], "data": []}, 413, "over the limit"),
        ({"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [True, 1.5, 2, 3]}, 400, "got the boolean true"),
        ({"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, "x"]}, 400, "got the string"),
    ],
)
def test_bad_tensors(connection, tensor, status, text):  # noqa: F811
    answer = error(connection.send(infer_json(tensor)).read())
    assert answer[0] == status and text in answer[1]


def test_a_timeout_of_many_digits_is_a_mistake(connection):  # noqa: F811
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    status, text = error(connection.send(infer_json(tensor, parameters={"timeout": "1" * 5000})).read())
    assert status == 400 and "timeout" in text


def test_a_stop_that_runs_out_of_time_ends_in_order(library):
    """If a run is still under way when the time is over, the process logs it and exits with 1, not by a signal."""
    from tests.system.running import ROOT

    server = Server(ROOT / "model_repository", env={"OPGATE_SHUTDOWN_TIMEOUT": "0"})
    picture = np.frombuffer((ROOT / "docs" / "examples" / "digits.jpg").read_bytes(), np.uint8)
    head = f"POST /predict/digit_detector HTTP/1.1\r\nHost: t\r\nContent-Type: image/jpeg\r\nContent-Length: {picture.size}\r\n\r\n"
    connections = [Connection(server) for _ in range(64)]
    for opened in connections:
        opened.send(head.encode() + picture.tobytes())
    time.sleep(0.1)
    server.process.send_signal(signal.SIGTERM)
    status = server.stop()
    for opened in connections:
        opened.socket.close()
    assert status in (0, 1), "".join(server.log)


def test_a_flood_of_pipelined_requests_costs_its_bytes(repository):
    with running(repository, program="tests.system.watched_server") as server, contextlib.ExitStack() as stack:
        alive(server)
        live = b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n"
        flood = [live * 50_000, infer_request(1.0) * 10_000, (live + infer_request(2.0)) * 10_000]
        server.longest_turn()
        server.forget_peak()
        before = server.megabytes("VmRSS")

        def send(data):
            opened = stack.enter_context(Connection(server))
            opened.socket.settimeout(3)
            with contextlib.suppress(OSError):  # the server stops to read when nobody reads its answers
                opened.send(data)

        threads = [threading.Thread(target=send, args=(data,)) for data in flood * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        alive(server)
        assert server.megabytes("VmHWM") - before < 30
        assert server.longest_turn() < 60


def test_many_pipelined_requests_of_every_kind_are_answered(connection):  # noqa: F811
    chunked = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\n" + CHUNKED.encode()
    body = infer_json({"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 1, 1, 1]}).partition(b"\r\n\r\n")[
        2
    ]
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    kinds = [b"GET /v2 HTTP/1.1\r\nHost: t\r\n\r\n", infer_request(1.0), chunked + chunks, infer_request(2.0, rows=16)]
    threading.Thread(target=connection.send, args=(b"".join(kinds) * 200,)).start()
    for _ in range(200):
        assert connection.read()[0] == 200
        assert (output(connection.read()) == 2).all()
        assert json.loads(connection.read()[2])["outputs"][0]["data"] == [2, 2, 2, 2]
        assert (output(connection.read()) == 4).all()


def test_a_client_that_takes_no_answer_is_given_up(repository):
    with running(repository, env={"OPGATE_WRITE_TIMEOUT": "1"}) as server, Connection(server) as greedy:
        greedy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = infer_json({"name": "x", "shape": [4, 150528], "datatype": "FP32", "data": [1.0] * (4 * 150528)})
        body = body.replace(b"models/double", b"models/plain")
        with contextlib.suppress(OSError):
            greedy.send(body * 4)
        wait_until(lambda: any("took nothing of an answer" in line for line in server.log), 20)
        with pytest.raises(ConnectionError):
            for _ in range(100):
                greedy.send(b"x")
                time.sleep(0.05)
        alive(server)


def test_a_client_that_reads_slowly_gets_its_answer(repository):
    with running(repository, env={"OPGATE_WRITE_TIMEOUT": "1"}) as server, Connection(server) as slow:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        body = infer_json({"name": "x", "shape": [4, 150528], "datatype": "FP32", "data": [1.5] * (4 * 150528)})
        slow.send(body.replace(b"models/double", b"models/plain"))
        for _ in range(12):
            time.sleep(0.25)
            slow.held += slow.socket.recv(65536)
        status, _, answer = slow.read()
        assert status == 200 and json.loads(answer)["outputs"][0]["data"][-1] == 3


HALF_CLOSED = {
    "a model on a thread": (infer_request(4.0, path="/v2/models/pipeline/infer"), 200),
    "an infer request": (infer_request(4.0), 200),
    "predict": (b'POST /predict/double HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n'
                b'Content-Length: 15\r\n\r\n{"x":[1,2,3,4]}', 200),
    "a packed answer": (infer_request(4.0, extra="Accept-Encoding: gzip\r\n"), 200),
    "an unknown model": (infer_request(4.0, path="/v2/models/none/infer"), 404),
    "metrics": (b"GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n", 200),
}  # fmt: skip


@pytest.mark.parametrize("name", HALF_CLOSED)
def test_a_client_that_ends_its_side_is_answered(server, name):
    request, wanted = HALF_CLOSED[name]
    for count in (1, 3):
        with Connection(server) as connection_:
            connection_.send(request * count)
            connection_.socket.shutdown(socket.SHUT_WR)
            assert [connection_.read()[0] for _ in range(count)] == [wanted] * count
            assert connection_.closed() and not connection_.held


@pytest.mark.parametrize("length", ["20 ", "20\t ", " 20"])
@pytest.mark.parametrize("path", ["/v2/models/double/infer", "/predict/double", "/v2/nothing"])
def test_a_length_with_spaces_is_a_length(server, path, length):
    with Connection(server) as sending:
        head = f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        sending.send(head.encode() + b'{"a"')
        time.sleep(0.1)
        alive(server)
        sending.send(b":1}" + b" " * 13)
        assert sending.read()[0] in (400, 404)
        assert sending.send(infer_request(1.0)).read()[0] == 200


def test_a_steady_reader_of_many_answers_is_not_given_up(repository):
    """The bytes that wait to be sent rise and fall, while the client takes them all the time."""
    with running(repository, env={"OPGATE_WRITE_TIMEOUT": "1"}) as server, Connection(server) as slow:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        body = infer_json({"name": "x", "shape": [4, 150528], "datatype": "FP32", "data": [1.25] * (4 * 150528)})
        threading.Thread(target=slow.send, args=(body.replace(b"models/double", b"models/plain") * 6,)).start()
        for _ in range(6):
            while slow.held.count(b"\r\n\r\n") < 1 or len(slow.held) < 2_000_000:
                slow.held += slow.socket.recv(1 << 17)
                time.sleep(0.02)
            assert slow.read()[0] == 200


@pytest.mark.parametrize("first", [infer_request(1.0), infer_request(1.0, extra="Accept-Encoding: gzip\r\n")])
@pytest.mark.parametrize("kept", [5, 60, -5])
def test_a_client_that_ends_its_side_within_a_request_is_not_waited_for(server, first, kept):
    """The rest of the second request can't come any more."""
    with Connection(server) as connection_:
        connection_.send(first + infer_request(1.0)[:kept])
        connection_.socket.shutdown(socket.SHUT_WR)
        assert connection_.read()[0] == 200
        connection_.socket.settimeout(5)
        assert connection_.closed()


def test_clients_that_leave_while_they_are_answered_leave_no_traceback(server):
    packed = infer_request(2.0, extra="Accept-Encoding: gzip\r\n")
    live = b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n"
    before = len(server.log)
    for i in range(200):
        with Connection(server) as leaving:
            leaving.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", i % 2, 0))
            leaving.send((packed + live) * 4)
            if i % 3 == 0:
                leaving.socket.shutdown(socket.SHUT_WR)
            time.sleep(0.0005 * (i % 10))
    alive(server)
    assert not [line for line in server.log[before:] if "Traceback" in line]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_half_closed_client_gets_one_answer_for_each_request(server, version):
    packed = infer_request(2.0, extra="Accept-Encoding: gzip\r\n")
    unknown = infer_request(2.0, path="/v2/models/none/infer")
    live = b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n"
    requests, wanted = ([packed + unknown + live], [200, 404, 200]) if version == "1.1" else ([packed], [200])
    with Connection(server) as connection_:
        connection_.send(b"".join(requests).replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
        connection_.socket.shutdown(socket.SHUT_WR)
        received = b""
        while data := connection_.socket.recv(1 << 16):
            received += data
    assert received.count(b"100 Continue") <= (version == "1.1")
    connection_.held = received
    assert [connection_.read()[0] for _ in wanted] == wanted
    assert not connection_.held


def test_nothing_is_written_into_the_middle_of_an_answer(server):
    """The next request comes with the end of a chunked body, and then the client ends its side."""
    body = infer_json({"name": "x", "shape": [4, 150528], "datatype": "FP32", "data": [1.5] * (4 * 150528)})
    body = body.partition(b"\r\n\r\n")[2]
    head = b"POST /v2/models/plain/infer HTTP/1.1\r\nHost: t\r\n" + CHUNKED.encode()
    with Connection(server) as connection_:
        connection_.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        live = b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n"
        connection_.send(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) + live)
        connection_.socket.shutdown(socket.SHUT_WR)
        time.sleep(0.5)
        assert set(json.loads(connection_.read()[2])["outputs"][0]["data"]) == {3}
        assert connection_.read()[0] == 200


def test_an_error_of_the_gateway_itself_is_counted_and_logged(server, monkeypatch):
    from fastapi.testclient import TestClient

    from opgate.service.app import create_app
    from opgate.service.gateway import Gateway
    from opgate.service.settings import Settings

    gateway = Gateway(Settings(model_repository="/nonexistent"))

    def broken():
        raise ZeroDivisionError("nothing is ready")

    monkeypatch.setattr(gateway, "is_ready", broken)
    with TestClient(create_app(gateway)) as client:
        answer = client.get("/v2/health/ready", headers={"X-Request-Id": "abc"})
    assert answer.status_code == 500 and answer.headers["x-request-id"] == "abc"
    assert answer.json() == {"error": "ZeroDivisionError: nothing is ready"}
    assert gateway.journal.counts == {("http", "/v2/health/ready", "500"): 1}


@pytest.mark.parametrize("path", ["/v2/models/double/infer", "/predict/double"])
@pytest.mark.parametrize(
    ("headers", "status", "text"),
    [
        ("", 400, "expected one header Host, got none"),
        ("Host: a\r\nHost: b\r\n", 400, "expected one header Host, got 2"),
        ("Host: a\r\nTransfer-Encoding: gzip, chunked\r\n", 400, "expected chunked, got 'gzip, chunked'"),
        ("Host: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", 400, "expected chunked, got 'gzip'"),
    ],
)
def test_heads_that_two_readers_may_read_in_two_ways(connection, path, headers, status, text):  # noqa: F811
    length = "" if "Transfer" in headers else "Content-Length: 2\r\n"
    connection.send(f"POST {path} HTTP/1.1\r\n{headers}{length}\r\n".encode() + (b"{}" if length else b"0\r\n\r\n"))
    answered, _, body = connection.read()
    assert answered == status and text in json.loads(body)["error"]
    assert connection.closed()


def test_http_1_0_needs_no_host(connection):  # noqa: F811
    assert connection.send(b"GET /v2/health/live HTTP/1.0\r\n\r\n").read()[0] == 200


def test_trailers_without_end_get_an_answer(connection):  # noqa: F811
    head = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    connection.send(head + b"".join(b"x%d: %b\r\n" % (i, b"y" * 1000) for i in range(80)))
    status, _, body = connection.read()
    assert status == 431 and "trailers" in json.loads(body)["error"]


def test_no_browser_guesses_what_an_answer_is(connection):  # noqa: F811
    for request in (
        infer_request(1.0),
        b"GET /v2 HTTP/1.1\r\nHost: t\r\n\r\n",
        b"GET /none HTTP/1.1\r\nHost: t\r\n\r\n",
        b"broken\r\n\r\n",
    ):
        assert connection.send(request).read()[1]["x-content-type-options"] == "nosniff"
