"""A client that sends any frames of HTTP/2, wise or not."""

from __future__ import annotations

import asyncio

import hpack
from hyperframe.frame import DataFrame, Frame, HeadersFrame, SettingsFrame

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = [(":method", "POST"), (":scheme", "http"), (":authority", "t"), ("content-type", "application/grpc"), ("te", "trailers"), ("user-agent", "raw")]  # fmt: skip


def headers(stream, method="Echo", flags=("END_HEADERS",), more=(), path=""):
    """A HEADERS frame that opens a call. It leaves the table of the compression as it is."""
    fields = [*HEAD, (":path", path or f"/test.Test/{method}"), *more]
    fields = sorted(fields, key=lambda field: not field[0].startswith(":"))
    block = b"".join(
        b"\x10" + bytes([len(name)]) + name.encode() + _length(len(value)) + value.encode() for name, value in fields
    )
    return HeadersFrame(stream, block, flags=flags)


def _length(size):
    if size < 127:
        return bytes([size])
    out = bytearray([127])
    size -= 127
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    return bytes([*out, size])


def message(stream, data, end=True, size=None):
    """A DATA frame with a message, which may say that it has another size."""
    length = len(data) if size is None else size
    return DataFrame(stream, b"\0" + length.to_bytes(4, "big") + data, flags=["END_STREAM"] if end else [])


class Raw:
    """One connection. It answers nothing by itself."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self._left = b""
        self._decoder = hpack.Decoder()
        self._answers = {}  # by stream: headers and trailers, data, whether it has ended

    @classmethod
    async def open(cls, server, settings=None, preface=True):
        raw = cls(*await asyncio.open_connection("127.0.0.1", server.port))
        if preface:
            raw.writer.write(PREFACE)
            raw.send(SettingsFrame(settings=settings or {}))
        return raw

    async def settle(self):
        """Waits for the server's settings and agrees to them. Only then its larger windows and frames are valid."""
        while not any(isinstance(frame, SettingsFrame) for frame in self._parsed()):
            self._left += await self.reader.read(1 << 16)
        self.send(SettingsFrame(flags=["ACK"]))

    def send(self, *frames):
        self.writer.write(b"".join(frame.serialize() for frame in frames))

    async def flood(self, data, times):
        """Sends the same bytes many times. Returns whether the server closed the connection meanwhile."""
        piece = data * max(1, 65536 // len(data))
        try:
            for _ in range(max(1, times * len(data) // len(piece))):
                self.writer.write(piece)
                await self.writer.drain()
        except ConnectionError:
            return True
        return self.writer.is_closing()

    async def frames(self, seconds=5.0):
        """The frames that come until the server closes the connection or the time is over."""
        found = []
        try:
            async with asyncio.timeout(seconds):
                while data := await self.reader.read(1 << 16):
                    self._left += data
                    found += self._parsed()
        except (TimeoutError, ConnectionError):
            pass
        return found

    async def answer(self, stream, seconds=5.0):
        """The headers and trailers of a stream's answer, and its data."""
        await self._read(lambda: self._answers.get(stream, [0, 0, False])[2], seconds)
        return tuple(self._answers[stream][:2])

    async def part(self, stream, size, seconds=5.0):
        """Waits for so many bytes of a stream's answer."""
        await self._read(lambda: len(self._answers.get(stream, [0, b""])[1]) >= size, seconds)

    async def _read(self, enough, seconds):
        async with asyncio.timeout(seconds):
            while not enough():
                got = await self.reader.read(1 << 16)
                assert got, "the server closed the connection"
                self._left += got
                self._parsed()

    def _parsed(self):
        found = []
        while len(self._left) >= 9:
            frame, length = Frame.parse_frame_header(memoryview(self._left[:9]))
            if len(self._left) < 9 + length:
                break
            frame.parse_body(memoryview(self._left[9 : 9 + length]))
            self._left = self._left[9 + length :]
            found.append(frame)
            answer = self._answers.setdefault(frame.stream_id, [{}, b"", False])
            if isinstance(frame, HeadersFrame):
                answer[0].update(self._decoder.decode(frame.data))
            elif isinstance(frame, DataFrame):
                answer[1] += frame.data
            answer[2] = answer[2] or "END_STREAM" in frame.flags
        return found

    def close(self):
        self.writer.close()
