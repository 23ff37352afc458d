"""POST /v2/models/{model}/generate and /generate_stream: plain JSON in and out, as in Triton."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse

from opgate.service.api.kserve_http import JSON, Body, read_body, unless_left
from opgate.service.api.status import error_body
from opgate.service.errors import ServingError
from opgate.service.execution.request import Request as InferRequest
from opgate.service.execution.spec import ModelSpec
from opgate.service.gateway import Gateway
from opgate.service.settings import smallest
from opgate.service.wire import generate as wire

_EVENTS = "text/event-stream; charset=utf-8"


def router(gateway: Gateway) -> APIRouter:
    """Returns the routes of one gateway."""
    routes = APIRouter()

    async def run(request: Request, stack: contextlib.ExitStack) -> tuple[ModelSpec, InferRequest]:
        """Runs the model. Raises ServingError."""
        model, version = request.path_params["model"], request.path_params.get("version", "")
        with gateway.reading(model, version):
            body = await read_body(gateway, request, *smallest(gateway.settings, "max_body_bytes", "max_json_bytes"))
        with gateway.reading(model, version) as served:  # another version may have taken its place meanwhile
            stack.enter_context(served.model.held())
            stack.enter_context(gateway.inflated(body.most))
            asked = await gateway.work(body.size, lambda: _read(served.model.spec, body))
        request.scope["opgate.request"] = asked
        await unless_left(request, gateway.infer(served.model, asked))
        return served.model.spec, asked

    def _read(spec: ModelSpec, body: Body) -> InferRequest:
        return wire.read(spec, body.unpacked(), gateway.limits)

    async def generate(request: Request) -> Response:
        with contextlib.ExitStack() as stack:
            spec, asked = await run(request, stack)
            cost = wire.answer_cost(asked)
            content = await gateway.work(cost, lambda: wire.only_answer(spec, asked))
        return Response(content, media_type=JSON)

    async def generate_stream(request: Request) -> Response:
        with contextlib.ExitStack() as stack:
            spec, asked = await run(request, stack)
        return StreamingResponse(stream(wire.events(spec, asked), asked), media_type=_EVENTS)

    async def stream(events: Iterator[bytes], asked: InferRequest) -> AsyncIterator[bytes]:
        cost = wire.answer_cost(asked)
        try:
            while (event := await gateway.work(cost, lambda: next(events, None))) is not None:
                yield event
        except ServingError as error:  # the status is sent, so the error is an event
            yield wire.event(error_body(error.message))

    for prefix in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        routes.add_api_route(prefix + "/generate", generate, methods=["POST"], include_in_schema=False)
        routes.add_api_route(prefix + "/generate_stream", generate_stream, methods=["POST"], include_in_schema=False)
    return routes
