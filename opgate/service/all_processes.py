"""Operations that run in every gateway process: loads, regions of shared memory, settings, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from logging import Handler
from typing import Any, Protocol

from opgate.service import cuda_memory
from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.op_times import OpTimes
from opgate.service.repository.catalog import Catalog
from opgate.service.repository.control import Agree, ModelControl, alone
from opgate.service.repository.overrides import Override, read_override
from opgate.service.shared_memory import CudaRegion, Regions, SystemRegion
from opgate.service.telemetry.logs import LogSettings
from opgate.service.telemetry.statistics_message import model_statistics
from opgate.service.telemetry.triton_traces import Tracing


class View(Protocol):
    """What a process tells the console."""

    @property
    def log(self) -> Handler:
        """Gets the lines of the log."""

    def read(self, marks: Mapping[int, Any]) -> dict[str, Any]: ...

    def last_requests(self) -> dict[str, Any]: ...

    def is_watched(self) -> bool: ...

    def records_ops(self) -> bool: ...


class Gateway(Protocol):
    """What the operations need of a gateway process."""

    metrics: Callable[[], Awaitable[bytes]] | None
    view: View | None

    @property
    def catalog(self) -> Catalog: ...

    @property
    def control(self) -> ModelControl: ...

    @property
    def regions(self) -> Regions | None: ...

    @property
    def tracing(self) -> Tracing: ...

    def log_settings(self) -> LogSettings: ...

    async def check_ready(self, name: str, version: str = "") -> None: ...


class AllProcesses:
    """Runs operations in this gateway process. `Member` runs them in all, where there are several.

    An operation is a function of this module. Its arguments and its value can be pickled.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Loads a model in every process, with the parameters of a load request. Raises ServingError.

        The files among them are written once, and the processes get the path.
        """
        self._gateway.control.check_explicit()
        await self.run("load", name, await asyncio.to_thread(read_override, name, parameters))

    async def unload(self, name: str, dependents: bool) -> None:
        """Unloads a model in every process, with `dependents` those of its steps too. Raises ServingError."""
        await self.run("unload", name, dependents)

    async def is_ready(self, name: str, version: str) -> bool:
        """Returns whether a model can serve here."""
        try:
            await self._gateway.check_ready(name, version)
        except ServingError:
            return False
        return True

    async def run(self, operation: str, *arguments: Any) -> list[Any]:
        """Runs an operation in every process, in the same order everywhere. Returns what it returned in each.

        Raises ServingError if it failed in one.
        """
        return [await perform(self._gateway, operation, arguments)]

    def past(self) -> bytes:
        """Returns the counters of processes that have died, as metrics."""
        return b""


async def perform(gateway: Gateway, operation: str, arguments: tuple[Any, ...], agree: Agree = alone) -> Any:
    """Runs an operation in this process and returns its value. Raises ServingError."""
    if operation == "load":
        name, override = arguments
        return await load(gateway, name, override, agree)
    return await OPERATIONS[operation](gateway, *arguments)


async def load(gateway: Gateway, name: str, override: Override, agree: Agree) -> list[str]:
    """Loads a model. Returns the names of all models that it took."""
    return await gateway.control.load(name, override, agree)


async def unload(gateway: Gateway, name: str, dependents: bool) -> list[str]:
    """Unloads a model, with `dependents` those of its steps too. Returns their names."""
    return await gateway.control.unload(name, dependents)


async def register(gateway: Gateway, name: str, key: str, offset: int, byte_size: int) -> None:
    """Registers a region of system shared memory."""
    async with _regions(gateway) as regions:
        regions.register(name, key, offset, byte_size)


async def register_cuda(gateway: Gateway, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
    """Registers a region of CUDA shared memory."""
    async with _regions(gateway) as regions:
        await asyncio.to_thread(cuda_memory.gpu, device_id)  # the first time takes up to seconds
        regions.register_cuda(name, handle, device_id, byte_size)


async def unregister(gateway: Gateway, name: str) -> None:
    """Unregisters a region of system shared memory, or all of them if the name is empty."""
    async with _regions(gateway) as regions:
        regions.unregister(name, SystemRegion)


async def unregister_cuda(gateway: Gateway, name: str) -> None:
    """Unregisters a region of CUDA shared memory, or all of them if the name is empty."""
    async with _regions(gateway) as regions:
        regions.unregister(name, CudaRegion)


async def trace(gateway: Gateway, model: str, changes: Mapping[str, Any]) -> None:
    """Changes the trace settings of a model, "" for those of all models."""
    gateway.tracing.update(model, changes)


async def log(gateway: Gateway, changes: Mapping[str, Any]) -> None:
    """Changes the settings of the log."""
    gateway.log_settings().update(changes)


async def metrics(gateway: Gateway) -> bytes:
    """Returns the metrics of a process."""
    return b"" if gateway.metrics is None else await gateway.metrics()


async def statistics(gateway: Gateway, name: str, version: str) -> list[bytes]:
    """Returns the messages of the statistics of a model, of all its versions or of all models. A model that doesn't
    serve in this process has none."""
    messages = []
    for model in list(gateway.catalog.models()):
        if name in ("", model.spec.name) and version in ("", model.spec.version):
            messages.append(model_statistics(model).SerializeToString())
            if len(messages) % _A_TURN == 0:
                await asyncio.sleep(0)
    return messages


async def look(gateway: Gateway, marks: Mapping[int, Any]) -> dict[str, Any]:
    """Returns what is new in a process for its console, since the marks by process."""
    return _view(gateway).read(marks)


async def last_requests(gateway: Gateway) -> dict[str, Any]:
    """Returns the last requests of a process, and the slowest of each model."""
    return _view(gateway).last_requests()


async def op_times(gateway: Gateway, name: str, version: str) -> OpTimes:
    """Returns how long the ops of a version of a model took. A model that doesn't serve in this process has none."""
    try:
        model = gateway.catalog.find(name, version)
    except ServingError:
        return {}
    return await asyncio.to_thread(model.statistics.op_times.read)


# Models of which the statistics are read before other requests have their turn.
_A_TURN = 16

OPERATIONS = {
    function.__name__: function
    for function in (
        unload,
        register,
        register_cuda,
        unregister,
        unregister_cuda,
        trace,
        log,
        metrics,
        statistics,
        look,
        last_requests,
        op_times,
    )
}
# Operations that may take very long.
CHANGES_MODELS = frozenset(("load", "unload"))
# Operations that only read. They don't wait for ever.
READS = frozenset(("metrics", "statistics", "look", "last_requests", "op_times"))


def _view(gateway: Gateway) -> View:
    if gateway.view is None:
        raise ServingError(Kind.UNSUPPORTED, "the console is turned off on this server")
    return gateway.view


@asynccontextmanager
async def _regions(gateway: Gateway) -> AsyncIterator[Regions]:
    """Gives the regions of shared memory to one operation after the other, in the order in which clients ask."""
    if gateway.regions is None:
        raise ServingError(Kind.UNSUPPORTED, "shared memory is turned off on this server")
    async with gateway.regions.order:
        yield gateway.regions
