"""Routes for operators of the gateway: metrics."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import onnxruntime
from fastapi import Response

from opgate.service.api.openapi import call
from opgate.service.api.routes import Route
from opgate.service.execution.response_cache import ResponseCache
from opgate.service.gateway import Gateway, package_version
from opgate.service.repository.residency import Residency
from opgate.service.telemetry.merging import merge_metrics
from opgate.service.telemetry.metrics import CONTENT_TYPE, Metrics

if TYPE_CHECKING:
    from opgate.service.execution.triton.pool import TritonPool


class Numbers:
    """The numbers of one gateway, for its metrics."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def index(self) -> list[tuple[str, str, str, str]]:
        """Returns the models and their state."""
        return self._gateway.catalog.index()

    def residency(self) -> Iterator[tuple[str, int, bool]]:
        """Yields the versions that are loaded on demand, and whether they are in memory."""
        return self._gateway.catalog.residency()

    def memory(self) -> Residency:
        """Returns the memory of the models."""
        return self._gateway.control.residency

    def limited(self) -> Mapping[str, int]:
        """Returns the requests that were refused because their client sent too many, by client."""
        limits = self._gateway.client_limits
        return {} if limits is None else limits.refused

    def answers(self) -> Mapping[tuple[str, str, str], int]:
        """Returns the counts of answers by protocol, route and code."""
        return self._gateway.journal.counts

    def connections(self) -> int:
        """Returns the number of open connections of HTTP."""
        return len(self._gateway.connections)

    def grpc_connections(self) -> int:
        """Returns the number of open connections of gRPC."""
        return len(self._gateway.grpc_connections)

    def held_bytes(self) -> int:
        """Returns the bytes that requests and answers hold."""
        return self._gateway.budget.used

    def deaths(self) -> int:
        """Returns how many gateway processes had the place of this one and died."""
        return self._gateway.deaths

    def running(self) -> int:
        """Returns the number of requests under way."""
        return self._gateway.running

    def cache(self) -> ResponseCache:
        """Returns the response cache."""
        return self._gateway.catalog.cache

    def triton(self) -> TritonPool | None:
        """Returns the Triton servers that run the models, None if this process does."""
        return self._gateway.triton

    def of_models(self) -> Iterator[str]:
        """Yields the metrics that models in Python have of their own, as text."""
        return self._gateway.catalog.calls.metrics.lines()

    def versions(self) -> dict[str, str]:
        """Returns the versions of the gateway, Python and ONNX Runtime."""
        return {
            "version": package_version(),
            "python": platform.python_version(),
            "onnxruntime": onnxruntime.__version__,
        }


def routes(gateway: Gateway) -> Iterator[Route]:
    """Yields the routes of one gateway, whose metrics they make."""
    gateway.metrics = Metrics(gateway.catalog.models, Numbers(gateway)).collect

    async def read_metrics() -> Response:
        texts = await gateway.all_processes.run("metrics")
        if len(texts) > 1:
            texts = [await asyncio.to_thread(merge_metrics, texts, gateway.all_processes.past())]
        return Response(texts[0], media_type=CONTENT_TYPE)

    described = call("Prometheus metrics", "server", media="text/plain")
    yield Route("GET", "/metrics", read_metrics, "metrics", described)
