"""Requests whose head came before byte for byte, which the connection takes without the parser, among all others."""

from __future__ import annotations

import json
import random
import threading
from itertools import pairwise

import pytest

from tests.system.test_hostile_http import CHUNKED
from tests.system.test_http import Connection, infer_body, infer_request, output

PATH = "/v2/models/double/infer"
TRACE = "traceparent: 00-%032x-%016x-01\r\n"


def doubled(fill, rows=1):
    def check(answer):
        assert answer[0] == 200
        assert output(answer).tolist() == [2 * fill] * (4 * rows)

    return check


def status(code, text=""):
    def check(answer):
        assert answer[0] == code
        assert text in answer[2].decode()

    return check


def plain(rng):
    fill, rows = rng.randrange(100), rng.choice((1, 1, 1, 16))
    return infer_request(fill, rows=rows), doubled(fill, rows)


def bad_body(rng):
    """The head of a good request before JSON that is none."""
    request = infer_request(1.0)
    return request.replace(b'{"inputs"', b'["inputs"'), status(400)


def wrong_type(rng):
    return infer_request(1.0).replace(b"FP32", b"FP64"), status(400, "expected datatype FP32, got FP64")


def unknown_model(rng):
    return infer_request(1.0, path="/v2/models/nothing/infer"), status(404, "nothing")


def head_request(rng):
    return b"GET /v2 HTTP/1.1\r\nHost: t\r\n\r\n", status(200, "opgate")


def traced(rng):
    fill, trace = rng.randrange(100), TRACE % (rng.getrandbits(128), rng.getrandbits(64))

    def check(answer):
        doubled(fill)(answer)
        assert answer[1]["traceparent"] == trace[13:-2]

    return infer_request(fill, extra=trace), check


def expecting(rng):
    fill = rng.randrange(100)
    return infer_request(fill, extra="Expect: 100-continue\r\n"), doubled(fill)


def after_empty_line(rng):
    fill = rng.randrange(100)
    return b"\r\n" + infer_request(fill), doubled(fill)


def chunked(rng):
    body, length = infer_body(1, 3.0)
    head = f"POST {PATH} HTTP/1.1\r\nHost: t\r\nInference-Header-Content-Length: {length}\r\n{CHUNKED}"
    return head.encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), doubled(3.0)


def long(rng):
    """A body that does not come in one piece with its head."""
    fill = rng.randrange(100)
    body, length = infer_body(40_000, fill)
    head = f"POST /v2/models/plain/infer HTTP/1.1\r\nHost: t\r\nInference-Header-Content-Length: {length}\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body, doubled(fill, 40_000)


KINDS = (plain, plain, plain, bad_body, wrong_type, unknown_model, head_request, traced, expecting, after_empty_line,
         chunked, long)  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_each_request_gets_its_answer_however_the_bytes_come(server, seed):
    rng = random.Random(seed)
    asked = [rng.choice(KINDS)(rng) for _ in range(150)]
    data = b"".join(request for request, _ in asked)
    cuts, at = [0], 0
    while at < len(data):
        at = min(len(data), at + rng.choice((1, 7, 100, 400, 5000, 200_000)))
        cuts.append(at)

    with Connection(server) as connection:

        def send():
            for begin, end in pairwise(cuts):
                connection.send(data[begin:end])

        threading.Thread(target=send, daemon=True).start()
        for _, check in asked:
            check(connection.read())


def test_a_head_that_asks_to_close_closes_each_time(server):
    for _ in range(3):
        with Connection(server) as connection:
            connection.send(infer_request(1.0)).read()
            answer = connection.send(infer_request(2.0, extra="Connection: close\r\n")).read()
            doubled(2.0)(answer)
            assert answer[1]["connection"] == "close"
            with pytest.raises(EOFError):
                connection.read()


def test_an_old_version_of_http_stays_that(server):
    old = infer_request(2.0).replace(b"HTTP/1.1", b"HTTP/1.0")
    for _ in range(2):
        with Connection(server) as connection:
            answer = connection.send(old).read()
            doubled(2.0)(answer)
            with pytest.raises(EOFError):
                connection.read()


def test_garbage_of_the_size_of_a_good_head_is_refused_each_time(server):
    good = infer_request(1.0)
    garbage = b"P\x00ST" + good[4:]
    for _ in range(3):
        with Connection(server) as connection:
            doubled(1.0)(connection.send(good).read())
            assert connection.send(garbage).read()[0] == 400
            with pytest.raises(EOFError):
                connection.read()


def test_a_known_head_with_half_a_body_waits_for_the_rest(server):
    request = infer_request(5.0)
    with Connection(server) as connection:
        doubled(5.0)(connection.send(request).read())
        connection.send(request[:-20])
        other = Connection(server)
        with other:
            doubled(7.0)(other.send(infer_request(7.0)).read())
        connection.send(request[-20:] + infer_request(6.0))
        doubled(5.0)(connection.read())
        doubled(6.0)(connection.read())
        assert json.loads(connection.send(b"GET /v2 HTTP/1.1\r\nHost: t\r\n\r\n").read()[2])["name"] == "opgate"
