"""Clients that send frames without end, or that stop in the middle: they cost little, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import functools
import os
import resource
import subprocess
import sys
import time
from contextlib import AsyncExitStack

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    ExtensionFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from opgate.service.rpc.connection import Budget
from opgate.service.rpc.server import Stream
from tests.rpc.raw import PREFACE, Raw, headers, message
from tests.rpc.test_server import MB, Service, channel, run, serving, until

CALM, PROTOCOL_ERROR = 11, 1


def megabytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MB


# The heap of a process may be in huge pages. One of them is resident when a byte of it is used.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432"}


def alone(test):
    """Runs a test that measures memory in a process of its own, because other tests change how much memory theirs has."""

    @functools.wraps(test)
    def run_alone():
        code = f"from tests.rpc.test_floods import {test.__name__} as test; test.__wrapped__()"
        ended = subprocess.run([sys.executable, "-c", code], env={**os.environ, **HUGE_PAGES}, timeout=60)
        assert ended.returncode == 0

    return run_alone


def reset(stream):
    return (
        headers(stream).serialize() + message(stream, b"x", end=False).serialize() + RstStreamFrame(stream).serialize()
    )


# What a client sends again and again. None of it carries a call that anybody waits for.
FLOODS = {
    "ping": PingFrame(opaque_data=b"12345678").serialize(),
    "ping acks": PingFrame(opaque_data=b"12345678", flags=["ACK"]).serialize(),
    "settings": SettingsFrame(settings={4: 65535}).serialize(),
    "settings acks": SettingsFrame(flags=["ACK"]).serialize(),
    "priority": PriorityFrame(3, depends_on=0, stream_weight=7).serialize(),
    "window updates": WindowUpdateFrame(0, window_increment=1).serialize(),
    "window updates of a stream": WindowUpdateFrame(1, window_increment=1).serialize(),
    "empty data": DataFrame(1).serialize(),
    "padded empty data": DataFrame(1, pad_length=0, flags=["PADDED"]).serialize(),
    "data of an ended call": DataFrame(3, b"x", pad_length=0, flags=["PADDED"]).serialize(),
    "empty data of an ended call": DataFrame(3).serialize(),
    "window updates of an ended call": WindowUpdateFrame(3, window_increment=1).serialize(),
    "resets of an ended call": RstStreamFrame(3).serialize(),
    "headers of an ended call": headers(3).serialize(),
    "goaways": GoAwayFrame(0, last_stream_id=0).serialize(),
    "unknown frames": ExtensionFrame(type=0xAB, stream_id=0, flag_byte=0, body=b"").serialize(),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_frames_that_carry_nothing(kind):
    async def main():
        told = []
        async with serving(refused=told) as server, channel(server) as client:
            raw = await Raw.open(server)
            raw.send(headers(1, "Each"), headers(3), message(3, b"x"))  # a call that stays open, and one that ends
            await raw.answer(3)
            reading = asyncio.ensure_future(raw.frames(30))
            begin, cpu = time.monotonic(), time.process_time()
            closed = await raw.flood(FLOODS[kind], 2_000_000)
            assert closed, "the server took two million frames"
            # Others are served, and the whole flood took a part of a second.
            assert await client.unary_unary("/test.Test/Echo")(b"x", timeout=5) == b"x"
            assert time.process_time() - cpu < 5 and time.monotonic() - begin < 20
            frames = await reading
            goodbye = [frame.error_code for frame in frames if isinstance(frame, GoAwayFrame)]
            assert goodbye in ([CALM], [PROTOCOL_ERROR], []), (
                goodbye
            )  # bytes that were not read can make the reset overtake it
            raw.close()
            await asyncio.sleep(0.05)
            assert len(server.connections) == 1
            assert [what[2] for what in told] == [""] and "broke HTTP/2" in told[0][1], told

    run(main())


@alone
def test_acks_that_are_never_read():
    """The answers to pings may not fill the memory, whatever the client reads."""

    async def main():
        async with serving() as server:
            raw = await Raw.open(server)
            raw.writer.transport.pause_reading()
            before = megabytes()
            await asyncio.wait_for(raw.flood(FLOODS["ping"], 500_000), 20)
            assert megabytes() - before < 20
            raw.writer.transport.abort()
            await asyncio.sleep(0.05)

    run(main())


def test_a_client_that_pings_now_and_then_is_not_in_the_way():
    async def main():
        async with serving() as server:
            raw = await Raw.open(server)
            for stream in range(1, 4001, 2):
                raw.send(headers(stream), message(stream, b"x"), *[PingFrame(opaque_data=b"12345678")] * 3)
                raw.send(*[WindowUpdateFrame(0, window_increment=6)] * 3)
                if stream % 64 == 1:
                    assert (await raw.answer(stream))[0]["grpc-status"] == "0"
            raw.close()

    run(main())


def test_a_client_that_streams_small_messages_may_ping():
    """Each answer allows more frames. Clients send pings and window updates beside what they read."""

    async def main():
        told = []
        async with serving(refused=told) as server:
            raw = await Raw.open(server)
            raw.send(headers(1, "Each"))
            for sent in range(1, 8001):
                raw.send(message(1, b"x", end=False), *[PingFrame(opaque_data=b"12345678")] * 3)
                raw.send(*[WindowUpdateFrame(stream, window_increment=14) for stream in (0, 1)])
                if sent % 64 == 0:
                    await raw.part(1, sent * len(b"\0....x!\0....x?"))
            raw.close()
            assert not told

    run(main())


@alone
def test_rapid_resets_get_no_work_done():
    """Calls that are cancelled in the same bytes reach no handler, and too many of them end the connection."""

    async def main():
        service = Service()
        async with serving(service, max_streams=100) as server:
            raw = await Raw.open(server)
            reading = asyncio.ensure_future(raw.frames(20))
            cpu, closed = time.process_time(), False
            begin, before = time.monotonic(), megabytes()
            for first in range(1, 400_000, 1000):
                raw.writer.write(b"".join(map(reset, range(first, first + 1000, 2))))
                try:
                    await raw.writer.drain()
                except ConnectionError:
                    closed = True
                    break
                if raw.writer.is_closing():
                    closed = True
                    break
            assert closed, f"200,000 resets in {time.monotonic() - begin:.1f} s"
            assert time.process_time() - cpu < 10 and megabytes() - before < 30
            assert any(isinstance(frame, GoAwayFrame) and frame.error_code for frame in await reading)
            raw.close()

    run(main())


@alone
def test_continuations_without_end():
    async def main():
        async with serving(max_header_bytes=8192) as server:
            raw = await Raw.open(server)
            reading = asyncio.ensure_future(raw.frames(20))
            before = megabytes()
            raw.send(headers(1, flags=()))
            piece = ContinuationFrame(1, b"\x10\x01a\x04" + b"v" * 4).serialize()
            closed = await asyncio.wait_for(raw.flood(piece, 500_000), 20)
            assert closed and megabytes() - before < 20
            await reading
            raw.close()

    run(main())


@pytest.mark.parametrize("size", [20_000, 60_000, 1_000_000])
def test_header_lists_over_the_limit(size):
    """A few bytes of a compressed list become many: each entry of the table is named again and again."""

    async def main():
        async with serving(max_header_bytes=16_384) as server, channel(server) as client:
            raw = await Raw.open(server)
            value = b"v" * 1000
            first = headers(1).data + b"\x40\x01a\x7f" + bytes([len(value) - 127 & 127 | 128, len(value) - 127 >> 7])
            raw.send(HeadersFrame(1, first + value + b"\xbe" * (size // 1000), flags=["END_HEADERS"]), message(1, b"x"))
            if size < 4 * 16_384:
                fields, _ = await raw.answer(1)
                assert fields["grpc-status"] == "8" and "the limit is 16384" in fields["grpc-message"]
            else:
                frames = await raw.frames(1)
                assert any(isinstance(frame, RstStreamFrame) and frame.stream_id == 1 for frame in frames)
            raw.close()
            assert await client.unary_unary("/test.Test/Echo")(b"x", timeout=5) == b"x"

    run(main())


def test_streams_over_the_limit_are_refused_and_the_others_go_on():
    async def main():
        async with serving(max_streams=50) as server:
            raw = await Raw.open(server)
            raw.send(*[headers(stream, "Each") for stream in range(1, 2001, 2)])
            refused = [frame.stream_id for frame in await raw.frames(1) if isinstance(frame, RstStreamFrame)]
            assert len(refused) == 950 and len(next(iter(server.connections)).calls) == 50
            raw.send(message(1, b"a"))
            assert (await raw.answer(1))[0]["grpc-status"] == "0"
            raw.close()

    run(main())


def test_calls_whose_client_ends_them_without_a_message():
    async def main():
        async with serving() as server:
            raw = await Raw.open(server)
            for stream in range(1, 20_001, 2):
                raw.send(headers(stream, flags=["END_HEADERS", "END_STREAM"]))
            fields, _ = await raw.answer(19_999)
            assert fields["grpc-status"] == "13" and fields["grpc-message"] == "a unary call has no message"
            raw.close()

    run(main())


@pytest.mark.parametrize("window", [0, 10])
def test_a_window_that_never_opens(window):
    """The answers of two calls can't be sent. They are given up, and a third call of the connection is answered."""

    async def main():
        service = Service()
        async with serving(service, write_timeout=0.4) as server:
            raw = await Raw.open(server, settings={4: window})
            raw.send(headers(1, "Size"), message(1, b"%d" % (8 * MB)))
            raw.send(headers(3, "Count"), message(3, b"100"))
            await asyncio.sleep(0.1)
            assert server.budget.used > 7 * MB
            frames = await raw.frames(2)
            assert {frame.stream_id for frame in frames if isinstance(frame, RstStreamFrame)} >= {1, 3} or not (
                server.connections
            )
            assert server.budget.used == 0
            raw.close()

    run(main())


def test_a_window_that_opens_again_in_time():
    async def main():
        async with serving(write_timeout=0.6) as server:
            raw = await Raw.open(server, settings={4: 0})
            raw.send(headers(1, "Size"), message(1, b"1000"))
            for _ in range(5):
                await asyncio.sleep(0.3)
                raw.send(WindowUpdateFrame(1, window_increment=201))
            fields, data = await raw.answer(1)
            assert fields["grpc-status"] == "0" and len(data) == 1005
            raw.close()

    run(main())


@alone
def test_answers_that_nobody_reads_take_bounded_memory():
    async def main():
        async with serving(write_timeout=1.0) as server:
            raw = await Raw.open(server, settings={4: (1 << 31) - 1})
            raw.send(WindowUpdateFrame(0, window_increment=(1 << 31) - 1 - 65535))
            raw.writer.transport.pause_reading()
            before = megabytes()
            raw.send(
                *[part for i in range(1000) for part in (headers(2 * i + 1, "Size"), message(2 * i + 1, b"1000000"))]
            )
            await asyncio.sleep(0.7)
            assert megabytes() - before < 120
            await asyncio.sleep(1.5)
            assert not server.connections and server.budget.used == 0
            raw.writer.transport.abort()

    run(main())


def test_a_message_that_stops_coming():
    async def main():
        told = []
        async with serving(refused=told, read_timeout=0.4) as server:
            raw = await Raw.open(server)
            raw.send(headers(1), message(1, b"half", end=False, size=100))
            raw.send(headers(3, "Each"), message(3, b"half", end=False, size=100))
            raw.send(headers(5, "Each"), message(5, b"whole", end=False))  # the client may take its time for the next
            raw.send(headers(7))
            for stream in (1, 3, 7):
                fields, _ = await raw.answer(stream, 3)
                assert fields["grpc-status"] == "4" and "nothing of the message came" in fields["grpc-message"]
            assert 0 < server.budget.used < 1000  # its metadata
            raw.send(DataFrame(5, flags=["END_STREAM"]))
            assert (await raw.answer(5))[0]["grpc-status"] == "0"
            assert [what[0].name for what in told] == ["DEADLINE_EXCEEDED"] * 3
            raw.close()

    run(main())


def test_a_message_that_comes_slowly_is_taken():
    async def main():
        async with serving(read_timeout=0.5) as server:
            raw = await Raw.open(server)
            raw.send(headers(1), message(1, b"a", end=False, size=6))
            for byte in b"bcdef":
                await asyncio.sleep(0.25)
                raw.send(DataFrame(1, bytes([byte])))
            raw.send(DataFrame(1, flags=["END_STREAM"]))
            assert (await raw.answer(1))[1] == b"\0\0\0\0\6abcdef"
            raw.close()

    run(main())


@pytest.mark.parametrize("first", [b"", b"PRI * HT", PREFACE])
def test_a_connection_that_never_begins(first):
    async def main():
        told = []
        async with serving(refused=told, read_timeout=0.3) as server:
            raw = await Raw.open(server, preface=False)
            raw.writer.write(first)
            assert await asyncio.wait_for(raw.reader.read(), 3) is not None
            assert told[0][1] == "the client sent no HTTP/2 for 0.3 s"
            raw.close()

    run(main())


def test_keep_alive_pings():
    """A client that answers pings stays, one that doesn't is gone."""

    async def main():
        told = []
        options = {"keepalive_time": 0.3, "keepalive_timeout": 0.3, "max_connection_idle": 3.0}
        async with serving(refused=told, **options) as server, channel(server) as client:
            assert await client.unary_unary("/test.Test/Echo")(b"x") == b"x"
            raw = await Raw.open(server)
            raw.send(headers(1, "Never"), message(1, b"x"))
            frames = await raw.frames(2)
            assert any(isinstance(frame, PingFrame) for frame in frames)
            assert [what[1] for what in told] == ["the client did not answer a ping in 0.3 s"]
            assert len(server.connections) == 1  # grpcio answers
            await asyncio.sleep(2.5)
            assert not server.connections  # it made no call for long
            assert await client.unary_unary("/test.Test/Echo")(b"x") == b"x"  # it connects again
            raw.close()

    run(main())


@alone
def test_memory_is_taken_for_what_has_come_only():
    """A thousand calls say that they bring 64 MB each, and bring five bytes."""

    async def main():
        async with serving() as server:
            raw = await Raw.open(server)
            before = megabytes()
            raw.send(
                *[f for i in range(1000) for f in (headers(2 * i + 1), message(2 * i + 1, b"five!", False, 64 * MB))]
            )
            await asyncio.sleep(0.3)
            assert 5000 < server.budget.used < 500_000 and megabytes() - before < 30
            raw.close()
            await asyncio.sleep(0.1)
            assert server.budget.used == 0

    run(main())


def test_the_messages_of_all_calls_share_one_budget():
    """Three clients hold most of it, and the fourth has no room for its message."""

    async def main():
        async with serving(max_message_bytes=4 * MB, budget=Budget(10 * MB)) as server, AsyncExitStack() as stack:
            options = {"grpc.use_local_subchannel_pool": 1}
            clients = [await stack.enter_async_context(channel(server, **options)) for _ in range(4)]
            held = [client.unary_unary("/test.Test/Never")(bytes(3 * MB)) for client in clients[:3]]
            await asyncio.sleep(0.4)
            assert 9 * MB < server.budget.used < 9 * MB + 3000
            echo = clients[3].unary_unary("/test.Test/Echo")
            with pytest.raises(Exception, match="hold all the memory for messages"):
                await echo(bytes(3 * MB))
            for call in held:
                call.cancel()
            await asyncio.sleep(0.2)
            assert server.budget.used == 0
            assert await echo(bytes(3 * MB)) == bytes(3 * MB)

    run(main())


@alone
def test_many_connections_leave_nothing():
    async def main():
        async with serving() as server:

            async def one():
                raw = await Raw.open(server)
                raw.send(headers(1), message(1, bytes(1000)), headers(3, "Never"), message(3, bytes(1000)))
                await raw.answer(1)
                raw.close()

            for i in range(40):
                await asyncio.gather(*(one() for _ in range(25)))
                if i == 10:
                    before = megabytes()
            await asyncio.sleep(0.1)
            assert megabytes() - before < 8
            assert not server.connections and server.budget.used == 0

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > 200 or hard > 200
    run(main())


@alone
def test_answers_leave_the_budget_as_they_are_sent():
    """Each of these connections asks for more than the budget, and reads nothing."""

    async def main():
        async with serving(budget=Budget(64 * MB), write_timeout=30) as server:
            before, many = megabytes(), []
            for _ in range(10):
                raw = await Raw.open(server, settings={4: (1 << 31) - 1})
                raw.send(WindowUpdateFrame(0, window_increment=(1 << 31) - 1 - 65535))
                raw.writer.transport.pause_reading()
                raw.send(headers(1, "Size"), message(1, b"%d" % (20 * MB)))
                many.append(raw)
            await asyncio.sleep(0.5)
            # The transport has a part of each answer, and the others count: later calls find no room for their message.
            assert 64 * MB < server.budget.used < 100 * MB and megabytes() - before < 130
            for raw in many:
                raw.writer.transport.abort()
            await asyncio.sleep(0.2)
            assert server.budget.used == 0

    run(main())


@alone
def test_small_messages_of_a_stream_are_bounded():
    """The handler takes none of them."""

    async def main():
        service = Service()
        methods = service.methods()

        async def takes_none(call, messages):
            await asyncio.sleep(60)
            yield b""

        methods["/test.Test/Each"] = Stream(takes_none)
        service.methods = lambda: methods
        async with serving(service, budget=Budget(16 * MB), max_message_bytes=MB) as server:
            raw = await Raw.open(server)
            await raw.settle()
            raw.send(headers(1, "Each"))
            before = megabytes()
            for _ in range(100):
                raw.send(DataFrame(1, b"\0\0\0\0\0" * 3000))
                await raw.writer.drain()
            fields, _ = await raw.answer(1)
            assert fields["grpc-status"] == "8" and megabytes() - before < 60
            raw.close()

    run(main())


def test_a_client_that_cancels_many_calls_stays():
    """As one does that asks two servers and takes the faster answer. The calls have reached their handlers."""

    async def main():
        service = Service()
        async with serving(service) as server:
            raw = await Raw.open(server)
            for first in range(1, 30_001, 200):
                streams = range(first, first + 200, 2)
                raw.send(*[frame for s in streams for frame in (headers(s, "Never"), message(s, b"x"))])
                await raw.writer.drain()
                await asyncio.sleep(0.005)
                raw.send(*map(RstStreamFrame, streams))
                await asyncio.sleep(0.005)
            raw.send(headers(40_001), message(40_001, b"x"))
            assert (await raw.answer(40_001))[0]["grpc-status"] == "0"
            assert len(service.gone) > 14_000
            raw.close()

    run(main())


def test_cancelled_calls_among_many_messages_cost_little():
    async def main():
        async with serving() as server:
            raw = await Raw.open(server)
            await raw.settle()
            raw.send(headers(1, "Last"))
            raw.send(*[headers(s, "Last") for s in range(3, 10_001, 2)])
            connection = next(iter(server.connections))
            await until(lambda: len(connection.calls) == 5_000)
            cpu = time.process_time()
            raw.send(DataFrame(1, b"\0\0\0\0\0" * 30_000), *[RstStreamFrame(s) for s in range(3, 10_001, 2)])
            await until(lambda: len(connection.calls) == 1)
            assert time.process_time() - cpu < 0.9
            raw.close()

    run(main())


def test_a_call_over_http_is_told():
    async def main():
        told = []
        async with serving(refused=told) as server:
            raw = await Raw.open(server)
            get = headers(1, path="/x")
            get.data = get.data.replace(b"\x04POST", b"\x03GET")
            raw.send(get, message(1, b"x"))
            fields, data = await raw.answer(1)
            assert fields[":status"] == "405" and data == b"gRPC calls are POST requests\n"
            assert [(what[1], what[2]) for what in told] == [("gRPC calls are POST requests", "/x")]
            raw.close()

    run(main())


def test_metadata_counts_too():
    """Each call has 12 KB of it, in a few bytes: a table entry that is named again and again."""

    async def main():
        async with serving(budget=Budget(2 * MB), max_message_bytes=MB) as server:
            raw = await Raw.open(server)
            value = b"v" * 1000
            entry = b"\x40\x01a\x7f" + bytes([len(value) - 127 & 127 | 128, len(value) - 127 >> 7]) + value
            raw.send(HeadersFrame(1, headers(1, "Never").data + entry + b"\xbe" * 10, flags=["END_HEADERS"]))
            for stream in range(3, 1001, 2):
                raw.send(HeadersFrame(stream, headers(stream, "Never").data + b"\xbe" * 11, flags=["END_HEADERS"]))
            fields, _ = await raw.answer(999)
            assert fields["grpc-status"] == "8" and server.budget.used <= 2 * MB
            raw.close()

    run(main())


@alone
def test_a_call_whose_end_waits_for_a_window_holds_nothing():
    """The handler has answered, the client's window is closed, and a large message of the client is on its way."""

    async def main():
        async with serving(write_timeout=1.0) as server:
            raw = await Raw.open(server, settings={4: 3})
            await raw.settle()
            raw.send(headers(1, "Break"), message(1, b"first", end=False))
            await asyncio.sleep(0.1)
            before = megabytes()
            raw.send(DataFrame(1, b"\0" + (60 * MB).to_bytes(4, "big")), *[DataFrame(1, bytes(16_000))] * 200)
            raw.send(DataFrame(1, b"\7", flags=["END_STREAM"]))
            await asyncio.sleep(0.3)
            assert megabytes() - before < 20 and server.budget.used < 20
            assert any(isinstance(f, RstStreamFrame) and f.stream_id == 1 for f in await raw.frames(2.5))
            assert server.budget.used == 0
            raw.close()

    run(main())


def test_one_connection_may_have_half_of_the_budget():
    async def main():
        options = {"grpc.use_local_subchannel_pool": 1}
        async with (
            serving(max_message_bytes=2 * MB, budget=Budget(12 * MB)) as server,
            channel(server, **options) as greedy,
            channel(server, **options) as other,
        ):
            never = "/test.Test/Never"
            held = [greedy.unary_unary(never)(bytes(2 * MB), timeout=20) for _ in range(6)]
            await asyncio.sleep(0.5)
            assert server.budget.used <= 6 * MB and sum(call.done() for call in held) == 4
            assert await other.unary_unary("/test.Test/Echo")(bytes(2 * MB), timeout=5) == bytes(2 * MB)
            for call in held:
                call.cancel()
            await asyncio.sleep(0.2)
            assert server.budget.used == 0

    run(main())
