"""POST /v2/models/{model}/generate and /generate_stream: plain JSON in and out, as in Triton."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from opgate.service.api.kserve_http import JSON, Body, hold_answer, read_body, unless_left
from opgate.service.api.status import error_body
from opgate.service.core.errors import ServingError
from opgate.service.core.request import Array
from opgate.service.core.request import Request as InferRequest
from opgate.service.core.spec import ModelSpec
from opgate.service.gateway import Gateway
from opgate.service.repository.loader import LoadedModel
from opgate.service.settings import smallest
from opgate.service.wire import generate as wire
from opgate.service.wire.responses import refuse_decoupled

_EVENTS = "text/event-stream; charset=utf-8"


def router(gateway: Gateway) -> APIRouter:
    """Returns the routes of one gateway."""
    routes = APIRouter()

    async def read(request: Request, stack: contextlib.ExitStack) -> tuple[LoadedModel, InferRequest]:
        """Reads a request, and holds its model while the stack is open. Raises ServingError."""
        model, version = request.path_params["model"], request.path_params.get("version", "")
        with gateway.reading(model, version):
            body = await read_body(gateway, request, *smallest(gateway.settings, "max_body_bytes", "max_json_bytes"))
        with gateway.reading(model, version) as served:  # another version may have taken its place meanwhile
            stack.enter_context(served.model.held())
            stack.enter_context(gateway.holding(body.most))
            asked = await gateway.work(body.size, lambda: _read(served.model.spec, body))
        request.scope["opgate.request"] = asked
        return served.model, asked

    def _read(spec: ModelSpec, body: Body) -> InferRequest:
        return wire.read(spec, body.unpacked(), gateway.limits)

    async def generate(request: Request) -> Response:
        with contextlib.ExitStack() as stack:
            model, asked = await read(request, stack)
            if model.spec.streams:
                refuse_decoupled(model.spec, "generate")
            await unless_left(request, gateway.infer(model, asked))
            cost = wire.answer_cost(asked)
            content = await gateway.work(cost, lambda: wire.only_answer(model.spec, asked))
            hold_answer(gateway, request, len(content))
        return Response(content, media_type=JSON)

    async def generate_stream(request: Request) -> Response:
        with contextlib.ExitStack() as stack:
            model, asked = await read(request, stack)
            if not model.spec.streams:
                result = await unless_left(request, gateway.infer(model, asked))
                hold_answer(gateway, request, sum(array.nbytes for array in result.values()))
                return StreamingResponse(stream(wire.events(model.spec, asked), asked), media_type=_EVENTS)
            running = asyncio.ensure_future(gateway.infer(model, asked))
            running.add_done_callback(_heard)
            stack.callback(running.cancel)  # the client may leave at any moment
            # An error before the first response still has a status of its own.
            responses = asked.responses()
            first = await unless_left(request, anext(responses, None))
            if first is None:
                await running
            return _Running(_as_they_come(model.spec, asked, first, responses, running), stack.pop_all())

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


class _Running(StreamingResponse):
    """The responses of a run that goes on. The run ends with the response, also with one that is never sent."""

    def __init__(self, events: AsyncIterator[bytes], held: contextlib.ExitStack) -> None:
        super().__init__(events, media_type=_EVENTS)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response."""
        with self._held:
            await super().__call__(scope, receive, send)


def _heard(run: asyncio.Future[Any]) -> None:
    """Takes the error of a run whose client may have left before it could be told."""
    if not run.cancelled():
        run.exception()


async def _as_they_come(
    spec: ModelSpec,
    asked: InferRequest,
    first: tuple[dict[str, Array], bool] | None,
    others: AsyncIterator[tuple[dict[str, Array], bool]],
    running: asyncio.Future[Any],
) -> AsyncIterator[bytes]:
    """Yields the responses of a model as events, and an error as the last one."""
    try:
        if first is not None:
            yield wire.event(wire.part(spec, asked, first[0]))
        async for outputs, _ in others:
            yield wire.event(wire.part(spec, asked, outputs))
        await running
    except ServingError as error:
        yield wire.event(error_body(error.message))
