"""The service grpc.health.v1.Health: https://github.com/grpc/grpc/blob/master/doc/health-checking.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from google.protobuf.message import DecodeError
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from opgate.service.rpc.server import Call, Code, Method, RpcError, Stream, Unary

SERVICE = "grpc.health.v1.Health"
_MOST_BYTES = 1 << 16  # of a message


class Health:
    """The status of services. Clients ask for it or watch it."""

    def __init__(self) -> None:
        self._states: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._closed = False

    def set(self, service: str, serving: bool) -> None:
        """Sets the status of a service, "" for the whole server."""
        self._states[service] = HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """Sets the status of every service to not serving, and ends the calls that watch."""
        self._closed = True
        for service in list(self._states):
            self.set(service, False)

    def methods(self) -> dict[str, Method]:
        """Returns the methods for a server."""
        return {
            f"/{SERVICE}/Check": Unary(self._check, _MOST_BYTES),
            f"/{SERVICE}/Watch": Stream(self._watch, client_streams=False, max_bytes=_MOST_BYTES),
        }

    def _check(self, call: Call, message: bytes) -> None:
        service = _service(message)
        state = self._states.get(service)
        if state is None:
            call.fail(Code.NOT_FOUND, f"there is no service '{service[:200]}'")
        else:
            call.answer(HealthCheckResponse(status=state).SerializeToString())

    async def _watch(self, call: Call, messages: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        service = _service(await anext(messages))
        told = None
        while True:
            changed = self._changed
            state = self._states.get(service, HealthCheckResponse.SERVICE_UNKNOWN)
            if state != told:
                told = state
                yield HealthCheckResponse(status=state).SerializeToString()
            if self._closed:
                raise RpcError(Code.UNAVAILABLE, "the server stops")
            await changed.wait()


def _service(message: bytes) -> str:
    try:
        return str(HealthCheckRequest.FromString(message).service)
    except DecodeError:
        raise RpcError(Code.INVALID_ARGUMENT, "the message is not a HealthCheckRequest") from None
