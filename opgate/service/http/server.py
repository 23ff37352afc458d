"""uvicorn's server, with connections that know the gateway, and with a stop in which no request is lost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from opgate.service.http.asgi import Application
from opgate.service.http.connection import Shared
from opgate.service.http.service import Service


class Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, and with a stop in which no request is lost."""

    def __init__(self, application: Application, service: Service, **options: Any) -> None:
        """`options` are more of `uvicorn.Config`, such as those of TLS."""
        config = uvicorn.Config(
            application,
            http=Shared(service).connect,  # type: ignore[arg-type]  # it is only called
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,  # the journal writes it
            server_header=False,
            headers=[("x-content-type-options", "nosniff")],  # a browser must not guess what an answer is
            proxy_headers=False,  # a header must not make a client one of this machine
            **options,
        )
        super().__init__(config)
        self._service = service
        self.lost = 0  # clients that did not get the answer that they waited for

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals to whoever runs the server."""
        yield

    async def listen(self, listener: socket.socket) -> asyncio.Task[None]:
        """Starts to serve. Returns what serves until the stop. Raises OSError, ValueError if it can't listen."""
        serving = asyncio.create_task(self.serve(sockets=[listener]))
        while not self.started and not serving.done():  # noqa: ASYNC110  # uvicorn has no event for its start
            await asyncio.sleep(0.005)
        if serving.done():
            await serving  # it raises what was wrong
            raise OSError("the HTTP server ended before it listened")
        return serving

    async def listen_too(self, listener: socket.socket) -> asyncio.AbstractServer:
        """Takes the connections of one more socket too. They are those of this server in everything else."""
        others = self.servers
        await self.startup(sockets=[listener])
        (server,) = self.servers
        self.servers = [*others, server]
        return server

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answers what comes on open connections for a moment, stops to listen, and waits for the last answers."""
        connections: set[Any] = self.server_state.connections
        await self._wait_for_connections(self._service.grace_ends)
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in list(connections):
            connection.close_idle()
        await self._wait_for_connections(self._service.stop_ends)
        self.lost = sum(connection.is_owed() for connection in connections)
        for connection in list(connections):
            connection.transport.abort()

    async def _wait_for_connections(self, end: float) -> None:
        loop = asyncio.get_running_loop()
        while self.server_state.connections and loop.time() < end:  # noqa: ASYNC110  # uvicorn has no event for it
            await asyncio.sleep(0.01)
