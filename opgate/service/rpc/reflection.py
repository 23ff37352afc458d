"""Server reflection, v1 and v1alpha, whose messages are the same: https://grpc.io/docs/guides/reflection/."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Any

from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from opgate.service.rpc.server import Call, Code, Method, Received, RpcError, Stream

SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
_MOST_BYTES = 1 << 16  # of a message
PATHS = tuple(f"/{service}/ServerReflectionInfo" for service in SERVICES)


def methods(services: Iterable[str]) -> dict[str, Method]:
    """Returns the methods that describe these services and themselves. Their clients send streams of messages."""
    names = (*services, *SERVICES[1:])
    servicer: Any = None

    async def answer(call: Call, messages: AsyncIterator[Received]) -> AsyncGenerator[bytes, None]:
        async def requests() -> AsyncIterator[ServerReflectionRequest]:
            async for message in messages:
                try:
                    yield ServerReflectionRequest.FromString(message)
                except DecodeError:
                    raise RpcError(Code.INVALID_ARGUMENT, "the message is not a ServerReflectionRequest") from None

        nonlocal servicer
        if servicer is None:
            servicer = await asyncio.to_thread(_servicer, names)
        async for response in servicer.ServerReflectionInfo(requests(), None):
            yield response.SerializeToString()

    return dict.fromkeys(PATHS, Stream(answer, max_bytes=_MOST_BYTES))


def _servicer(services: Iterable[str]) -> Any:
    """Returns what answers. It needs the gRPC library, which nothing else of a gateway without Triton does."""
    from grpc_reflection.v1alpha import reflection

    return reflection.aio.ReflectionServicer(services)
