"""The routes and the RPCs of Triton's shared memory extensions: of system shared memory, and of CUDA's."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from fastapi import Request, Response

from opgate.service.all_processes import AllProcesses
from opgate.service.api.kserve_http import answer, read_body, refuse_pages
from opgate.service.api.openapi import call
from opgate.service.api.routes import Route
from opgate.service.core.errors import Kind, ServingError, invalid
from opgate.service.core.triton_messages import service_pb2
from opgate.service.gateway import Gateway
from opgate.service.shared_memory import CudaRegion, Regions, SystemRegion
from opgate.service.wire.json_tensors import parse_object

_GROUP = "shared-memory"
# Bytes of the body of a request.
_MAX_BODY_BYTES = 65536


class _Routes:
    """The endpoints of one gateway. Each returns the response to a request. An empty name stands for all regions."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def _regions(self) -> Regions:
        regions = self._gateway.regions
        if regions is None:
            raise ServingError(Kind.UNSUPPORTED, "shared memory is turned off on this server")
        return regions

    async def system_status(self, request: Request) -> Response:
        """Answers with the registered regions of system shared memory, or with one of them."""
        return answer(
            [
                {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}
                for region in self._regions().status(_name(request), SystemRegion)
            ]
        )

    async def cuda_status(self, request: Request) -> Response:
        """Answers with the registered regions of CUDA shared memory, or with one of them."""
        return answer(
            [
                {"name": region.name, "device_id": region.device_id, "byte_size": region.byte_size}
                for region in self._regions().status(_name(request), CudaRegion)
            ]
        )

    async def register_system(self, request: Request) -> Response:
        """Registers a region of system shared memory."""
        message = await self._body(request)
        key = message.get("key")
        if not isinstance(key, str):
            raise invalid(f"key: expected the name of shared memory, got {_kind(key)}")
        numbers = _number(message, "offset", 0), _number(message, "byte_size", None)
        await self._gateway.all_processes.run("register", _name(request), key, *numbers)
        return Response(status_code=200)

    async def register_cuda(self, request: Request) -> Response:
        """Registers a region of CUDA shared memory."""
        message = await self._body(request)
        numbers = _number(message, "device_id", None, "the number of a GPU"), _number(message, "byte_size", None)
        await self._gateway.all_processes.run("register_cuda", _name(request), _handle(message), *numbers)
        return Response(status_code=200)

    async def unregister_system(self, request: Request) -> Response:
        """Unregisters a region of system shared memory, or all of them."""
        return await self._unregister(request, "unregister")

    async def unregister_cuda(self, request: Request) -> Response:
        """Unregisters a region of CUDA shared memory, or all of them."""
        return await self._unregister(request, "unregister_cuda")

    async def _body(self, request: Request) -> dict[str, Any]:
        self._regions()
        refuse_pages(self._gateway, request, _GROUP)
        body = await read_body(self._gateway, request, _MAX_BODY_BYTES)
        return parse_object(bytes(body.unpacked()))

    async def _unregister(self, request: Request, operation: str) -> Response:
        self._regions()
        refuse_pages(self._gateway, request, _GROUP)
        await read_body(self._gateway, request, _MAX_BODY_BYTES)
        await self._gateway.all_processes.run(operation, _name(request))
        return Response(status_code=200)


class SharedMemoryCalls:
    """The RPCs, by their names. Each returns the response to a message, or raises ServingError."""

    def __init__(self, all_processes: AllProcesses, regions: Regions) -> None:
        self._all_processes = all_processes
        self._regions = regions

    def SystemSharedMemoryStatus(self, asked: Any) -> Any:
        """Returns the registered regions, or one of them."""
        response = service_pb2.SystemSharedMemoryStatusResponse()
        for region in self._regions.status(asked.name, SystemRegion):
            status = response.regions[region.name]
            status.name, status.key = region.name, region.key
            status.offset, status.byte_size = region.offset, region.byte_size
        return response

    async def SystemSharedMemoryRegister(self, asked: Any) -> Any:
        """Registers a region."""
        await self._all_processes.run("register", asked.name, asked.key, asked.offset, asked.byte_size)
        return service_pb2.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(self, asked: Any) -> Any:
        """Unregisters a region, or all of them."""
        await self._all_processes.run("unregister", asked.name)
        return service_pb2.SystemSharedMemoryUnregisterResponse()

    def CudaSharedMemoryStatus(self, asked: Any) -> Any:
        """Returns the registered regions, or one of them."""
        response = service_pb2.CudaSharedMemoryStatusResponse()
        for region in self._regions.status(asked.name, CudaRegion):
            status = response.regions[region.name]
            status.name, status.device_id, status.byte_size = region.name, region.device_id, region.byte_size
        return response

    async def CudaSharedMemoryRegister(self, asked: Any) -> Any:
        """Registers a region."""
        place = asked.raw_handle, asked.device_id, asked.byte_size
        await self._all_processes.run("register_cuda", asked.name, *place)
        return service_pb2.CudaSharedMemoryRegisterResponse()

    async def CudaSharedMemoryUnregister(self, asked: Any) -> Any:
        """Unregisters a region, or all of them."""
        await self._all_processes.run("unregister_cuda", asked.name)
        return service_pb2.CudaSharedMemoryUnregisterResponse()


def routes(gateway: Gateway) -> Iterator[Route]:
    """Yields the routes of one gateway."""
    endpoints = _Routes(gateway)
    for prefix, which in (("", "all regions"), ("/region/{region}", "a region")):
        for kind, status, register, unregister in (
            ("system", endpoints.system_status, endpoints.register_system, endpoints.unregister_system),
            ("cuda", endpoints.cuda_status, endpoints.register_cuda, endpoints.unregister_cuda),
        ):
            path, tag = f"/v2/{kind}sharedmemory{prefix}", f"shared memory, {kind}"
            region = f"{kind.capitalize()}Region"
            described = call("Register a region", tag, request=region) if prefix else None  # a region needs a name
            yield Route("GET", f"{path}/status", status, _GROUP, call(f"State of {which}", tag, f"{region}s"))
            yield Route("POST", f"{path}/register", register, _GROUP, described)
            yield Route("POST", f"{path}/unregister", unregister, _GROUP, call(f"Unregister {which}", tag))


def _name(request: Request) -> str:
    name: str = request.path_params.get("region", "")
    return name


def _number(message: dict[str, Any], key: str, default: int | None, what: str = "a number of bytes") -> int:
    value = message.get(key, default)
    if type(value) is not int:
        raise invalid(f"{key}: expected {what}, got {_kind(value)}")
    return value


def _handle(message: dict[str, Any]) -> bytes:
    handle = message.get("raw_handle")
    text = handle.get("b64") if isinstance(handle, dict) else None
    try:
        return base64.b64decode(text, validate=True)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise invalid('raw_handle: expected {"b64": "..."} with the handle in base64') from None


def _kind(value: Any) -> str:
    return "nothing" if value is None else repr(value)[:40]
