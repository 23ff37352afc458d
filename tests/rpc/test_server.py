"""Calls of every kind by grpcio's client, which nobody here wrote."""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
import ssl
import time
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
import trustme
import uvloop

from opgate.service.rpc.connection import Budget
from opgate.service.rpc.server import Call, Code, Options, RpcError, Server, Stream, Unary, tls
from tests.rpc.raw import Raw, headers
from tests.rpc.raw import message as message_frame

MB = 1 << 20
STREAMS = ("Each", "Last", "Break")  # whose clients send streams


class Service:
    """Methods that answer in every way. It remembers what became of calls that nobody answers."""

    def __init__(self):
        self.begun = 0
        self.gone = []
        self.cancelled = 0

    def methods(self):
        unary = {
            "Echo": lambda call, message: call.answer(message, [("names", call.metadata[-1][0])]),
            "Late": lambda call, message: asyncio.get_running_loop().call_later(0.05, call.answer, message),
            "Twice": self.twice,
            "Fail": lambda call, message: call.fail(Code.NOT_FOUND, message.decode()),
            "Raise": self.fails,
            "Refuse": self.refuse,
            "Never": self.never,
            "Size": lambda call, message: call.answer(bytes(int(message))),
            "Parts": self.parts,
            "Metadata": self.metadata,
            "Surrogate": lambda call, message: call.fail(Code.ABORTED, "\ud800"),
            "NoMessage": lambda call, message: call.answer(None),
        }
        streams = {
            "Each": self.each,
            "Count": self.count,
            "Last": self.last,
            "Break": self.fail_late,
            "Wait": self.wait,
        }
        return {
            **{f"/test.Test/{name}": Unary(handler) for name, handler in unary.items()},
            **{f"/test.Test/{name}": Stream(handler, name in STREAMS) for name, handler in streams.items()},
        }

    def twice(self, call: Call, message):
        call.answer(message)
        call.answer(b"again")
        call.fail(Code.INTERNAL, "again")

    def fails(self, call, message):
        raise KeyError("a bug")

    def refuse(self, call, message):
        raise RpcError(Code.RESOURCE_EXHAUSTED, "no room")

    def never(self, call, message):
        self.begun += 1
        call.on_gone = lambda call: self.gone.append(call.why_gone[0])

    def parts(self, call, message):
        """Answers with three views, one of them of floats."""
        floats = array.array("f", range(5000))
        call.answer([message, memoryview(floats), memoryview(message)[1:]])

    def metadata(self, call, message):
        """Sends the client's own metadata back in both ways."""
        own = [(name, value) for name, value in call.metadata if name.startswith("own-")]
        call.initial_metadata = [*own, ("seconds-left", str(call.seconds_left))]
        if message == b"long":
            own.append(("own-name", "v" * 100_000))
        if message == b"wrong":
            own.append(("own-name", "two\nlines"))
        if message == b"fail":
            call.fail(Code.ABORTED, "with metadata", own)
        else:
            call.answer(b"", own)

    async def each(self, call, messages):
        async for message in messages:
            yield bytes(message) + b"!"
            yield bytes(message) + b"?"

    async def count(self, call, messages):
        async for message in messages:
            for i in range(int(message)):
                yield b"%d" % i

    async def last(self, call, messages):
        last = b""
        async for message in messages:
            last = message
        yield last

    async def fail_late(self, call, messages):
        async for message in messages:
            yield message
        raise RpcError(Code.DATA_LOSS, "löst\n100 %")

    async def wait(self, call, messages):
        try:
            yield b"begun"
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


@contextlib.asynccontextmanager
async def serving(service=None, refused=None, **options):
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    told = [] if refused is None else refused
    server = Server((service or Service()).methods(), Options(**options), lambda *what: told.append(what))
    await server.start(listener)
    server.port = listener.getsockname()[1]
    yield server
    await server.stop(1)
    assert server.budget.used == 0 and not server.connections


def channel(server, **options):
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    return grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=[*unlimited, *options.items()])


async def error_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, caught.value.details()


def run(main):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def test_unary_calls():
    async def main():
        async with serving() as server, channel(server) as client:
            unary = lambda name: client.unary_unary(f"/test.Test/{name}")  # noqa: E731
            for message in (b"", b"a", bytes(range(256)) * 5000):
                assert await unary("Echo")(message) == message
                assert await unary("Late")(message) == message
            assert await unary("Twice")(b"once") == b"once"
            call = unary("Echo")(b"x", metadata=[("some-name", "value")])
            await call
            assert ("names", "some-name") in tuple(await call.trailing_metadata())
            for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
                assert await unary("Echo")(b"a" * 9999, compression=compression) == b"a" * 9999

    run(main())


@pytest.mark.parametrize(
    ("method", "message", "code", "text"),
    [
        ("Fail", "größer\r\n\t100 %".encode(), "NOT_FOUND", "größer\r\n\t100 %"),
        ("Refuse", b"", "RESOURCE_EXHAUSTED", "no room"),
        ("Fail", "ä".encode() * 5000, "NOT_FOUND", "ä" * 682 + "..."),
        ("Raise", b"", "INTERNAL", "KeyError: 'a bug'"),
        ("Nothing", b"abc", "UNIMPLEMENTED", "there is no method /test.Test/Nothing"),
        ("Nothing", bytes(10 * MB), "UNIMPLEMENTED", "there is no method /test.Test/Nothing"),
        ("Echo", bytes(2 * MB), "RESOURCE_EXHAUSTED", "the message has 2097152 bytes, the limit is 1048576"),
    ],
)
def test_errors(method, message, code, text):
    async def main():
        refused = []
        async with serving(refused=refused, max_message_bytes=MB) as server, channel(server) as client:
            for _ in range(3):
                assert await error_of(client.unary_unary(f"/test.Test/{method}")(message)) == (code, text)
            assert await client.unary_unary("/test.Test/Echo")(b"still there") == b"still there"
        by_connection = method == "Nothing" or len(message) > MB
        assert [what[0].name for what in refused] == [code] * (3 if by_connection else 0)

    run(main())


def test_a_compressed_message_over_the_limit_is_refused():
    async def main():
        async with serving(max_message_bytes=MB) as server, channel(server) as client:
            call = client.unary_unary("/test.Test/Echo")(bytes(50 * MB), compression=grpc.Compression.Gzip)
            assert await error_of(call) == (
                "RESOURCE_EXHAUSTED",
                f"the unpacked message is over the limit of {MB} bytes",
            )

    run(main())


def test_the_end_of_a_large_message_is_aligned():
    places = []

    class Looks(Service):
        def parts(self, call, message):
            end = np.frombuffer(message, np.uint8).__array_interface__["data"][0] + len(message)
            places.append((type(message), end % 64))
            call.answer(message)

    async def main():
        async with serving(Looks()) as server, channel(server) as client:
            call = client.unary_unary("/test.Test/Parts")
            for size in (65_537, 200_000, 600_000, 1_500_000, 3_000_001):
                data = os.urandom(size)
                assert await call(data) == data

    run(main())
    assert places == [(memoryview, 0)] * 5


def test_streams():
    async def main():
        async with serving() as server, channel(server) as client:

            async def messages():
                for i in range(3):
                    yield b"%d" % i

            async def many():
                for _ in range(200):
                    yield bytes(100_000)

            each = client.stream_stream("/test.Test/Each")
            assert [m async for m in each(messages())] == [b"0!", b"0?", b"1!", b"1?", b"2!", b"2?"]
            count = client.unary_stream("/test.Test/Count")
            assert [int(m) async for m in count(b"5000")] == list(range(5000))
            assert await client.stream_unary("/test.Test/Last")(messages()) == b"2"
            assert len([m async for m in each(many())]) == 400
            call = client.stream_stream("/test.Test/Break")(messages())
            got = []
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for message in call:
                    got.append(message)
            assert got == [b"0", b"1", b"2"]
            assert (caught.value.code().name, caught.value.details()) == ("DATA_LOSS", "löst\n100 %")

    run(main())


async def until(condition):
    """Waits until the condition is true. Raises TimeoutError after 10 seconds."""
    end = asyncio.get_running_loop().time() + 10
    while not condition():
        if asyncio.get_running_loop().time() > end:
            raise TimeoutError
        await asyncio.sleep(0.01)


def test_deadlines_and_clients_that_leave():
    async def main():
        service = Service()
        async with serving(service) as server, channel(server) as client:
            never = client.unary_unary("/test.Test/Never")
            assert (await error_of(never(b"", timeout=1)))[0] == "DEADLINE_EXCEEDED"
            call = never(b"")
            await until(lambda: service.begun == 2)
            call.cancel()
            stream = client.unary_stream("/test.Test/Wait")(b"")
            assert await stream.read() == b"begun"
            stream.cancel()
            await until(lambda: len(service.gone) == 2 and service.cancelled)
            # The client ends its call at the deadline too, and its reset may come before the server's own clock.
            assert service.gone[0].name in ("CANCELLED", "DEADLINE_EXCEEDED") and service.gone[1].name == "CANCELLED"
            assert service.cancelled == 1
            async with channel(server) as other:
                other.unary_unary("/test.Test/Never")(b"")
                await until(lambda: service.begun == 3)
            await until(lambda: len(service.gone) == 3)

    run(main())


def test_ten_thousand_calls_at_once():
    async def main():
        async with serving() as server, channel(server) as client:
            late = client.unary_unary("/test.Test/Late")
            answers = await asyncio.gather(*(late(b"%d" % i) for i in range(10_000)))
            assert answers == [b"%d" % i for i in range(10_000)]

    run(main())


def test_messages_of_256_megabytes():
    async def main():
        async with serving(max_message_bytes=300 * MB) as server, channel(server) as client:
            assert len(await client.unary_unary("/test.Test/Size")(b"%d" % (256 * MB))) == 256 * MB
            assert await client.stream_unary("/test.Test/Last")(iter([bytes(256 * MB)])) == bytes(256 * MB)

    run(main())


def test_a_stop_loses_no_call():
    async def main():
        async with serving() as server, channel(server) as client:
            late = client.unary_unary("/test.Test/Late")
            await late(b"first")
            calls = [asyncio.ensure_future(late(b"%d" % i)) for i in range(200)]
            await asyncio.sleep(0.02)
            assert not await server.stop(5)
            answers = await asyncio.gather(*calls, return_exceptions=True)
            # What came after the stop may be refused, but not cut off.
            lost = [a for a in answers if isinstance(a, Exception) and a.code() is not grpc.StatusCode.UNAVAILABLE]
            assert not lost and sum(isinstance(a, bytes) for a in answers) > 0

    run(main())


def test_a_client_of_another_protocol_gets_a_clear_answer():
    async def main():
        async with serving() as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 400 ") and answer.endswith(b"this port speaks gRPC over HTTP/2\n")
            writer.close()

    run(main())


def test_an_answer_may_come_in_parts():
    async def main():
        async with serving() as server, channel(server) as client:
            floats = array.array("f", range(5000)).tobytes()
            call = client.unary_unary("/test.Test/Parts")
            for message in (b"ab", bytes(100_000)):
                assert await call(message) == message + floats + message[1:]

    run(main())


def test_metadata_goes_both_ways():
    own = (("own-name", "value with spaces"), ("own-bin", bytes(range(256))), ("own-bin", b""), ("own-name", "again"))

    async def main():
        async with serving() as server, channel(server) as client:
            call = client.unary_unary("/test.Test/Metadata")(b"", metadata=own, timeout=5)
            await call
            initial = tuple(await call.initial_metadata())
            assert sorted(map(repr, initial)) == sorted(
                map(repr, (*own, ("seconds-left", dict(initial)["seconds-left"])))
            )
            assert 4 < float(dict(initial)["seconds-left"]) < 5.1  # the client rounds up
            assert sorted(map(repr, await call.trailing_metadata())) == sorted(map(repr, own))
            call = client.unary_unary("/test.Test/Metadata")(b"fail", metadata=own)
            assert await error_of(call) == ("ABORTED", "with metadata")
            assert set(own) <= set(await call.trailing_metadata())
            call = client.unary_unary("/test.Test/Metadata")(b"wrong", metadata=own, timeout=5)
            code, text = await error_of(call)
            assert code == "INTERNAL" and "two" in text and "the answer can't be sent" in text
            call = client.unary_unary("/test.Test/Metadata")(b"long", metadata=own, timeout=5)
            assert (await error_of(call))[0] == "INTERNAL"
            assert await client.unary_unary("/test.Test/Echo")(b"still there") == b"still there"

    run(main())


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_answers_to_packed_messages_are_packed(compression):
    """The bytes of an answer are counted on their way. Small and unpacked ones stay as they are."""

    async def main():
        async with serving() as server:
            passed = []

            async def relay(reader, writer):
                inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", server.port)

                async def back():
                    while data := await inner_reader.read(1 << 16):
                        passed.append(len(data))
                        writer.write(data)
                    writer.close()

                task = asyncio.ensure_future(back())
                while data := await reader.read(1 << 16):
                    inner_writer.write(data)
                inner_writer.close()
                await task

            proxy = await asyncio.start_server(relay, "127.0.0.1", 0)
            address = SimpleNamespace(port=proxy.sockets[0].getsockname()[1])
            async with channel(address) as client:
                size = client.unary_unary("/test.Test/Size")
                echo = client.unary_unary("/test.Test/Echo")
                each = client.stream_stream("/test.Test/Each")
                for message in (bytes(2000), bytes(3 * MB)):
                    passed.clear()
                    assert await echo(message, compression=compression) == message
                    assert sum(passed) < 60_000, sum(passed)
                    got = [m async for m in each(iter([message, b"short", message]), compression=compression)]
                    assert got == [message + b"!", message + b"?", b"short!", b"short?", message + b"!", message + b"?"]
                passed.clear()
                assert len(await size(b"%d" % MB)) == MB
                assert sum(passed) > MB
            await asyncio.sleep(0.05)
            proxy.close()

    run(main())


def test_packed_messages_count_when_they_are_unpacked():
    """Each of these calls sends a few kilobytes, which become 3 MB."""

    async def main():
        options = {"max_message_bytes": 4 * MB, "budget": Budget(20 * MB)}
        async with serving(**options) as server, channel(server) as client:
            never = client.unary_unary("/test.Test/Never")
            calls = [never(bytes(3 * MB), compression=grpc.Compression.Gzip) for _ in range(20)]
            await until(lambda: sum(call.done() for call in calls) >= 17)
            await asyncio.sleep(0.1)
            kept = [call for call in calls if not call.done()]
            assert len(kept) == 3
            for call in calls:
                if call not in kept:
                    assert (await error_of(call))[0] == "RESOURCE_EXHAUSTED"
            for call in kept:
                call.cancel()
            await until(lambda: server.budget.used == 0)

    run(main())


def test_an_unknown_compression_is_refused():
    async def main():
        async with serving() as server:
            raw = await Raw.open(server)
            raw.send(headers(1, more=[("grpc-encoding", "snappy")]), message_frame(1, b"x"))
            assert (await raw.answer(1))[0]["grpc-status"] == "0"  # the message itself is plain
            packed = message_frame(3, b"x")
            packed.data = b"\1" + packed.data[1:]
            raw.send(headers(3, more=[("grpc-encoding", "snappy")]), packed)
            fields, _ = await raw.answer(3)
            assert fields["grpc-status"] == "12"
            assert fields["grpc-message"] == "grpc-encoding: expected one of gzip, deflate, identity, got 'snappy'"
            raw.close()

    run(main())


def test_tls(tmp_path):
    """A client that trusts the authority gets through, one without a certificate of its own does not where that is
    asked for, and h2 is what both agree on."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name in ("localhost", "client"):
        issued = authority.issue_cert(name)
        issued.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
        issued.private_key_pem.write_to_path(tmp_path / f"{name}.key")
    root, key, own = (authority.cert_pem.bytes(), *((tmp_path / f"client.{s}").read_bytes() for s in ("key", "pem")))
    own_files = (tmp_path / "localhost.pem", tmp_path / "localhost.key")

    async def main():
        async with serving(tls=tls(*own_files), max_message_bytes=20 * MB) as server:
            credentials = grpc.ssl_channel_credentials(root)
            options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
            async with grpc.aio.secure_channel(f"localhost:{server.port}", credentials, options) as client:
                echo = client.unary_unary("/test.Test/Echo")
                for data in (b"x", bytes(10 * MB)):
                    assert await echo(data) == data
                count = client.unary_stream("/test.Test/Count")
                assert [int(m) async for m in count(b"500")] == list(range(500))
            context = ssl.create_default_context(cadata=root.decode())
            context.set_alpn_protocols(["http/1.1", "h2"])
            _, writer = await asyncio.open_connection("localhost", server.port, ssl=context)
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
            writer.close()
            async with channel(server) as client:  # plain bytes
                assert (await error_of(client.unary_unary("/test.Test/Echo")(b"x", timeout=3)))[0] == "UNAVAILABLE"
        async with serving(tls=tls(*own_files, tmp_path / "ca.pem")) as server:
            for own_key, own_certificate, code in ((None, None, "UNAVAILABLE"), (key, own, "")):
                credentials = grpc.ssl_channel_credentials(root, own_key, own_certificate)
                async with grpc.aio.secure_channel(f"localhost:{server.port}", credentials) as client:
                    call = client.unary_unary("/test.Test/Echo")(b"x", timeout=3)
                    if code:
                        assert (await error_of(call))[0] == code
                    else:
                        assert await call == b"x"

    run(main())
    with pytest.raises(OSError):
        tls(tmp_path / "nothing.pem", tmp_path / "localhost.key")
    with pytest.raises(OSError):
        tls(tmp_path / "localhost.pem", tmp_path / "client.key")


def test_a_stop_does_not_wait_for_clients_that_do_nothing():
    """One has not begun, one has no call, one holds a stream open, one does not answer a ping."""

    async def main():
        service = Service()
        async with serving(service) as server, channel(server) as client:
            assert await client.unary_unary("/test.Test/Echo")(b"x") == b"x"
            stream = client.stream_stream("/test.Test/Each")()
            await stream.write(b"one")
            assert await stream.read() == b"one!"
            silent = await Raw.open(server, preface=False)
            idle = await Raw.open(server)
            busy = await Raw.open(server)
            busy.send(headers(1, "Late"), message_frame(1, b"x"))
            await asyncio.sleep(0.02)
            begin = time.monotonic()
            assert await server.stop(20) == 0
            assert time.monotonic() - begin < 3
            assert await stream.read() == b"one?"
            assert (await error_of(stream.read())) == ("UNAVAILABLE", "the server stops")
            fields, data = await busy.answer(1)
            assert fields["grpc-status"] == "0" and data == b"\0\0\0\0\1x"
            for raw in (silent, idle, busy):
                raw.close()

    run(main())


def test_a_stop_counts_the_calls_that_it_cuts_off():
    async def main():
        service = Service()
        async with serving(service) as server, channel(server) as client:
            calls = [client.unary_unary("/test.Test/Never")(b"") for _ in range(3)]
            await asyncio.sleep(0.1)
            assert await server.stop(0.4) == 3
            assert [(await error_of(call))[0] for call in calls] == ["UNAVAILABLE"] * 3
            assert [code.name for code in service.gone] == ["CANCELLED"] * 3

    run(main())


def test_calls_made_while_the_server_stops_are_answered_or_refused_safely():
    """A client that has not seen the notice makes calls all the time. None is cut off in the middle."""

    async def main():
        service = Service()
        async with serving(service) as server, channel(server) as client:
            echo = client.unary_unary("/test.Test/Late")
            await echo(b"first")
            answers = []
            enough = asyncio.Event()

            async def make():
                for number in range(40):
                    answers.append(asyncio.ensure_future(echo(b"x", timeout=5)))
                    await asyncio.sleep(0.001)
                    if number == 12:
                        enough.set()

            making = asyncio.ensure_future(make())
            await enough.wait()
            assert await server.stop(5) == 0
            await making
            results = await asyncio.gather(*answers, return_exceptions=True)
            texts = [r.details() for r in results if isinstance(r, Exception)]
            assert sum(r == b"x" for r in results) >= 10
            assert not [text for text in texts if "connect" not in text.lower()], texts

    run(main())


def test_a_stream_may_be_answered_plain_first_and_packed_later():
    async def main():
        async with serving() as server, channel(server) as client:
            each = client.stream_stream("/test.Test/Each")
            messages = [b"x", bytes(5000), b"y"]
            got = [m async for m in each(iter(messages), compression=grpc.Compression.Gzip)]
            assert got == [m + end for m in messages for end in (b"!", b"?")]

    run(main())


@pytest.mark.parametrize("method", ["Surrogate", "NoMessage"])
def test_an_answer_that_cannot_be_sent_ends_no_other_call(method):
    async def main():
        async with serving() as server, channel(server) as client:
            late = [client.unary_unary("/test.Test/Late")(b"%d" % i, timeout=5) for i in range(40)]
            for _ in range(3):
                code, text = await error_of(client.unary_unary(f"/test.Test/{method}")(b"x", timeout=5))
                assert code == "INTERNAL" and "can't be sent" in text
            assert await asyncio.gather(*late) == [b"%d" % i for i in range(40)]

    run(main())


def test_a_failure_of_packing_or_unpacking_ends_the_call(monkeypatch):
    def fails(*arguments):
        raise MemoryError("no more")

    async def main():
        async with serving() as server, channel(server) as client:
            echo = client.unary_unary("/test.Test/Echo")
            for name in ("deflate", "unpack"):
                with monkeypatch.context() as patch:
                    patch.setattr(f"opgate.service.rpc.protocol.{name}", fails)
                    code, _ = await error_of(echo(bytes(MB), compression=grpc.Compression.Gzip, timeout=5))
                    assert code == "INTERNAL"
            assert await echo(b"x") == b"x"

    run(main())


def test_a_method_may_take_shorter_messages_than_the_server():
    async def main():
        service = Service()
        methods = service.methods()
        methods["/test.Test/Echo"] = Unary(methods["/test.Test/Echo"].handler, max_bytes=1000)
        methods["/test.Test/Each"] = Stream(methods["/test.Test/Each"].handler, max_bytes=1000)
        service.methods = lambda: methods
        async with serving(service) as server, channel(server) as client:
            for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
                assert await client.unary_unary("/test.Test/Echo")(bytes(1000), compression=compression) == bytes(1000)
                call = client.unary_unary("/test.Test/Echo")(bytes(1001), compression=compression)
                assert (await error_of(call))[0] == "RESOURCE_EXHAUSTED"
                stream = client.stream_stream("/test.Test/Each")(iter([bytes(1001)]), compression=compression)
                assert (await error_of(stream.read()))[0] == "RESOURCE_EXHAUSTED"

    run(main())


def test_a_packed_flag_without_an_encoding_is_the_clients_mistake():
    async def main():
        async with serving() as server:
            raw = await Raw.open(server)
            packed = message_frame(1, b"x")
            packed.data = b"\1" + packed.data[1:]
            raw.send(headers(1), packed)
            assert (await raw.answer(1))[0]["grpc-status"] == "13"
            raw.close()

    run(main())
