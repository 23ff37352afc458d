"""What every door of the service shares: the catalog, the limits, and the count of what is under way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from service.errors import Kind, ServingError
from service.execution.request import Array, Request, run
from service.repository.catalog import Catalog
from service.repository.loader import LoadedModel, limits_of
from service.settings import Settings
from service.wire.kserve_json import Decoder

logger = logging.getLogger("opgate.gateway")

# Announced in /v2: only what works.
EXTENSIONS = ("binary_tensor_data", "model_configuration", "parameters", "schedule_policy", "statistics")


def package_version() -> str:
    """The version of the installed distribution."""
    try:
        return version("opgate")
    except PackageNotFoundError:
        return "0.0.0"


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A model with what reads its requests."""

    model: LoadedModel
    decoder: Decoder


class Reading:
    """The time in which a request for a model is read. What goes wrong in it is a failure of that model."""

    __slots__ = ("_served",)

    def __init__(self, served: Served) -> None:
        self._served = served

    def __enter__(self) -> Served:
        return self._served

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ServingError):
            self._served.model.statistics.failed(error.kind.value, 0)


class Gateway:
    """One per process. Belongs to the event loop's thread once loaded."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.limits = limits_of(settings)
        self.catalog = Catalog(settings)
        self.running = 0  # requests accepted and not answered
        self.draining = False
        self._drained: asyncio.Event | None = None
        self._served: dict[tuple[str, str], Served] = {}

    def find(self, name: str, version: str = "") -> Served:
        """The model and its decoder. Raises ServingError as Catalog.find does."""
        key = (name, version)
        found = self._served.get(key)
        if found is None:
            model = self.catalog.find(name, version)
            exact = (name, model.spec.version)
            found = self._served.get(exact)
            if found is None:
                found = self._served[exact] = Served(model, Decoder(model.spec, self.limits))
            self._served[key] = found
        return found

    def is_ready(self) -> bool:
        """Whether to send requests here: all models tried, none failed (unless that is allowed), not shutting down."""
        if self.draining or not self.catalog.complete:
            return False
        return not (self.settings.strict_readiness and self.catalog.unavailable())

    def reading(self, name: str, version: str = "") -> Reading:
        """A context for everything between finding a model and having a Request for it: reading the body, decoding,
        checking. A ServingError that is raised inside counts as a failure of the model and goes on. Raises ServingError
        as `find` does."""
        return Reading(self.find(name, version))

    def submit(self, model: LoadedModel, request: Request, done: Callable[[Request], None]) -> None:
        """Hands a request to its model. `done` is called once, maybe before this returns, unless this raises: then it
        is never called. Raises ServingError (OVERLOADED)."""
        self._enter(model)

        def finished(request: Request) -> None:
            request.done = _ignore
            self._leave()
            done(request)

        request.done = finished
        try:
            model.submit(request)
        except Exception:
            if request.done is not finished:  # it has been answered
                logger.exception("submitting a request for model '%s' failed", model.spec.name)
                return
            request.done = _ignore
            self._leave()
            raise

    def _enter(self, model: LoadedModel) -> None:
        if self.running >= self.settings.max_concurrent_requests:
            model.statistics.failed(Kind.OVERLOADED.value, 0)
            raise ServingError(Kind.OVERLOADED, f"{self.running} requests are under way, the limit")
        self.running += 1

    def _leave(self) -> None:
        self.running -= 1
        if self._drained is not None and not self.running:
            self._drained.set()

    async def infer(self, model: LoadedModel, request: Request) -> dict[str, Array]:
        """Submits and waits. Raises ServingError."""
        self._enter(model)
        try:
            return await run(model.submit, request)
        finally:
            self._leave()

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
    """The callback of a request that has been answered."""
