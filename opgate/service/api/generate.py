"""POST /v2/models/{model}/generate and /generate_stream: plain JSON in and out, as in Triton."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

from fastapi import Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from opgate.service.api.asgi_exchange import AsgiExchange, found, unless_left
from opgate.service.api.kserve_http import JSON, Body, read_body
from opgate.service.api.openapi import generate_operation
from opgate.service.api.routes import Route, of_models
from opgate.service.api.status import error_body
from opgate.service.core.errors import ServingError
from opgate.service.core.request import Request as InferRequest
from opgate.service.core.request import Response as Answered
from opgate.service.core.spec import ModelSpec
from opgate.service.gateway import Gateway, Reading, Served
from opgate.service.settings import smallest
from opgate.service.wire import generate as wire

_EVENTS = "text/event-stream; charset=utf-8"


def routes(gateway: Gateway) -> Iterator[Route]:
    """Yields the routes of one gateway."""

    async def read(request: Request, stack: contextlib.ExitStack) -> tuple[Served, Body]:
        """Reads a body, and counts what it becomes while the stack is open. Raises ServingError."""
        with Reading(await found(gateway, request)):
            body = await read_body(gateway, request, *smallest(gateway.settings, "max_body_bytes", "max_json_bytes"))
            stack.enter_context(gateway.holding(body.most))
        return await found(gateway, request), body  # another version may have taken its place meanwhile

    def decode(spec: ModelSpec, body: Body) -> InferRequest:
        return wire.read(spec, body.unpacked(), gateway.limits)

    async def generate(request: Request) -> Response:
        with contextlib.ExitStack() as stack:
            served, body = await read(request, stack)
            spec = served.model.spec
            if spec.streams:
                exchange_of_one: AsgiExchange[bytes] = AsgiExchange(gateway, request, lambda _: 0, lambda _: (b"", 0))
                stack.callback(exchange_of_one.cancel)
                asked = await exchange_of_one.submit(served, body.size, lambda: decode(spec, body))
                return Response(await _only_response(request, spec, asked, exchange_of_one), media_type=JSON)

            def encode(asked: InferRequest) -> tuple[bytes, int]:
                content = wire.only_answer(spec, asked)
                return content, len(content)

            exchange = AsgiExchange(gateway, request, wire.answer_cost, encode)
            content = await exchange.run(served, body.size, lambda: decode(spec, body))
        return Response(content, media_type=JSON)

    async def generate_stream(request: Request) -> Response:
        with contextlib.ExitStack() as stack:
            served, body = await read(request, stack)
            spec = served.model.spec

            def encode(asked: InferRequest) -> tuple[Iterator[bytes], int]:
                return wire.events(spec, asked), asked.result_bytes

            exchange = AsgiExchange(gateway, request, lambda _: 0, encode)
            if not spec.streams:
                events = await exchange.run(served, body.size, lambda: decode(spec, body))
                assert exchange.request is not None
                return StreamingResponse(stream(events, exchange.request), media_type=_EVENTS)
            stack.callback(exchange.cancel)  # the client may leave at any moment
            asked = await exchange.submit(served, body.size, lambda: decode(spec, body))
            # An error before the first response still has a status of its own.
            responses = asked.responses()
            first = await unless_left(request, anext(responses, None))
            if first is None:
                await exchange.answer()
            return _Running(_as_they_come(spec, asked, first, responses, exchange), stack.pop_all())

    async def stream(events: Iterator[bytes], asked: InferRequest) -> AsyncIterator[bytes]:
        cost = wire.answer_cost(asked)
        try:
            while (event := await gateway.work(cost, lambda: next(events, None))) is not None:
                yield event
        except ServingError as error:  # the status is sent, so the error is an event
            yield wire.event(error_body(error.message))

    yield from of_models("POST", "/generate", generate, "inference", generate_operation("Generated", JSON))
    stream_operation = generate_operation("", "text/event-stream")
    yield from of_models("POST", "/generate_stream", generate_stream, "inference", stream_operation)


async def _only_response(
    request: Request, spec: ModelSpec, asked: InferRequest, exchange: AsgiExchange[bytes]
) -> bytes:
    """Returns the only response of a decoupled model. Raises ServingError, also if it sends none or a second one."""
    found: list[Answered] = []
    responses = asked.responses()
    while len(found) < 2 and (response := await unless_left(request, anext(responses, None))) is not None:
        if response.error is not None:
            raise response.error
        if response.outputs:  # an empty one only says that there are no more
            found.append(response)
    if len(found) < 2:
        await exchange.answer()
    return wire.only_part(spec, asked, [response.outputs for response in found])


class _Running(StreamingResponse):
    """The responses of a run that goes on. The run ends with the response, also with one that is never sent."""

    def __init__(self, events: AsyncIterator[bytes], held: contextlib.ExitStack) -> None:
        super().__init__(events, media_type=_EVENTS)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response."""
        with self._held:
            await super().__call__(scope, receive, send)


async def _as_they_come(
    spec: ModelSpec,
    asked: InferRequest,
    first: Answered | None,
    others: AsyncIterator[Answered],
    exchange: AsgiExchange[Iterator[bytes]],
) -> AsyncIterator[bytes]:
    """Yields the responses of a model as events, and an error as the last one."""

    def event(response: Answered) -> bytes:
        if response.error is not None:
            return wire.event(error_body(response.error.message))
        return wire.event(wire.part(spec, asked, response.outputs))

    try:
        if first is not None:
            yield event(first)
        async for response in others:
            yield event(response)
        await exchange.answer()
    except ServingError as error:
        yield wire.event(error_body(error.message))
