"""The service grpc.health.v1.Health: https://github.com/grpc/grpc/blob/master/doc/health-checking.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection

from google.protobuf.message import DecodeError
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from opgate.service.rpc.server import Call, Code, Method, Received, RpcError, Stream, Unary

SERVICE = "grpc.health.v1.Health"
_MOST_BYTES = 1 << 16  # of a message
_BETWEEN_LOOKS = 1.0  # seconds


class Health:
    """Whether services serve. Clients ask for it or watch it."""

    def __init__(self, services: Collection[str], serving: Callable[[], bool]) -> None:
        """`serving` says it of all services, "" for the whole server, at the moment of each question."""
        self._services = services
        self._serving = serving
        self._told = False  # what those who watch have heard last
        self._watching = 0
        self._looking: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._closed = False

    def look(self) -> None:
        """Tells those who watch if something has changed. While there are any, this happens once a second by itself."""
        told = self._state()
        if told != self._told or self._closed:
            self._told = told
            self._changed.set()
            self._changed = asyncio.Event()
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self._watching and not self._closed:
            self._looking = asyncio.get_running_loop().call_later(_BETWEEN_LOOKS, self.look)

    def close(self) -> None:
        """Lets no service serve any more, and ends the calls that watch."""
        self._closed = True
        self.look()

    def _state(self) -> bool:
        return not self._closed and self._serving()

    def methods(self) -> dict[str, Method]:
        """Returns the methods for a server."""
        return {
            f"/{SERVICE}/Check": Unary(self._check, _MOST_BYTES),
            f"/{SERVICE}/Watch": Stream(self._watch, client_streams=False, max_bytes=_MOST_BYTES),
        }

    def _check(self, call: Call, message: Received) -> None:
        service = _service(message)
        if service not in self._services:
            call.fail(Code.NOT_FOUND, f"there is no service '{service[:200]}'")
        else:
            call.answer(_message(self._state()))

    async def _watch(self, call: Call, messages: AsyncIterator[Received]) -> AsyncGenerator[bytes, None]:
        service = _service(await anext(messages))
        if service not in self._services:
            yield HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN).SerializeToString()
        self._watching += 1
        try:
            self.look()
            told: bool | None = None
            while True:
                changed = self._changed
                if service in self._services and told != self._told:
                    told = self._told
                    yield _message(told)
                if self._closed:
                    raise RpcError(Code.UNAVAILABLE, "the server stops")
                await changed.wait()
        finally:
            self._watching -= 1


def _message(serving: bool) -> bytes:
    status = HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING
    return bytes(HealthCheckResponse(status=status).SerializeToString())


def _service(message: Received) -> str:
    try:
        return str(HealthCheckRequest.FromString(message).service)
    except DecodeError:
        raise RpcError(Code.INVALID_ARGUMENT, "the message is not a HealthCheckRequest") from None
