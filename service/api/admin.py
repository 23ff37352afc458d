"""Routes for operators of the gateway: metrics."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service.gateway import Gateway
from service.telemetry.metrics import CONTENT_TYPE, Metrics


def router(gateway: Gateway) -> APIRouter:
    """Returns the routes of one gateway."""
    routes = APIRouter()
    metrics = Metrics(gateway.catalog.models)

    async def read_metrics() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    routes.add_api_route("/metrics", read_metrics, methods=["GET"], include_in_schema=False)
    return routes
