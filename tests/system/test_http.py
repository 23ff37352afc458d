"""Requests over raw sockets: what HTTP allows on a connection, and what only a broken or hostile client sends."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import time

import numpy as np
import pytest

from tests.system.conftest import wait_until


def infer_body(rows=1, fill=1.0, width=4, name="x"):
    array = np.full((rows, width), fill, np.float32)
    tensor = {
        "name": name,
        "datatype": "FP32",
        "shape": list(array.shape),
        "parameters": {"binary_data_size": array.nbytes},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + array.tobytes(), len(head)


def infer_request(fill=1.0, path="/v2/models/double/infer", extra="", rows=1):
    body, header_length = infer_body(rows, fill)
    return (
        f"POST {path} HTTP/1.1\r\nHost: t\r\nInference-Header-Content-Length: {header_length}\r\n"
        f"Content-Length: {len(body)}\r\n{extra}\r\n"
    ).encode() + body


class Connection:
    """A socket that knows just enough HTTP to read answers."""

    def __init__(self, server):
        self.socket = socket.create_connection(("127.0.0.1", server.http), timeout=20)
        self.held = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)
        return self

    def _more(self):
        self.held += self._received()

    def _received(self):
        data = self.socket.recv(1 << 20)
        if not data:
            raise EOFError
        return data

    def read(self):
        """Returns status, headers and body of the next answer."""
        while b"\r\n\r\n" not in self.held:
            self._more()
        head, _, self.held = self.held.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if first.split()[1] == "100":
            return self.read()
        size = int(headers.get("content-length", 0))
        pieces, missing = [self.held], size - len(self.held)
        while missing > 0:  # TLS gives 16 KB at a time, and to add each to all before takes a second for 16 MB
            pieces.append(self._received())
            missing -= len(pieces[-1])
        self.held = b"".join(pieces)
        body, self.held = self.held[:size], self.held[size:]
        return int(first.split()[1]), headers, body

    def closed(self):
        """Waits until the server closes the connection. Returns True."""
        try:
            while True:
                self._more()
        except (EOFError, ConnectionError):
            return True


@pytest.fixture
def connection(server):
    with Connection(server) as opened:
        yield opened


def output(answer):
    status, headers, body = answer
    assert status == 200, body
    return np.frombuffer(body[int(headers["inference-header-content-length"]) :], np.float32)


def error(answer):
    status, headers, body = answer
    assert headers["content-type"] == "application/json"
    return status, json.loads(body)["error"]


def alive(server):
    with Connection(server) as connection:
        assert (output(connection.send(infer_request(3.0)).read()) == 6).all()


def test_a_connection_is_kept(connection):
    for i in range(50):
        assert (output(connection.send(infer_request(float(i))).read()) == 2 * i).all()
    assert connection.send(b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n").read()[0] == 200
    assert (output(connection.send(infer_request(5.0)).read()) == 10).all()


def test_pipelined_requests_are_answered_in_order(connection):
    live = b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n"
    connection.send(b"".join(infer_request(float(i)) + live for i in range(20)))
    for i in range(20):
        assert (output(connection.read()) == 2 * i).all()
        assert connection.read()[0] == 200


def test_a_body_that_comes_slowly(connection):
    data = infer_request(7.0, rows=16)
    for at in range(0, len(data), 40):
        connection.send(data[at : at + 40])
        time.sleep(0.002)
    assert (output(connection.read()) == 14).all()
    assert (output(connection.send(infer_request(1.0)).read()) == 2).all()


def test_the_next_request_may_come_with_the_end_of_a_large_body(connection):
    array = np.ones((1, 3, 224, 224), np.float32)
    tensor = {
        "name": "x",
        "datatype": "FP32",
        "shape": list(array.shape),
        "parameters": {"binary_data_size": array.nbytes},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    length = len(head) + array.nbytes
    request = (
        f"POST /v2/models/large/infer HTTP/1.1\r\nHost: t\r\nInference-Header-Content-Length: {len(head)}\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()
    connection.send(request + head + array.tobytes() + infer_request(4.0))
    assert (output(connection.read()) == 2).all()
    assert (output(connection.read()) == 8).all()


def test_chunked_bodies(connection):
    body, header_length = infer_body(2, 3.0)
    head = f"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nInference-Header-Content-Length: {header_length}\r\n"
    connection.send(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
    for at in range(0, len(body), 50):
        part = body[at : at + 50]
        connection.send(b"%x\r\n%b\r\n" % (len(part), part))
    assert (output(connection.send(b"0\r\n\r\n").read()) == 6).all()


def test_expect_continue(connection):
    request = infer_request(2.0, extra="Expect: 100-continue\r\n")
    head, _, body = request.partition(b"\r\n\r\n")
    connection.send(head + b"\r\n\r\n")
    wait_until(lambda: connection._more() or b"100 Continue" in connection.held)
    assert (output(connection.send(body).read()) == 4).all()


def test_http_1_0_and_close_end_the_connection(server):
    for change in (
        lambda r: r.replace(b"HTTP/1.1", b"HTTP/1.0"),
        lambda r: r.replace(b"Host", b"Connection: close\r\nHost"),
    ):
        with Connection(server) as connection:
            assert (output(connection.send(change(infer_request(2.0))).read()) == 4).all()
            assert connection.closed()


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("/v2", "GET"), ("/v2/logging", "GET, POST"), ("/v2/models/double/trace/setting", "GET, POST")],
)
def test_a_refused_method_names_those_that_are_allowed(server, path, allowed):
    with Connection(server) as connection:
        status, headers, _ = connection.send(f"DELETE {path} HTTP/1.1\r\nHost: t\r\n\r\n".encode()).read()
    assert status == 405 and ", ".join(sorted(headers["allow"].split(", "))) == allowed


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        (b"GET /v2/models/double/infer HTTP/1.1\r\nHost: t\r\n\r\n", 405, "Method Not Allowed"),
        (b"DELETE /v2 HTTP/1.1\r\nHost: t\r\n\r\n", 405, "Method Not Allowed"),
        (b"GET /v3 HTTP/1.1\r\nHost: t\r\n\r\n", 404, "no route GET /v3"),
        (b"GET /v2/models/none HTTP/1.1\r\nHost: t\r\n\r\n", 404, "unknown model: 'none'"),
        (b"GET /v2/models/double/versions/9 HTTP/1.1\r\nHost: t\r\n\r\n", 404, "version 9"),
        (b"GET /v2/models/double/versions/x HTTP/1.1\r\nHost: t\r\n\r\n", 400, "must be a number"),
        (infer_request(path="/v2/models/none/infer"), 404, "unknown model: 'none'"),
        (infer_request(path="/v2/models/%64ouble/infer?x=1"), 200, ""),
        (infer_request().replace(b"Length: 1", b"Length: 9", 1), 400, "but the body has"),
        (
            b"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n",
            400,
            "expected 16 bytes for shape [4] of FP32, got 0",
        ),
        (b"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\n\r\n", 400, "for shape [4] of FP32, got 0"),
        (
            b"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nInference-Header-Content-Length: x\r\n"
            b"Content-Length: 2\r\n\r\n{}",
            400,
            "expected a number of bytes, got 'x'",
        ),
        (
            b"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\n{}",
            415,
            "got 'br'",
        ),
        (
            b"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
            400,
            "not valid gzip",
        ),
        (b"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999\r\n\r\n", 413, "8388608 bytes"),
    ],
)
def test_mistakes_get_their_status(connection, server, request_, status, text):
    answer = connection.send(request_).read()
    assert answer[0] == status, answer
    if status != 200:
        assert text in error(answer)[1]
    alive(server)


@pytest.mark.parametrize(
    "request_",
    [
        b"nonsense\r\n\r\n",
        b"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nContent-Length: -5\r\n\r\n",
        b"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nContent-Length: abc\r\n\r\n",
        b"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nContent-Length: " + b"9" * 40 + b"\r\n\r\n",
    ],
)
def test_what_is_not_http_ends_the_connection_with_400(connection, server, request_):
    assert connection.send(request_).read()[0] == 400
    assert connection.closed()
    alive(server)


def test_a_head_without_end_is_refused(connection, server):
    connection.send(b"POST /v2/models/double/infer HTTP/1.1\r\nX: ")
    with contextlib.suppress(ConnectionError):
        for _ in range(100):
            connection.send(b"a" * 4096)
    with contextlib.suppress(EOFError, ConnectionError):  # the answer may be lost, because the client still sends
        assert connection.read()[0] in (400, 431)
    alive(server)


def test_clients_that_leave_in_the_middle(server):
    data = infer_request(rows=16)
    for cut in (10, 60, len(data) - 5, len(data)):
        with Connection(server) as connection:
            connection.send(data[:cut])
    alive(server)


def test_random_bytes_never_harm(server):
    source = random.Random(0)
    request = infer_request(rows=2)
    for _ in range(200):
        data = bytearray(request)
        for _ in range(source.randint(1, 8)):
            data[source.randrange(len(data))] = source.randrange(256)
        with Connection(server) as connection:
            try:
                connection.send(bytes(data))
                connection.socket.shutdown(socket.SHUT_WR)
                status = connection.read()[0]
            except (EOFError, ConnectionError):
                continue
            assert status < 500, bytes(data)
    alive(server)


def test_metrics_page(connection):
    connection.send(infer_request()).read()
    status, headers, body = connection.send(b"GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n").read()
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    assert b'nv_inference_request_success{model="double",version="1"}' in body
