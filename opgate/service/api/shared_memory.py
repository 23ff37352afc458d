"""The routes and the RPCs of Triton's shared memory extensions. Only system shared memory can be registered."""

from __future__ import annotations

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
from opgate.service.shared_memory import Regions
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

    async def status(self, request: Request) -> Response:
        """Answers with the registered regions, or with one of them."""
        return answer(
            [
                {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}
                for region in self._regions().status(_name(request))
            ]
        )

    async def register(self, request: Request) -> Response:
        """Registers a region."""
        self._regions()
        refuse_pages(self._gateway, request, _GROUP)
        body = await read_body(self._gateway, request, _MAX_BODY_BYTES)
        message = parse_object(bytes(body.unpacked()))
        key = message.get("key")
        if not isinstance(key, str):
            raise invalid(f"key: expected the name of shared memory, got {_kind(key)}")
        numbers = _number(message, "offset", 0), _number(message, "byte_size", None)
        await self._gateway.all_processes.run("register", _name(request), key, *numbers)
        return Response(status_code=200)

    async def unregister(self, request: Request) -> Response:
        """Unregisters a region, or all of them."""
        self._regions()
        refuse_pages(self._gateway, request, _GROUP)
        await read_body(self._gateway, request, _MAX_BODY_BYTES)
        await self._gateway.all_processes.run("unregister", _name(request))
        return Response(status_code=200)

    async def cuda_status(self, request: Request) -> Response:
        """Answers that no region of CUDA is registered."""
        self._regions()
        if name := _name(request):
            raise _no_cuda_region(name)
        return answer([])

    async def register_cuda(self, request: Request) -> Response:
        """Answers that regions of CUDA can't be registered."""
        raise ServingError(Kind.UNSUPPORTED, "CUDA shared memory is not supported by this server")

    async def unregister_cuda(self, request: Request) -> Response:
        """Does nothing, because no region of CUDA is registered. Clients do this at their start."""
        self._regions()
        await read_body(self._gateway, request, _MAX_BODY_BYTES)
        return Response(status_code=200)


class SharedMemoryCalls:
    """The RPCs, by their names. Each returns the response to a message, or raises ServingError.

    CudaSharedMemoryRegister is missing, so that it is not supported.
    """

    def __init__(self, all_processes: AllProcesses, regions: Regions) -> None:
        self._all_processes = all_processes
        self._regions = regions

    def SystemSharedMemoryStatus(self, asked: Any) -> Any:
        """Returns the registered regions, or one of them."""
        response = service_pb2.SystemSharedMemoryStatusResponse()
        for region in self._regions.status(asked.name):
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
        """Returns that no region of CUDA is registered."""
        if asked.name:
            raise _no_cuda_region(asked.name)
        return service_pb2.CudaSharedMemoryStatusResponse()

    def CudaSharedMemoryUnregister(self, asked: Any) -> Any:
        """Does nothing, because no region of CUDA is registered. Clients do this at their start."""
        return service_pb2.CudaSharedMemoryUnregisterResponse()


def routes(gateway: Gateway) -> Iterator[Route]:
    """Yields the routes of one gateway."""
    endpoints = _Routes(gateway)
    for prefix, which in (("", "all regions"), ("/region/{region}", "a region")):
        for kind, status, register, unregister in (
            ("system", endpoints.status, endpoints.register, endpoints.unregister),
            ("cuda", endpoints.cuda_status, endpoints.register_cuda, endpoints.unregister_cuda),
        ):
            path, tag = f"/v2/{kind}sharedmemory{prefix}", f"shared memory, {kind}"
            # Regions of CUDA can't be registered, and a region needs a name.
            described = call("Register a region", tag, request="Region") if prefix and kind == "system" else None
            yield Route("GET", f"{path}/status", status, _GROUP, call(f"State of {which}", tag, "Regions"))
            yield Route("POST", f"{path}/register", register, _GROUP, described)
            yield Route("POST", f"{path}/unregister", unregister, _GROUP, call(f"Unregister {which}", tag))


def _no_cuda_region(name: str) -> ServingError:
    return ServingError(Kind.NOT_FOUND, f"there is no CUDA shared memory region '{name[:256]}'")


def _name(request: Request) -> str:
    name: str = request.path_params.get("region", "")
    return name


def _number(message: dict[str, Any], key: str, default: int | None) -> int:
    value = message.get(key, default)
    if type(value) is not int:
        raise invalid(f"{key}: expected a number of bytes, got {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    return "nothing" if value is None else repr(value)[:40]
