"""Makes the inputs that fuzzing starts from: `python -m tests.rpc.fuzz.make_corpus` writes them to corpus/.

An input is what fuzz_connection.cpp takes:

    flags       one byte, see below
    cut         one byte: the bytes for the connection come in pieces of this size, 0: all at once
    size        one byte: the size of the script
    script      each byte decides something, for example what is done after a piece; used again and again
    frames      for the connection, after a preface

A frame of type REPEAT stands for others: its payload is a count of two bytes and frames, which come so many times.
With a flag of 1, the numbers of their streams grow by 2 each time.
"""

from __future__ import annotations

from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
REPEAT = 0xEE
END_STREAM, END_HEADERS, PADDED, PRIORITIZED, ACK = 1, 4, 8, 0x20, 1
MOST_BYTES = 1400 << 10  # of an input with its repetitions

# The flags of an input.
RAW = 1  # it has a preface of its own, or none
POOR = 2  # the budget is small
SCARCE = 4  # every fourth allocation fails
HALF = 8  # the connection ends when half of the bytes have come
TAKES_NONE = 16  # the client takes nothing before the end
LATE = 32  # what has not been answered is answered at the end

# A unary method, and one whose client sends a stream of messages.
UNARY, STREAM = "/t/U", "/t/S"


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """Returns one frame."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def repeat(count: int, frames: bytes, streams_grow: bool = False) -> bytes:
    """Returns a frame that stands for `count` times these frames."""
    return frame(REPEAT, int(streams_grow), 0, count.to_bytes(2, "big") + frames)


def integer(number: int, bits: int, head: int = 0) -> bytes:
    """Returns an integer of HPACK with a prefix of so many bits."""
    most = (1 << bits) - 1
    if number < most:
        return bytes([head | number])
    coded, number = bytearray([head | most]), number - most
    while number >= 128:
        coded.append(number % 128 + 128)
        number //= 128
    return bytes([*coded, number])


def field(name: str | bytes, value: str | bytes, head: int = 0) -> bytes:
    """Returns a field of HPACK, a literal. With a `head` of 0x40 it goes into the table."""
    texts = [text.encode() if isinstance(text, str) else text for text in (name, value)]
    return bytes([head]) + b"".join(integer(len(text), 7) + text for text in texts)


def request(path: str = UNARY, *more: bytes, method: str = "POST", content_type: str = "application/grpc") -> bytes:
    """Returns the fields of a call."""
    fields = {":method": method, ":scheme": "http", ":path": path, ":authority": "a", "te": "trailers"}
    if content_type:
        fields["content-type"] = content_type
    return b"".join(field(*pair) for pair in fields.items()) + b"".join(more)


def headers(stream: int, block: bytes, flags: int = END_HEADERS) -> bytes:
    """Returns a HEADERS frame."""
    return frame(HEADERS, flags, stream, block)


def message(text: bytes, flag: int = 0, size: int | None = None) -> bytes:
    """Returns a message of gRPC, which may lie about its size."""
    return bytes([flag]) + (len(text) if size is None else size).to_bytes(4, "big") + text


def data(stream: int, payload: bytes = b"", end: bool = False) -> bytes:
    """Returns a DATA frame."""
    return frame(DATA, int(end), stream, payload)


def padded(kind: int, stream: int, payload: bytes, flags: int, size: int) -> bytes:
    """Returns a frame with padding."""
    return frame(kind, flags | PADDED, stream, bytes([size]) + payload + bytes(size))


def settings(*pairs: tuple[int, int]) -> bytes:
    """Returns a SETTINGS frame."""
    payload = b"".join(name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in pairs)
    return frame(SETTINGS, payload=payload)


def window(stream: int, size: int) -> bytes:
    """Returns a WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, stream=stream, payload=size.to_bytes(4, "big"))


def reset(stream: int, code: int = 8) -> bytes:
    """Returns a RST_STREAM frame."""
    return frame(RST_STREAM, stream=stream, payload=code.to_bytes(4, "big"))


def unary(stream: int, text: bytes = b"hello", *more: bytes) -> bytes:
    """Returns a whole unary call."""
    return headers(stream, request(UNARY, *more)) + data(stream, message(text), end=True)


def streaming(stream: int, *texts: bytes, end: bool = True) -> bytes:
    """Returns a call with a stream of messages."""
    messages = b"".join(data(stream, message(text)) for text in texts)
    return headers(stream, request(STREAM)) + messages + (data(stream, end=True) if end else b"")


def case(frames: bytes, flags: int = 0, cut: int = 0, script: bytes = b"") -> bytes:
    """Returns an input."""
    return bytes([flags, cut, len(script)]) + script + frames


def expanded(text: bytes) -> tuple[int, int, bytes, bytes]:
    """Returns the flags, the cut, the script and the bytes for the connection of an input, as the fuzzer reads it."""
    flags, cut, size = text[:3]
    script, rest = text[3 : 3 + size], text[3 + size :]
    found = bytearray()
    if not flags & RAW or rest.startswith(PREFACE):
        found += PREFACE
        rest = rest.removeprefix(PREFACE) if flags & RAW else rest

    def add(rest: bytes, later: int, repeats: bool) -> None:
        while rest and len(found) < MOST_BYTES:
            size = 9 + int.from_bytes(rest[:3], "big") if len(rest) >= 9 else len(rest)
            one, rest = rest[:size], rest[size:]
            if repeats and len(one) >= 11 and one[3] == REPEAT:
                for i in range(int.from_bytes(one[9:11], "big")):
                    add(one[11:], 2 * i * (one[4] & 1), False)
                continue
            if later and len(one) >= 9 and any(one[5:9]):
                stream = (int.from_bytes(one[5:9], "big") + later) % (1 << 32)
                one = one[:5] + stream.to_bytes(4, "big") + one[9:]
            found.extend(one)

    add(rest, 0, True)
    return flags, cut, script, bytes(found)


def cases() -> dict[str, bytes]:
    """Returns the inputs by their names."""
    start = settings() + frame(SETTINGS, ACK)
    large_windows = settings((4, (1 << 31) - 1), (5, 1 << 20)) + window(0, (1 << 30))
    # The fields of a call go into the table of HPACK once: 0x80 and an index name them afterwards, the last one first.
    pairs = [(":method", "POST"), (":scheme", "http"), (":path", STREAM), (":authority", "a")]
    pairs.append(("content-type", "application/grpc"))
    learn = b"".join(field(*pair, head=0x40) for pair in pairs)
    known = bytes([0x80 | 66, 0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62])
    long = bytes(range(256)) * 8
    block = request(UNARY, field("x-long", "v" * 700))
    several = b"".join(unary(stream, b"m" * stream) for stream in range(1, 40, 2))
    streams = b"".join(streaming(stream, b"", b"two", b"3" * 300) for stream in range(1, 12, 2))
    mixed = b"".join((unary if n % 3 else streaming)(2 * n + 1, bytes(40 * n)) for n in range(12))
    interleaved = headers(1, request(STREAM)) + headers(3, request(STREAM))
    for n in range(8):
        interleaved += data(1 + n % 2 * 2, message(bytes(n))[: 3 if n == 7 else None])
    return {
        "unary": case(start + unary(1)),
        "unary_bytewise": case(start + unary(1) + unary(3, b""), cut=1),
        "unary_calls_late": case(start + several, LATE, 90, bytes([3, 0x17, 4, 0x29, 9, 0x1A])),
        "unary_calls_echo": case(start + several, 0, 60, bytes([7, 0, 0])),
        "long_metadata": case(start + several, LATE, 90, bytes([0xFA, 0, 0xE4, 3, 0xF7, 7, 0xEA])),
        "unary_large_answers": case(start + several + repeat(20, window(0, 9000)), 0, 200, bytes([0x70, 0x21, 0x60])),
        "unary_never_answered": case(start + several, cut=50, script=bytes([6])),
        "unary_ended_by_half": case(start + several, HALF, 70, bytes([3, 1, 0x51])),
        "stream": case(start + streaming(1, b"one", b"", b"three" * 9)),
        "streams_all_actions": case(start + streams, 0, 40, bytes([*range(0, 256, 11), 1, 3, 13, 10, 12, 9])),
        "streams_kept": case(start + streams + window(0, 1 << 20), LATE, 30, bytes([1, 0x1B, 1, 9, 2, 0x3A])),
        "streams_interleaved": case(start + interleaved, cut=17, script=bytes([0, 3, 2, 0x43, 10])),
        "streams_answered_early": case(start + streaming(1, b"a" * 50, b"b" * 900), cut=90, script=bytes([2, 12])),
        "mixed_takes_none": case(start + mixed, TAKES_NONE | LATE, 45, bytes([0, 0x2A, 3, 0x33, 1])),
        "mixed_poor": case(start + mixed + streaming(41, bytes(5000)), POOR, 100, bytes([0x36, 6, *[0] * 60, 0xC6])),
        "mixed_scarce": case(large_windows + mixed + streams, SCARCE, 120, bytes([0x51, 0x2A, 3])),
        "mixed_go_away": case(start + mixed + frame(PING, ACK, payload=b"drain\0\0\0"), 0, 200, bytes([5, 0, 0x85])),
        "large_message": case(
            start + headers(1, request(STREAM)) + data(1, message(long, size=600 * len(long)))
            + repeat(598, data(1, long)) + data(1, long, end=True), cut=255, script=bytes([0, 0, 4])),
        "large_message_scarce": case(
            start + repeat(3, headers(1, request()) + data(1, message(long, size=600 * len(long))), True)
            + repeat(530, data(1, long)) + repeat(40, data(3, long)), SCARCE),
        "large_message_ended": case(
            settings((4, 0)) + frame(SETTINGS, ACK) + headers(1, request(STREAM))
            + data(1, message(long, size=600 * len(long))) + repeat(530, data(1, long)), script=bytes([0, 12])),
        "compressed": case(
            start + headers(1, request(UNARY, field("grpc-encoding", "gzip"), field("grpc-accept-encoding", "gzip")))
            + data(1, message(b"\x1f\x8b", 1), end=True), script=bytes([7])),
        "message_faults": case(
            start
            + headers(1, request()) + data(1, message(b"", size=1 << 31), end=True)  # too large
            + headers(3, request()) + data(3, message(b"a") + message(b"b"), end=True)  # two in a unary call
            + headers(5, request()) + data(5, message(b"abc", size=9), end=True)  # truncated
            + headers(7, request()) + data(7, b"\0\0", end=True)
            + headers(9, request()) + data(9, message(b"", 2), end=True)  # a flag that there is not
            + headers(11, request(), END_HEADERS | END_STREAM)  # none
            + headers(13, request(STREAM)) + data(13, message(b"a") + message(b"b", 7)), cut=33),
        "head_faults": case(
            start + headers(1, request("/t/None"), END_HEADERS | END_STREAM)
            + unary(3, b"", field("grpc-timeout", "1x")) + unary(5, b"", field("grpc-timeout", "-1S"))
            + unary(7, b"", field("grpc-timeout", "99999999H")) + b"".join(
                unary(21 + 2 * n, b"", field("grpc-timeout", "12" + unit)) for n, unit in enumerate("MSmun"))
            + unary(31, b"", field("Upper", "x")) + unary(33, b"", field(":late", "x")) + unary(35, b"", field("", ""))
            + unary(37, b"", field("bad", "a\nb")) + headers(39, field(":path", "/"))),
        "not_grpc": case(
            start + headers(1, request(method="GET"), END_HEADERS | END_STREAM)
            + headers(3, request(content_type="text/html")) + data(3, b"<html>") + headers(5, request(content_type=""))
            + headers(7, request(method="CONNECT")) + reset(5), cut=30, script=bytes([0x11, 2, 3])),
        "not_grpc_scarce": case(
            start + repeat(20, headers(1, request(method="GET"), END_HEADERS | END_STREAM), True), SCARCE),
        "trailers": case(
            start + headers(1, request()) + data(1, message(b"t"))
            + headers(1, field("x-last", "1"), END_HEADERS | END_STREAM)
            + headers(3, request(STREAM)) + headers(3, field("x", "1" * 3000), END_HEADERS | END_STREAM)
            + headers(5, request()) + headers(5, field("x", "1"))),
        "headers_continued": case(
            start + headers(1, block[:20], 0) + frame(CONTINUATION, 0, 1, block[20:300])
            + frame(CONTINUATION, END_HEADERS, 1, block[300:]) + data(1, message(b"c"), end=True)
            + headers(3, block[:5], 0) + frame(PING, payload=bytes(8)), cut=13),
        "headers_too_many": case(
            start + unary(1, b"", *(field(f"x-{n}", "v" * 30) for n in range(40)))
            + unary(3, b"", field("x", "v" * 2100)) + unary(5, b"", *[field("x", "v" * 999)] * 6) + unary(7)),
        "headers_long": case(
            start + headers(1, request(UNARY), 0) + frame(CONTINUATION, 0, 1, b"\x40\x01x" + integer(70 << 10, 7))
            + repeat(35, frame(CONTINUATION, 0, 1, long)) + frame(CONTINUATION, END_HEADERS, 1)
            + data(1, message(b"l"), end=True) + unary(3, b"", bytes([0x80 | 62])), cut=251),
        "headers_long_packed": case(
            start + padded(HEADERS, 1, bytes(4) + b"\x10" + request(), PRIORITIZED, 200)
            + frame(CONTINUATION, 0, 1, b"\x00" + integer(80 << 10, 7, 0x80))
            + repeat(40, frame(CONTINUATION, 0, 1, long)) + frame(CONTINUATION, 0, 1, b"\x01v")
            + frame(CONTINUATION, END_HEADERS, 1, field("x", "v" * 300)) + data(1, message(b"l"), end=True)
            + headers(3, request(STREAM)) + headers(3, b"\x00\x01x" + integer(66 << 10, 7), END_STREAM)
            + repeat(33, frame(CONTINUATION, 0, 3, long)) + frame(CONTINUATION, END_HEADERS, 3)),
        "headers_swept": case(start + headers(1, request(STREAM)), TAKES_NONE, 45, bytes([0x13])),
        "headers_continued_flood": case(start + headers(1, block, 0) + repeat(900, frame(CONTINUATION, 0, 1, b""))),
        "headers_bomb": case(
            start + headers(1, request(UNARY, field("x", "v" * 1900, head=0x40), bytes([0x80 | 62]) * 900))
            + unary(3) + headers(5, b"\xff\xff\xff\xff\xff\xff"), cut=200),
        "padded": case(
            start + padded(HEADERS, 1, request(STREAM), END_HEADERS, 30) + padded(DATA, 1, message(b"p"), 0, 255)
            + padded(DATA, 1, b"", 0, 0) + padded(DATA, 1, message(b""), END_STREAM, 9)
            + frame(DATA, PADDED, 1, b"\xff") + headers(3, bytes(4) + b"\x10" + request(), END_HEADERS | PRIORITIZED),
            cut=50),
        "rapid_reset": case(
            start + headers(1, learn) + reset(1) + repeat(60, headers(3, known) + reset(3), True)
            + repeat(40, unary(201) + reset(201), True) + unary(401), cut=0),
        "rapid_reset_flood": case(
            start + headers(1, learn) + reset(1) + repeat(21000, headers(3, known) + reset(3), True), cut=255),
        "too_many_calls": case(
            settings() + repeat(30, headers(1, request(STREAM)), True) + frame(SETTINGS, ACK)
            + headers(101, request(STREAM)), LATE, 255, bytes([1, 0, 2])),
        "too_many_pings": case(start + repeat(20500, frame(PING, payload=b"12345678"))),
        "too_many_settings": case(start + repeat(1500, settings((3, 5))), TAKES_NONE, 255),
        "too_many_empty_data": case(start + headers(1, request(STREAM)) + repeat(20500, data(1))),
        "windows": case(
            settings((4, 0), (5, 16384)) + unary(1) + streaming(3, b"abc") + repeat(9, window(1, 7)) + window(3, 0)
            + unary(5) + window(5, (1 << 31) - 1) + settings((4, 100), (1, 0)) + settings((4, 10), (1, 1 << 20))
            + unary(7) + window(0, 100) + window(0, (1 << 31) - 1), cut=60, script=bytes([0x30, 0x12, 0])),
        "windows_closed": case(
            settings((4, 0)) + streaming(1, b"abc", end=False) + unary(3) + headers(5, request(method="GET")),
            cut=200, script=bytes([0, 0, 12])),
        "sweeps": case(
            settings((4, 20)) + headers(1, request()) + data(1, b"\0\0") + streaming(3, b"abc", end=False)
            + data(3, b"\0\0\0") + unary(5) + repeat(30, frame(PING, payload=bytes(8))),
            cut=17, script=bytes([0x30, 0x93])),
        "sweeps_between_outputs": case(
            settings((4, 1 << 20)) + window(0, 1 << 20) + unary(1) + unary(3) + repeat(300, frame(0x42)), cut=200,
            script=bytes([0x60, 2, 0x60, 2, *[1] * 8, 0x4E, 0x4E, *[0] * 9])),
        "other_frames": case(
            start + frame(PRIORITY, 0, 1, bytes([0, 0, 0, 3, 9])) + unary(1) + frame(0x42, 7, 1, b"unknown")
            + frame(0x42, 0, 0, b"") + frame(GOAWAY, payload=bytes(8) + b"bye") + unary(3) + window(9, 1), cut=60),
        "wrong_streams": case(
            start + unary(5) + unary(3) + data(1, b"x") + headers(2, request()) + frame(PUSH_PROMISE, 4, 5, bytes(4))),
        "garbage": case(PREFACE[:20] + b"\0" * 30 + bytes(range(256)), RAW, 7),
    }  # fmt: skip


def main() -> None:
    """Writes the inputs."""
    CORPUS.mkdir(exist_ok=True)
    made = cases()
    for path in CORPUS.iterdir():
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (CORPUS / name).write_bytes(text)


if __name__ == "__main__":
    main()
