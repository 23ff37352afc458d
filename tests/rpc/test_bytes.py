"""The connection without sockets: bytes of a real client, cut anywhere, and broken in every way."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import grpc
import pytest

from opgate.service.rpc.connection import Budget, Connection, ProtocolError
from opgate.service.rpc.server import Server
from tests.rpc.test_server import Service, channel, run, serving

METHODS = Server(Service().methods()).numbers
MB = 1 << 20


def connection(budget=None, max_message_bytes=MB, max_header_bytes=8192, max_streams=100):
    return Connection(METHODS, budget or Budget(64 * MB), max_message_bytes, max_header_bytes, max_streams, 64 * MB)


@pytest.fixture(scope="module")
def recorded():
    """What grpcio's client sends for calls of several kinds."""

    async def main():
        sent = bytearray()
        async with serving() as server:

            async def relay(reader, writer):
                inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", server.port)

                async def back():
                    while data := await inner_reader.read(1 << 16):
                        writer.write(data)
                    writer.close()

                task = asyncio.ensure_future(back())
                while data := await reader.read(1 << 16):
                    sent.extend(data)
                    inner_writer.write(data)
                inner_writer.close()
                await task

            proxy = await asyncio.start_server(relay, "127.0.0.1", 0)
            address = SimpleNamespace(port=proxy.sockets[0].getsockname()[1])
            async with channel(address) as client:
                await client.unary_unary("/test.Test/Echo")(b"hello", metadata=[("name", "value")], timeout=5)
                await client.unary_unary("/test.Test/Echo")(b"a" * 300, compression=grpc.Compression.Gzip)
                await client.stream_unary("/test.Test/Last")(iter([b"one", b"", b"three" * 100]))
                with pytest.raises(grpc.aio.AioRpcError):
                    await client.unary_unary("/test.Test/Nothing")(b"")
            await asyncio.sleep(0.05)
            proxy.close()
        return bytes(sent)

    return run(main())


def events_of(data, cuts):
    one = connection()
    events = []
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        events += one.receive(data[begin:end])
        one.output(MB)
    return events


def test_bytes_may_be_cut_anywhere(recorded):
    whole = events_of(recorded, [])
    # A unary call, a compressed one, a stream of three messages and its end, and a call that is refused.
    assert [event[0] for event in whole if event[0] != 4] == [0, 0, 1, 2, 2, 2, 3, 5]
    assert whole[0][2:5] == (0, whole[0][3], b"hello") and ("name", "value") in whole[0][7]
    assert 4_000_000 < whole[0][3] <= 5_000_000
    for at in range(1, len(recorded)):
        assert events_of(recorded, [at]) == whole
    assert events_of(recorded, range(1, len(recorded))) == whole


@pytest.mark.parametrize("seed", range(6))
def test_broken_bytes_end_the_connection_at_worst(recorded, seed):
    rng = random.Random(seed)
    budget = Budget(8 * MB)
    ended = 0
    for _ in range(400):
        data = bytearray(recorded)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(24, len(data))
            data[at : at + rng.choice((0, 1, 1, 4))] = rng.randbytes(rng.choice((0, 1, 1, 3)))
        one = connection(budget)
        try:
            for begin in range(0, len(data), 200):
                for event in one.receive(data[begin : begin + 200]):
                    if event[0] == 0:
                        one.answer(event[1], b"answer", None, None, False, "")
                one.output(MB)
        except ProtocolError:
            one.output(MB)
            ended += 1
        else:
            ended += one.done
        del one
        assert budget.used == 0
    assert ended > 50
