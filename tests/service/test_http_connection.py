"""Connections of HTTP without the gateway: what they do for an ASGI application, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket

import pytest
import uvloop

from opgate.service.http.lingering import LingeringTransport
from opgate.service.http.server import Server
from opgate.service.http.service import Options
from opgate.service.rpc.connection import Budget


class Plain:
    """A service without requests that take the short way."""

    options = Options(max_header_bytes=4000, keep_alive_timeout=5.0, body_timeout=0.4, write_timeout=5.0)
    draining = False
    grace_ends = stop_ends = 0.0

    def __init__(self):
        self.budget = Budget(1 << 20)
        self.refusals = []

    def direct(self, head):
        return None

    def no_room(self, size):
        return 503, "no room"

    def refusal(self, peer, status, message):
        self.refusals.append((status, message))
        return b"content-type: text/plain\r\n", message.encode()


@contextlib.asynccontextmanager
async def client_of(application, service):
    """A connection to a server, which stops afterwards and then has none."""
    server = Server(application, service)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = await server.listen(listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        yield reader, writer
        writer.close()
        server.should_exit = True
        await serving
    assert not server.server_state.connections


def talk(application, *pieces, service=None, pause=0.05):
    """Sends pieces to a server, one by one, and returns all that it answers until it closes. A connection that stays open
    is ended by the client when it has sent everything."""

    async def main():
        async with client_of(application, service or Plain()) as (reader, writer):
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(pause)
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), 5)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def answering(*messages):
    """Returns an application that reads the request and sends these messages."""

    async def application(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        for message in messages:
            await send(message)

    return application


def start(status=200, *headers):
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data=b"", more=False):
    return {"type": "http.response.body", "body": data, "more_body": more}


GET = b"GET /a%20b/c?d=e HTTP/1.1\r\nHost: t\r\n\r\n"
LENGTH_2 = (b"content-length", b"2")


def test_what_the_application_gets():
    seen = {}

    async def application(scope, receive, send):
        seen.update(scope, messages=[await receive(), await receive()])
        await send(start(200, LENGTH_2))
        await send(body(b"ok"))
        seen["last"] = await receive()

    post = b"POST /a%20b/c?d=e HTTP/1.1\r\nHost: t\r\nX-One:  1 \r\nContent-Length: 4\r\n\r\n"
    answer = talk(application, post + b"ab", b"cd")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"\r\n\r\nok")
    assert b"\r\nx-content-type-options: nosniff\r\n" in answer and b"\r\ndate: " in answer
    assert (seen["type"], seen["method"], seen["http_version"], seen["scheme"]) == ("http", "POST", "1.1", "http")
    assert (seen["path"], seen["raw_path"], seen["query_string"]) == ("/a b/c", b"/a%20b/c", b"d=e")
    assert seen["headers"] == [(b"host", b"t"), (b"x-one", b"1"), (b"content-length", b"4")]
    assert seen["client"][0] == seen["server"][0] == "127.0.0.1"
    assert [(m["body"], m["more_body"]) for m in seen["messages"]] == [(b"ab", True), (b"cd", False)]
    assert seen["last"] == {"type": "http.disconnect"}


def test_a_body_of_unknown_length():
    parts = (start(), body(b"one", True), body(b"", True), body(b"two"))
    head, _, chunks = talk(answering(*parts), GET).partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert chunks == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
    # A client of HTTP/1.0 knows no chunks, and gets the end of the connection.
    head, _, rest = talk(answering(*parts), b"GET / HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert b"chunked" not in head and b"connection: close" in head and rest == b"onetwo"


@pytest.mark.parametrize(
    ("method", "status"), [(b"HEAD", 200), (b"HEAD", 204), (b"HEAD", 304), (b"GET", 204), (b"GET", 304)]
)
def test_answers_without_a_body(method, status):
    sent = body(b"ok") if method == b"HEAD" else body()
    application = answering(start(status, LENGTH_2) if method == b"HEAD" else start(status), sent)
    answer = talk(application, GET.replace(b"GET", method) * 2)
    assert answer.count(b"HTTP/1.1 %d " % status) == 2 and answer.endswith(b"\r\n\r\n") and b"ok" not in answer


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ([body(b"ok")], "expected http.response.start of the answer, got http.response.body"),
        ([start(200, LENGTH_2), start()], "expected http.response.body of the answer, got http.response.start"),
        ([start(200, LENGTH_2), body(b"long")], "expected 2 more bytes of the answer, got 4"),
        ([start(200, LENGTH_2), body(b"o")], "expected 2 more bytes of the answer, got 1"),
        ([start(200, (b"a", b"1\r\nb: 2"))], "is no header"),
        ([start(200, (b"a b", b"1"))], "is no header"),
        ([start(200, LENGTH_2), body(b"ok"), body(b"ok")], "expected the end of the answer, got http.response.body"),
        ([], ""),
        ([start(200, LENGTH_2), body(b"o", True)], ""),
    ],
)
def test_an_application_that_fails(messages, what, caplog):
    """Before its answer has begun the client gets 500, then it sees that the answer has no end."""
    with caplog.at_level(logging.CRITICAL, "uvicorn"), caplog.at_level(logging.ERROR, "opgate.http"):
        answer = talk(answering(*messages), GET)
    assert what in caplog.text
    if b"HTTP/1.1 500" in answer:
        assert not messages or "expected http.response.start" in what or "no header" in what
        assert answer.endswith(b'{"error":"internal error"}') and b"connection: close" in answer
    else:
        assert answer.startswith(b"HTTP/1.1 200 OK") and b"\r\nb: 2" not in answer
        assert answer.endswith(b"\r\n\r\nok") == (messages[-2:] == [body(b"ok")] * 2)


def test_requests_are_answered_in_their_order():
    """Also those that come in the chunks of a body, which the parser sees before the last answer."""
    running = []

    async def application(scope, receive, send):
        running.append(scope["path"])
        assert len(running) == 1
        await asyncio.sleep(0.02)
        while (await receive()).get("more_body"):
            pass
        running.pop()
        await send(start(200, (b"content-length", b"%d" % len(scope["path"]))))
        await send(body(scope["path"].encode()))

    chunked = b"POST /%d HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
    sent = b"".join(chunked % i if i % 3 else GET.replace(b"/a%20b/c?d=e", b"/%d" % i) for i in range(40))
    answer = talk(application, sent, pause=2.0)
    assert [part.rsplit(b"/", 1)[-1] for part in answer.split(b"HTTP/1.1 200 OK")[1:]] == [b"%d" % i for i in range(40)]


@pytest.mark.parametrize(
    ("sent", "status", "what"),
    [
        (b"nonsense\r\n\r\n", 400, "the data is no HTTP request"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "expected one header Host, got none"),
        (b"GET / HTTP/1.1\r\nHost: t\r\nHost: u\r\n\r\n", 400, "expected one header Host, got 2"),
        (b"GET / HTTP/1.1\r\nHost: t\r\nA: " + b"a" * 5000 + b"\r\n\r\n", 431, "over the limit of 4000 bytes"),
        (b"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip\r\n\r\n", 400, "expected chunked, got 'gzip'"),
        (b"CONNECT t:80 HTTP/1.1\r\nHost: t\r\n\r\n", 400, "is no URL"),
        (b"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n", 400, "is no HTTP request"),
    ],
)
def test_what_is_no_request_is_refused(sent, status, what):
    service = Plain()
    answer = talk(answering(start(200, LENGTH_2), body(b"ok")), sent, service=service)
    assert answer.startswith(b"HTTP/1.1 %d " % status) and b"connection: close" in answer and what.encode() in answer
    assert [(code, what in text) for code, text in service.refusals] == [(status, True)]


def test_nonsense_behind_a_request_does_not_cost_its_answer():
    async def application(scope, receive, send):
        await asyncio.sleep(0.2)
        await send(start(200, LENGTH_2))
        await send(body(b"ok"))

    answer = talk(application, GET + b"nonsense\r\n\r\n")
    assert answer.count(b"HTTP/1.1") == 2 and b"200 OK" in answer and b"400 Bad Request" in answer


def test_a_client_that_stops_in_its_body_is_let_go():
    left = []

    async def application(scope, receive, send):
        while (message := await receive()).get("more_body"):
            pass
        left.append(message["type"])

    answer = talk(application, b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\nab", pause=3.5)
    assert answer == b"" and left == ["http.disconnect"]


class Echo:
    """A request that needs no ASGI, and is answered with its body after some seconds, or at once."""

    begun = answered = False
    keep_alive = True

    def __init__(self, connection, length, seconds):
        self.connection, self.length, self.seconds, self.body = connection, length, seconds, b""

    @property
    def arrived(self):
        return len(self.body) == self.length

    def feed(self, data):
        self.body += data

    def complete(self):
        if self.seconds:
            asyncio.get_running_loop().call_later(self.seconds, self.answer)
        else:
            self.answer()

    def answer(self):
        transport = self.connection.transport
        close = not self.keep_alive or self.connection.is_last_answer()
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n" % self.length + b"connection: close\r\n" * close
        transport.write(head + b"\r\n" + self.body)
        self.answered = True
        if close:
            transport.close()
        self.connection.on_answered()

    def buffer(self):
        return None

    def lost(self):
        self.answered = True

    def refuse_body(self, size):
        return False


class Direct(Plain):
    """A service whose POST requests need no ASGI. Each has the seconds until its answer in a header."""

    def direct(self, head):
        seconds = head.header(b"x-seconds")
        return None if seconds is None else lambda connection: Echo(connection, head.length, float(seconds))


def echo(body=b"", seconds=b"0"):
    return b"POST / HTTP/1.1\r\nHost: t\r\nX-Seconds: %b\r\nContent-Length: %d\r\n\r\n%b" % (seconds, len(body), body)


async def late(scope, receive, send):
    """An application that answers after a moment."""
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(0.2)
    await send(start(200, LENGTH_2))
    await send(body(b"ok"))


@pytest.mark.parametrize("sent", [echo(), echo(b"ab"), GET])
def test_each_request_before_the_end_of_a_client_is_answered(sent):
    """Those that came together, behind one whose answer takes a while. The client has ended its side meanwhile."""
    answers = talk(late, GET + sent * 3, service=Direct(), pause=0)
    assert answers.count(b"HTTP/1.1 200 OK") == 4


@pytest.mark.parametrize("sent", [echo(), echo(b"ab"), GET])
def test_the_last_answer_of_a_stop_says_so_and_no_other_does(sent):
    service = Direct()
    service.draining = True
    answers = talk(late, sent * 3, service=service, pause=0).split(b"HTTP/1.1 200 OK")[1:]
    assert [b"connection: close" in answer for answer in answers] == [False, False, True]


def test_an_answer_that_began_before_the_stop_ends_its_connection():
    """Its head could not say so. The client keeps its side open."""
    service = Plain()

    async def application(scope, receive, send):
        await send(start())
        await send(body(b"one", True))
        service.draining = True
        await send(body(b"two"))

    async def main():
        async with client_of(application, service) as (reader, writer):
            writer.write(GET)
            return await asyncio.wait_for(reader.read(), 2)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()).endswith(b"3\r\ntwo\r\n0\r\n\r\n")


@pytest.mark.parametrize("before", [b"", GET])
def test_nonsense_in_the_body_of_a_second_request_costs_the_first_nothing(before):
    """The parser sees both in one piece, because it had a part of the first head."""
    first, bad = echo(b"ab", b"0.3"), b"POST /y HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"
    cut = first.index(b"\r\n\r\n") + 2
    answers = talk(
        answering(start(200, LENGTH_2), body(b"ok")), before, first[:cut], first[cut:] + bad, service=Direct()
    )
    *_, last = answers.split(b"HTTP/1.1 ")[1:]
    assert last.startswith(b"200 OK") and last.endswith(b"ab") and b"connection: close" in last


@pytest.mark.parametrize("target", [b"http://host", b"http://host?a=b", b"http://host/"])
def test_an_address_as_target(target):
    answer = talk(answering(start(200, LENGTH_2), body(b"ok")), GET.replace(b"/a%20b/c?d=e", target))
    assert answer.startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("end", ["close", "abort", "lost"])
def test_what_is_written_after_the_end_is_dropped(end):
    """The application may answer a client that has left a moment ago."""

    class Owner(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = LingeringTransport(transport, self)

    async def main():
        owner = Owner()
        server = await asyncio.get_running_loop().create_server(lambda: owner, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"a")
        await asyncio.sleep(0.05)
        owner.transport.write(b"before")
        assert await reader.readexactly(6) == b"before"
        if end == "lost":
            writer.transport.abort()
            await asyncio.sleep(0.05)
        else:
            getattr(owner.transport, end)()
        owner.transport.write(b"after")
        owner.transport.writelines([b"after", memoryview(b"after")])
        assert owner.transport.is_closing()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
