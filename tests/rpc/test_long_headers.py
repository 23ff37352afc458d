"""Strings of header blocks that are longer than nghttp2 takes: each costs its own call only."""

from __future__ import annotations

import asyncio
import random

import hpack
import pytest

from opgate.service.rpc.connection import ProtocolError
from tests.conftest import ALL
from tests.rpc.fuzz.make_corpus import (
    ACK,
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    PRIORITIZED,
    SETTINGS,
    data,
    field,
    frame,
    headers,
    integer,
    message,
    request,
    settings,
)
from tests.rpc.raw import Raw
from tests.rpc.test_bytes import connection
from tests.rpc.test_server import channel, run, serving

KB = 1 << 10
START = PREFACE + settings() + frame(SETTINGS, ACK)
PATH = "/test.Test/Echo"
REFUSED = "the metadata has an entry of {} bytes, the limit is 8192"


def blocks(block, size=16 * KB):
    """The payloads of a header block in pieces."""
    return [block[at : at + size] for at in range(0, len(block), size)] or [b""]


def opened(stream, block, size=16 * KB, flags=0):
    """A header block as frames of at most `size` bytes."""
    parts = blocks(block, size)
    last = len(parts) - 1
    frames = [headers(stream, parts[0], flags | (END_HEADERS if last == 0 else 0))]
    for at, part in enumerate(parts[1:], 1):
        frames.append(frame(CONTINUATION, END_HEADERS if at == last else 0, stream, part))
    return b"".join(frames)


def call(stream, *more, size=16 * KB):
    return opened(stream, request(PATH, *more), size) + data(stream, message(b"text"), end=True)


def long_field(name="x-long", size=100 * KB, head=0, huffman=False):
    """A field with a long value."""
    if not huffman:
        return field(name, "v" * size, head)
    packed = hpack.huffman.HuffmanEncoder(
        hpack.huffman_constants.REQUEST_CODES, hpack.huffman_constants.REQUEST_CODES_LENGTH
    ).encode(b"v" * size)
    return bytes([head]) + integer(len(name), 7) + name.encode() + integer(len(packed), 7, 0x80) + packed


def answered(sent, cuts=()):
    """What becomes of the calls in these bytes: for each stream the text of a message that came, or the refusal."""
    one = connection()
    outputs = b""
    found = {}
    for begin, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        for event in one.receive(sent[begin:end]):
            if event[0] == 0:
                found[event[1]] = bytes(event[4])
                one.answer(event[1], b"answer", None, None, False, "")
        outputs += b"".join(bytes(part) for part in one.output(1 << 20))
    return found, failures(outputs)


def failures(outputs):
    """The statuses and messages of what the server sent."""
    decoder, found = hpack.Decoder(), {}
    while outputs:
        size = 9 + int.from_bytes(outputs[:3], "big")
        kind, stream, payload = outputs[3], int.from_bytes(outputs[5:9], "big"), outputs[9:size]
        outputs = outputs[size:]
        if kind == HEADERS:
            fields = dict(decoder.decode(payload))
            if "grpc-status" in fields:
                found[stream] = (fields["grpc-status"], fields.get("grpc-message", ""))
    return found


def expected_long(sent, size, stream=1):
    """The long call is refused, and the one after it is answered."""
    found, failed = answered(sent)
    assert list(found.values()) == [b"text"]
    assert failed.pop(stream) == ("8", REFUSED.format(size))
    assert [status for status, _ in failed.values()] == ["0"]


def ends(sent, cut=0):
    """Whether these bytes end the connection, and no message of them is taken."""
    one = connection()
    for at in range(0, len(sent), cut or len(sent)):
        try:
            events = one.receive(sent[at : at + (cut or len(sent))])
        except ProtocolError:
            return True
        assert not [event for event in events if event[0] == 0 and event[1] == 5]
        one.output(1 << 20)
        if one.done:
            return True
    return False


KINDS = {
    "a value": lambda: (call(1, long_field()), 100 * KB),
    "a value in small frames": lambda: (call(1, long_field(), size=128), 100 * KB),
    "a value of a megabyte in frames of 1 KiB": lambda: (call(1, long_field(size=1 << 20), size=1 * KB), 1 << 20),
    "a value that goes into the table": lambda: (call(1, long_field(head=0x40)), 100 * KB),
    "a value that never does": lambda: (call(1, long_field(head=0x10)), 100 * KB),
    "a value in Huffman's code": lambda: (call(1, long_field(huffman=True)), 87.5 * KB),
    "a value of a known name": lambda: (call(1, b"\x0f\x2b" + integer(80 * KB, 7) + b"v" * 80 * KB), 80 * KB),
    "a name": lambda: (call(1, field("n" * 70 * KB, "v")), 70 * KB),
    "a name and a value": lambda: (call(1, field("n" * 70 * KB, "v" * 90 * KB)), 90 * KB),
    "two values": lambda: (call(1, long_field("a"), long_field("b", 200 * KB)), 200 * KB),
    "binary metadata": lambda: (call(1, long_field("x-bin")), 100 * KB),
    "a path": lambda: (opened(1, request("/" + "p" * 99 * KB)) + data(1, message(b"text"), end=True), 99 * KB + 1),
    "a frame with padding and a priority": lambda: (
        frame(HEADERS, PRIORITIZED | 0x8, 1, bytes([200]) + bytes(4) + b"\x10" + request(PATH) + bytes(200))
        + frame(CONTINUATION, END_HEADERS, 1, long_field())
        + data(1, message(b"text"), end=True),
        100 * KB,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_string_costs_its_call(kind):
    sent, size = KINDS[kind]()
    expected_long(START + sent + call(3), int(size))


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 255, 3900])
def test_other_strings_of_split_blocks_stay(size):
    """A block in several frames is read, and what it says stays the same."""
    value = "v" * size
    one = connection(max_header_bytes=64 * KB)
    events = one.receive(START + call(1, field("x-one", value), field("x-two", value, 0x40), b"\xbe", size=100))
    metadata = next(event for event in events if event[0] == 0)[7]
    assert [pair for pair in metadata if pair[0].startswith("x-")] == [
        ("x-one", value),
        ("x-two", value),
        ("x-two", value),
    ]


@pytest.mark.parametrize("seed", range(8 if ALL else 3))
def test_any_fields_in_any_frames(seed):
    """What a client's encoder makes of random fields is read as it was sent; only calls with long strings fail."""
    rng = random.Random(seed)
    encoder = hpack.Encoder()
    sent, expected = START, {}
    for stream in range(1, 31, 2):
        sizes = [rng.choice((0, 1, 5, 100, 127, 128, 1000, 4000)) for _ in range(rng.randrange(6))]
        if rng.random() < 0.2:
            sizes.insert(rng.randrange(len(sizes) + 1), 110 * KB)  # long in Huffman's code too
        fields = [(f"x-{rng.randrange(5)}", rng.choice("abXY~") * size) for size in sizes]
        head = [(":method", "POST"), (":scheme", "http"), (":authority", "t"), (":path", PATH)]
        head.append(("content-type", "application/grpc"))
        if rng.random() < 0.3:
            encoder.header_table_size = rng.choice((0, 100, 4096))
        block = encoder.encode([*head, *fields], huffman=rng.random() < 0.5)
        sent += opened(stream, block, rng.choice((200, 1000, 5000, 16 * KB))) + data(stream, message(b"x"), end=True)
        if max(sizes, default=0) <= 4000:
            expected[stream] = fields
    one = connection(max_header_bytes=60 * KB)
    size = rng.choice((13, 1000, len(sent)))
    found = {}
    for at in range(0, len(sent), size):
        for event in one.receive(sent[at : at + size]):
            if event[0] == 0:
                found[event[1]] = list(event[7] or ())
                one.answer(event[1], b"", None, None, False, "")
        one.output(1 << 20)
    assert found == expected


def test_both_sides_agree_on_the_table_afterwards():
    """An entry that is too large for the table empties it: what comes after is found where the client put it."""
    before, after = field("x-before", "1", 0x40), field("x-after", "2", 0x40)
    first = call(1, before, long_field(head=0x40), after)
    sent = START + first + call(3, b"\xbe")  # the newest entry
    one = connection()
    events = [event for event in one.receive(sent) if event[0] == 0]
    assert [event[7] for event in events] == [[("x-after", "2")]]
    # The entry from before is gone, for the client too.
    assert ends(START + first + call(3, b"\xbf"))


def test_bytes_may_be_cut_anywhere():
    blocks_at_the_edge = long_field(size=66 * KB, head=0x40)
    sent = START + call(1, blocks_at_the_edge, field("x-after", "2", 0x40)) + call(3, b"\xbe")
    whole = answered(sent)
    assert list(whole[0].values()) == [b"text"] and whole[1][1][0] == "8"
    begin = sent.index(b"v" * 100)
    end = sent.rindex(b"v" * 100) + 100
    places = [*range(1, begin + 40), *range(begin + 40, end, 4999), *range(end - 40, len(sent))]
    for at in places:
        assert answered(sent, [at]) == whole, at
    assert answered(sent, range(1, len(sent))) == whole


@pytest.mark.parametrize("flags", [END_STREAM, 0])
def test_long_trailers(flags):
    sent = (
        START + headers(1, request(PATH)) + data(1, message(b"text")) + opened(1, long_field(), flags=flags) + call(3)
    )
    found, failed = answered(sent)
    assert b"text" in found.values() and failed[3][0] == "0"


BROKEN = {
    "the block ends in a string": opened(1, request(PATH, long_field()[:-1])),
    "the block ends in a length": opened(1, request(PATH, bytes(70 * KB) + b"\x00\x7f")),
    "another frame in the block": headers(1, request(PATH), 0) + frame(6, 0, 0, bytes(8)) + call(3),
    "a block of another call": headers(1, request(PATH), 0) + frame(CONTINUATION, END_HEADERS, 3, b""),
    "an integer without an end": headers(1, request(PATH) + b"\xff" * 80, 0) + frame(CONTINUATION, END_HEADERS, 1),
    "a length without an end": headers(1, request(PATH) + b"\0\xff" + b"\xff" * 80, 0) + frame(CONTINUATION, 4, 1),
    "only padding": frame(HEADERS, 0x8, 1, b"\xff" + bytes(3)) + frame(CONTINUATION, END_HEADERS, 1),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("cut", [0, 1, 9, 1000])
def test_a_broken_block_ends_the_connection(kind, cut):
    assert ends(START + BROKEN[kind] + call(5), cut)


def test_calls_of_others_on_the_connection_go_on():
    """What a proxy passes on comes over one connection."""

    async def main():
        async with serving() as server, channel(server) as client:
            raw = await Raw.open(server)
            await raw.settle()
            raw.writer.write(
                headers(1, request(PATH, field("a", "1"))) + call(3, long_field(size=3 << 20), size=16 * KB)
            )
            fields, _ = await raw.answer(3)
            assert fields["grpc-status"] == "8" and "an entry of 3145728 bytes" in fields["grpc-message"]
            raw.writer.write(data(1, message(b"late"), end=True) + call(5, field("a", "1")))
            for stream, text in ((1, b"late"), (5, b"text")):
                fields, answer = await raw.answer(stream)
                assert fields["grpc-status"] == "0" and answer.endswith(text)
            raw.close()
            assert await client.unary_unary(PATH)(b"x", timeout=5) == b"x"

    run(main())


def test_grpcs_client_is_told():
    async def main():
        async with serving() as server, channel(server) as client:
            echo = client.unary_unary(PATH)
            others = [asyncio.ensure_future(echo(b"x%d" % i, timeout=10)) for i in range(20)]
            try:
                await echo(b"x", metadata=[("x-long", "v" * 200_000)], timeout=10)
            except Exception as error:
                assert "RESOURCE_EXHAUSTED" in str(error)
            else:
                raise AssertionError("a long entry was taken")
            assert await asyncio.gather(*others) == [b"x%d" % i for i in range(20)]

    run(main())
