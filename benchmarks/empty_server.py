"""A server that reads each request and answers it with the same bytes: what the network and the event loop cost alone.

python benchmarks/empty_server.py PORT
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Connection(asyncio.BufferedProtocol):
    """Counts the bytes of one request after the other. All requests have the length of the first."""

    def __init__(self) -> None:
        self._buffer = bytearray(1 << 20)
        self._size = self._filled = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if not self._size:
            end = self._buffer.find(b"\r\n\r\n", 0, self._filled)
            at = self._buffer.lower().find(b"\r\ncontent-length: ") + 18
            if end < 0:
                return
            self._size = end + 4 + int(self._buffer[at : self._buffer.index(b"\r\n", at)])
        if self._filled >= self._size:
            self._filled = 0
            self._transport.write(ANSWER)  # type: ignore[attr-defined]


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
