"""The state that HTTP, gRPC and /predict share: the catalog, the limits, and the number of requests under way."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeVar

from opgate.service.all_processes import AllProcesses, View
from opgate.service.client_limits import ClientLimits, read_limits
from opgate.service.core.errors import Kind, NotLoadedError, ServingError, detached, kind_of
from opgate.service.core.request import Array, Request, run
from opgate.service.core.tensors import SMALL
from opgate.service.cuda_memory import driver
from opgate.service.execution.engine_profile import Operator
from opgate.service.header_forwarding import read_pattern
from opgate.service.repository.catalog import Catalog
from opgate.service.repository.control import ModelControl
from opgate.service.repository.loader import LoadedModel, cores_of, limits_of
from opgate.service.repository.profiling import Profiler
from opgate.service.rpc.connection import Budget
from opgate.service.settings import Settings
from opgate.service.shared_memory import Regions
from opgate.service.telemetry import logs
from opgate.service.telemetry.journal import Journal
from opgate.service.telemetry.logs import LogSettings
from opgate.service.telemetry.otel_spans import Tracer
from opgate.service.telemetry.triton_traces import (
    TIMESTAMPS,
    TO_OPENTELEMETRY,
    TraceSettings,
    Tracing,
    read_trace_config,
)
from opgate.service.tokens import GRPC_PREFIX, Token, read_tokens
from opgate.service.wire.kserve_json import Decoder

if TYPE_CHECKING:
    from opgate.service.execution.triton.pool import TritonPool

logger = logging.getLogger("opgate.gateway")

T = TypeVar("T")

# Reading or writing a body that costs as much as this many bytes of JSON happens on a thread. It takes about a
# millisecond, in which the event loop would serve nobody else.
LONG_COST = 1 << 19

# The protocol extensions, each with the setting that it needs, "" for none.
_EXTENSIONS = {
    "logging": "",
    "trace": "",
    "binary_tensor_data": "",
    "classification": "",
    "model_configuration": "",
    "model_repository": "",
    "model_repository(unload_dependents)": "",
    "parameters": "",
    "schedule_policy": "",
    "sequence": "",
    "statistics": "",
    "system_shared_memory": "shared_memory",
    "cuda_shared_memory": "shared_memory",
}


@cache
def package_version() -> str:
    """Returns the version of the installed distribution, "0.0.0" if it is not installed."""
    try:
        return version("opgate")
    except PackageNotFoundError:
        return "0.0.0"


def extensions(settings: Settings) -> list[str]:
    """Returns the protocol extensions that a gateway with these settings announces."""
    names = [name for name, setting in _EXTENSIONS.items() if not setting or getattr(settings, setting)]
    return [name for name in names if name != "cuda_shared_memory" or driver() is not None]


def _regions(settings: Settings, budget: Budget) -> Regions | None:
    """Returns the registry of shared memory, None if clients may not use it."""
    return Regions(settings.max_shared_memory_regions, budget) if settings.shared_memory else None


def _triton_pool(settings: Settings) -> TritonPool | None:
    """Returns the Triton servers that run the models, None if this process does."""
    if settings.backend != "triton":
        return None
    from opgate.service.execution.triton.pool import TritonPool

    return TritonPool(settings.triton_url.split(","))


def _trace_settings(settings: Settings) -> TraceSettings:
    """Returns the trace settings at the start. With OpenTelemetry its variables say what is sampled."""
    if settings.tracing and not settings.trace_config:
        return TraceSettings(TIMESTAMPS, 1, mode=TO_OPENTELEMETRY)
    return read_trace_config(settings.trace_config)


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A model with the decoder that reads its requests."""

    model: LoadedModel
    decoder: Decoder

    def failed(self, error: Exception) -> None:
        """Counts a request that could not be read as a failure of the model."""
        self.model.statistics.failed(kind_of(error).value, 0)


class Reading:
    """A context in which a request for a model is read. An error inside counts as a failure of that model."""

    __slots__ = ("_served",)

    def __init__(self, served: Served) -> None:
        self._served = served

    def __enter__(self) -> Served:
        return self._served

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            self._served.failed(error)


class Gateway:
    """The gateway of a process. After the models are loaded, only the event loop's thread uses it.

    It is long, because every request of every protocol meets here what the process has.
    """

    def __init__(self, settings: Settings, log_settings: LogSettings | None = None) -> None:
        """`log_settings` are those of the process' log, if it has been configured."""
        self.settings = settings
        self.limits = limits_of(settings)
        self.budget = Budget(settings.max_held_bytes)  # of the bytes of requests and answers
        self.regions = _regions(settings, self.budget)
        self.triton = _triton_pool(settings)
        self.catalog = Catalog(settings, self.triton)
        self.control = ModelControl(settings, self.catalog)
        self.http_tokens = read_tokens(settings.http_restricted_api)
        self.grpc_tokens = read_tokens(settings.grpc_restricted_protocol, GRPC_PREFIX)
        self.forwarded = {
            "http": read_pattern(settings.http_header_forward_pattern),
            "grpc": read_pattern(settings.grpc_header_forward_pattern),
        }
        self.tracer = Tracer() if settings.tracing else None
        self.journal = Journal(settings.access_log)
        self.observed = False  # whether somebody traces requests or has the console open, so that `choose` matters
        self.tracing = Tracing(_trace_settings(settings), self.tracer, self._trace)
        self.tracing.tell()
        self._log_settings = log_settings
        self.all_processes = AllProcesses(self)
        limits = read_limits(settings.client_limit)
        self.client_limits = ClientLimits(limits) if limits else None
        self._profiler = Profiler(settings.run_timeout)
        self.deaths = 0  # of the gateway processes that had the place of this one
        self.metrics: Callable[[], Awaitable[bytes]] | None = None  # returns those of this process
        self.view: View | None = None  # what this process tells the console, if there is one
        self.connections: Collection[object] = ()  # the open connections of HTTP
        self.grpc_connections: Collection[object] = ()
        self.accepted = 0  # requests that began, all in all
        self.running = 0  # accepted requests that are not answered yet
        self.draining = False
        self.stopping = asyncio.Event()
        self.stopped_at = self.stop_at = 0.0  # when the stop began, and when it must end, by the event loop's clock
        self._bringing: set[asyncio.Task[None]] = set()
        self._drained: asyncio.Event | None = None
        self._served: dict[tuple[str, str], Served] = {}
        self.catalog.on_change(self._served.clear)
        self._threads = ThreadPoolExecutor(cores_of(settings), "opgate-work")

    def _trace(self, on: bool) -> None:
        self.journal.set_recorder(self.tracing if on else None)
        self.observed = True

    def log_settings(self) -> LogSettings:
        """Returns the settings of the process' log."""
        if self._log_settings is None:
            self._log_settings = logs.configure(self.settings.log_level, self.settings.log_format)
        return self._log_settings

    async def found(self, name: str, version: str = "") -> Served:
        """Returns a model and its decoder. Loads it if it is loaded on demand. Raises ServingError as Catalog.find
        does."""
        while True:
            try:
                return self.find(name, version)
            except NotLoadedError as absent:
                await self._unless_stopping(self.control.bring(absent.name, absent.version))

    async def _unless_stopping(self, loading: Coroutine[Any, Any, None]) -> None:
        """Waits for a load. Raises ServingError (UNAVAILABLE) when the gateway stops: loads may take very long."""
        load, stop = asyncio.ensure_future(loading), asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait((load, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            load.cancel()
        if not load.done():
            raise ServingError(Kind.UNAVAILABLE, "the server is shutting down")
        load.result()

    def bring(self, name: str, version: str, done: Callable[[ServingError | None], None]) -> None:
        """Loads a model that is loaded on demand, and calls `done` then. Several calls may share a load."""

        async def bring() -> None:
            try:
                await self.found(name, version)
            except ServingError as error:
                done(error)
            else:
                done(None)

        task = asyncio.get_running_loop().create_task(bring())
        self._bringing.add(task)
        task.add_done_callback(self._bringing.discard)

    async def known(self, name: str, version: str = "") -> LoadedModel:
        """Returns a model, which may have left memory. Loads it if nothing is known of it yet. Raises ServingError as
        Catalog.find does."""
        try:
            return self.catalog.known(name, version)
        except NotLoadedError:
            return (await self.found(name, version)).model

    def find(self, name: str, version: str = "") -> Served:
        """Returns a model and its decoder. Raises ServingError as Catalog.find does."""
        key = (name, version)
        served = self._served.get(key)
        if served is None:
            model = self.catalog.find(name, version)
            exact = (name, model.spec.version)
            served = self._served.get(exact)
            if served is None:
                served = self._served[exact] = Served(model, Decoder(model.spec, self.limits, self.regions))
            self._served[key] = served
        return served

    async def check_ready(self, name: str, version: str = "") -> None:
        """Raises ServingError (NOT_READY) with the reason if a model of the repository can't serve, NOT_FOUND and
        INVALID as `find` does. A model in Python with `is_ready` is asked."""
        try:
            try:
                model = self.find(name, version).model
            except NotLoadedError as absent:
                if not absent.failure:
                    return  # the first request loads it
                if not self.control.is_coming(absent.name, absent.version):
                    self.bring(name, version, lambda _: None)  # so that who waits for it hears when it was mended
                raise ServingError(Kind.NOT_READY, f"model '{name}' is not available: {absent.failure}") from None
            reason = model.executor.overdue
            if not reason and (asked := [worker for worker in model.statistics.workers if worker.asks_ready]):
                reasons = await asyncio.gather(*[asyncio.wrap_future(worker.ask_ready()) for worker in asked])
                reason = next((reason for reason in reasons if reason), "")
        except ServingError as error:
            if error.kind is not Kind.UNAVAILABLE:
                raise
            reason = error.message
        if reason:
            raise ServingError(Kind.NOT_READY, reason)

    def check_operator(self, peer: str, tokens: Mapping[str, Token], group: str) -> None:
        """Raises ServingError (FORBIDDEN) if a client at this address may not change how the gateway works.

        `tokens` are those of its protocol, `group` the group of the endpoint. Where that needs a token, the client has
        sent it.
        """
        if group in tokens:
            return
        try:
            local = ipaddress.ip_address(peer.partition("%")[0]).is_loopback
        except ValueError:
            local = False
        if not local:
            rule = "only clients on this machine (127.0.0.1, ::1) may do that"
            raise ServingError(Kind.FORBIDDEN, f"{rule}, unless the group '{group}' needs a token")

    def is_ready(self) -> bool:
        """Returns whether clients should send requests to this gateway.

        It must have tried to load every model and must not be shutting down. No model may have failed, unless
        `strict_readiness` is off.
        """
        if self.draining or not self.catalog.complete:
            return False
        return not (self.settings.strict_readiness and self.catalog.unavailable())

    @contextlib.contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Counts bytes that a request holds besides its body, until the block ends.

        Raises ServingError as `no_room` returns it.
        """
        try:
            if not self.budget.hold(size, size <= SMALL) and size:
                raise self.no_room(size)
            yield
        finally:
            self.budget.let_go(size)

    def no_room(self, size: int) -> ServingError:
        """Returns the error for a request or an answer of so many bytes: OVERLOADED, or TOO_LARGE if there is never
        room for them."""
        budget = self.budget
        if size > budget.most:
            return ServingError(Kind.TOO_LARGE, f"one request may hold {budget.most} bytes (OPGATE_MAX_HELD_BYTES)")
        text = f"requests and answers hold {budget.used} bytes, the limit is {budget.limit} (OPGATE_MAX_HELD_BYTES)"
        return ServingError(Kind.OVERLOADED, text)

    async def work(self, cost: int, function: Callable[[], T]) -> T:
        """Calls a function that reads or writes a body, on a thread if that takes long. Returns what it returns.

        `cost` is in bytes of JSON that cost the same.
        """
        try:
            return function() if cost < LONG_COST else await asyncio.wrap_future(self.work_on_thread(function))
        except ServingError as error:
            raise detached(error) from None

    def work_on_thread(self, function: Callable[[], T]) -> Future[T]:
        """Calls a function on a thread."""
        return self._threads.submit(function)

    def choose(self, model: LoadedModel, request: Request) -> None:
        """Decides before its run whether a request is traced, and whether its calls of ops are recorded."""
        recorder = self.journal.recorder
        watched = self.view is not None and self.view.is_watched()
        self.observed = recorder is not None or watched
        if recorder is not None:
            request.traced = recorder.takes(model.spec.name)
        if request.traced or (watched and self.view is not None and self.view.records_ops()):
            request.op_calls = ()

    def submit(self, model: LoadedModel, request: Request, done: Callable[[Request], None]) -> None:
        """Hands a request to its model. `done` is called once with the request, maybe before this returns.

        If this raises, `done` is never called. Raises ServingError (OVERLOADED).
        """
        self._enter(model)

        def finished(request: Request) -> None:
            request.done = _ignore
            self._leave()
            done(request)

        request.done = finished
        if model.spec.streams:
            request.budget = self.budget
        try:
            model.submit(request)
        except Exception:
            if request.done is not finished:  # the request has been answered
                logger.exception("submitting a request for model '%s' failed", model.spec.name)
                return
            request.done = _ignore
            self._leave()
            model.statistics.failed(Kind.INTERNAL.value, 0)
            raise

    async def profile(self, model: LoadedModel, request: Request) -> list[Operator]:
        """Returns the operators of ONNX Runtime in a run of a request. Raises ServingError as `Profiler.profile`."""
        self._enter(model)
        try:
            return await self._profiler.profile(model, request)
        finally:
            self._leave()

    def _enter(self, model: LoadedModel) -> None:
        if self.running >= self.settings.max_concurrent_requests:
            model.statistics.failed(Kind.OVERLOADED.value, 0)
            raise ServingError(Kind.OVERLOADED, f"{self.running} requests are under way, which is the limit")
        self.accepted += 1
        self.running += 1

    def _leave(self) -> None:
        self.running -= 1
        if self._drained is not None and not self.running:
            self._drained.set()

    async def infer(self, model: LoadedModel, request: Request) -> dict[str, Array]:
        """Submits a request, waits for it and returns its result. Raises ServingError."""
        self._enter(model)
        try:
            return await run(model.submit, request)
        except ServingError:
            raise
        except Exception:
            model.statistics.failed(Kind.INTERNAL.value, 0)
            raise
        finally:
            self._leave()

    def stop(self, now: float) -> None:
        """Begins the stop: the gateway is not ready any more. It still answers what reaches it."""
        if not self.draining:
            self.draining = True
            self.stopping.set()
            self.stopped_at = now
            self.stop_at = now + self.settings.shutdown_timeout

    async def drain(self, seconds: float) -> bool:
        """Waits until every accepted request is answered. Returns whether that happened in time."""
        self.draining = True
        if not self.running:
            return True
        self._drained = asyncio.Event()
        try:
            await asyncio.wait_for(self._drained.wait(), seconds)
        except TimeoutError:
            return False
        return True


def _ignore(request: Request) -> None:
    """The callback of a request that has been answered already."""
