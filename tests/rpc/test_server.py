"""Calls of every kind by grpcio's client, which nobody here wrote."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import grpc
import pytest
import uvloop

from service.rpc.server import Call, Code, Options, RpcError, Server, Stream, Unary

MB = 1 << 20
STREAMS = ("Each", "Last", "Break")  # whose clients send streams


class Service:
    """Methods that answer in every way. It remembers what became of calls that nobody answers."""

    def __init__(self):
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
        call.on_gone = lambda call, code: self.gone.append(code)

    async def each(self, call, messages):
        async for message in messages:
            yield message + b"!"
            yield message + b"?"

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


def test_deadlines_and_clients_that_leave():
    async def main():
        service = Service()
        async with serving(service) as server, channel(server) as client:
            never = client.unary_unary("/test.Test/Never")
            assert (await error_of(never(b"", timeout=0.1)))[0] == "DEADLINE_EXCEEDED"
            call = never(b"")
            await asyncio.sleep(0.1)
            call.cancel()
            stream = client.unary_stream("/test.Test/Wait")(b"")
            assert await stream.read() == b"begun"
            stream.cancel()
            await asyncio.sleep(0.2)
            assert sorted(code.name for code in service.gone) == ["CANCELLED", "DEADLINE_EXCEEDED"]
            assert service.cancelled == 1
            async with channel(server) as other:
                other.unary_unary("/test.Test/Never")(b"")
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.2)
            assert len(service.gone) == 3

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
