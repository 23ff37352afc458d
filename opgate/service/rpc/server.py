"""An asyncio server for gRPC: handlers of unary calls and of streams, deadlines, cancellation, compression, drain."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from opgate.service.rpc.call import Call, Code, Message, Metadata, Received, RpcError
from opgate.service.rpc.connection import Budget
from opgate.service.rpc.methods import Method, Options, Stream, Unary
from opgate.service.rpc.protocol import Protocol

__all__ = [
    "Call",
    "Code",
    "Message",
    "Metadata",
    "Method",
    "Options",
    "Received",
    "RpcError",
    "Server",
    "Stream",
    "Unary",
    "tls",
]

# Bytes that are read at once.
_READ = 1 << 18
_BACKLOG = 2048
# Seconds in which a client must say that it has seen the end of TLS.
_TLS_GOODBYE = 1.0
# Seconds in which clients see that the server stops, before calls that they make all the same are refused.
_NOTICE = 1.0


# Bytes that a server may hold that has no other budget.
_HELD = 1 << 30


def tls(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """Returns the TLS of a server. With `client_ca` it takes only clients with a certificate of that authority.

    Raises OSError if a file can't be read or holds something else.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    context.set_alpn_protocols(["h2"])
    return context


class Server:
    """A gRPC server on the running event loop.

    `methods` maps paths such as "/package.Service/Method" to what handles them. `refused` is told of calls that were
    answered by the server itself: code, text, path and client. The path is "" where a connection ended because of its
    client.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        options: Options | None = None,
        refused: Callable[[Code, str, str, str], None] = lambda code, text, path, peer: None,
    ) -> None:
        self.options = options or Options()
        self.methods = list(methods.items())
        # The number of a method, and whether it is called before its message has come.
        self.numbers = {
            path: 2 * i + (isinstance(method, Stream) and method.client_streams)
            for i, (path, method) in enumerate(self.methods)
        }
        self.budget = self.options.budget or Budget(_HELD)
        self.share = max(self.budget.limit // 2, self.options.max_message_bytes)  # of one connection
        self.buffer = bytearray(_READ)
        self.view = memoryview(self.buffer)
        self.connections: set[Protocol] = set()
        self.refused = refused
        self.stopping = self.refuses = False  # whether it takes no new connections, and no new calls
        # Messages are packed and unpacked there, few at once because of their memory.
        self.threads = ThreadPoolExecutor(2, "rpc-packing")
        self._servers: list[asyncio.Server] = []
        self._closed: asyncio.Event | None = None

    async def start(self, listener: socket.socket) -> asyncio.Server:
        """Begins to accept connections. May be called for several sockets. Returns what closes this one."""
        loop = asyncio.get_running_loop()
        options = self.options
        server = await loop.create_server(
            lambda: Protocol(self),
            sock=listener,
            backlog=_BACKLOG,
            ssl=options.tls,
            ssl_handshake_timeout=None if options.tls is None else options.read_timeout,
            ssl_shutdown_timeout=None if options.tls is None else _TLS_GOODBYE,
        )
        self._servers.append(server)
        return server

    async def stop(self, seconds: float) -> int:
        """Stops to listen and to take new calls, and gives the calls under way `seconds` to end.

        Returns how many calls did not end in time.
        """
        for server in self._servers:
            server.close()
        self._closed = asyncio.Event()
        self.stopping = True
        notice = min(_NOTICE, seconds / 2)
        for last, most in ((False, notice), (True, seconds - notice)):
            self.refuses = last
            for connection in list(self.connections):
                connection.stop(last)
            await self._wait_for_connections(most)
        lost = 0
        for connection in list(self.connections):
            lost += connection.connection.calls
            if connection.transport is not None:
                connection.transport.abort()
        await self._wait_for_connections(0.1)  # asyncio tells them in a later turn
        self.threads.shutdown(wait=False)
        return lost

    async def _wait_for_connections(self, seconds: float) -> None:
        assert self._closed is not None
        if self.connections:
            try:
                await asyncio.wait_for(self._closed.wait(), seconds)
            except TimeoutError:
                return

    def connection_closed(self) -> None:
        """A connection has ended."""
        if self._closed is not None and not self.connections:
            self._closed.set()
