"""What every door of the service shares: the catalog, the limits, and the count of what is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from service.errors import Kind, ServingError
from service.execution.request import Array, Request, run
from service.repository.catalog import Catalog
from service.repository.loader import LoadedModel, limits_of
from service.settings import Settings
from service.wire.kserve_json import Decoder
from service.wire.tensors import Bytes

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

    def decode(self, name: str, version: str, body: Bytes, header_length: int | None) -> tuple[Served, Request]:
        """Finds the model and parses an infer body for it. Raises ServingError; counts the client's failures."""
        served = self.find(name, version)
        try:
            return served, served.decoder.decode(body, header_length)
        except ServingError as error:
            served.model.statistics.failed(error.kind.value, 0)
            raise

    def submit(self, model: LoadedModel, request: Request, done: Callable[[Request], None]) -> None:
        """Hands a request to its model; `done` may be called before this returns. Raises ServingError (OVERLOADED)."""
        self._enter(model)
        request.done = done
        model.submit(request)

    def _enter(self, model: LoadedModel) -> None:
        if self.running >= self.settings.max_concurrent_requests:
            model.statistics.failed(Kind.OVERLOADED.value, 0)
            raise ServingError(Kind.OVERLOADED, f"{self.running} requests are under way, the limit")
        self.running += 1

    def leave(self) -> None:
        """A submitted request was called back."""
        self.running -= 1
        if self._drained is not None and not self.running:
            self._drained.set()

    async def infer(self, model: LoadedModel, request: Request) -> dict[str, Array]:
        """Submits and waits. Raises ServingError."""
        self._enter(model)
        try:
            return await run(model.submit, request)
        finally:
            self.leave()

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
