"""The endpoints of the console: its page, the stream of what happens, and what it shows of models and ops."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Iterator

from fastapi import Request, Response
from starlette.responses import StreamingResponse

from opgate.service.api.kserve_http import answer, check_operator, name_of
from opgate.service.api.openapi import call
from opgate.service.api.routes import Route
from opgate.service.console.feed import Feed
from opgate.service.console.files import Files
from opgate.service.console.model_view import model_view, read_example
from opgate.service.console.op_list import op_list
from opgate.service.console.process_view import ProcessView
from opgate.service.core.errors import Kind, ServingError
from opgate.service.gateway import Gateway
from opgate.service.repository.catalog import Entry
from opgate.service.telemetry.recent_requests import RecentRequests
from opgate.service.tokens import OPEN

_STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class _Routes:
    """The endpoints of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._files = Files()
        self._feed = Feed(gateway)
        self._hosts = {part.strip().lower() for part in gateway.settings.console_hosts.split(",") if part.strip()}

    async def page(self, request: Request) -> Response:
        """Answers with the page."""
        return self._files.respond("index.html", request)

    async def icon(self, request: Request) -> Response:
        """Answers with the icon that browsers ask for beside any page."""
        return self._files.respond(self._files.icon, request)

    async def file(self, request: Request) -> Response:
        """Answers with a file of the page."""
        return self._files.respond(request.path_params["file"], request)

    async def stream(self, request: Request) -> Response:
        """Answers with what happens, as server-sent events."""
        self._check_host(request, "statistics")
        log = self._gateway.http_tokens.get("logging")
        events = self._feed.watch(
            self._feed.hello(self._why_not(request)), log is None or log.is_in(request.headers.get)
        )
        first = await anext(events)
        return StreamingResponse(_after(first, events), media_type="text/event-stream", headers=_STREAM_HEADERS)

    async def requests(self, request: Request) -> Response:
        """Answers with the last requests, and the slowest of each model."""
        self._check_host(request, "statistics")
        found = await self._feed.requests()
        return await asyncio.to_thread(answer, found)

    async def ops(self, request: Request) -> Response:
        """Answers with the ops of the trusted libraries."""
        self._check_host(request, "metadata")
        return await asyncio.to_thread(lambda: answer({"ops": op_list(self._gateway)}))

    async def model(self, request: Request) -> Response:
        """Answers with everything that the console shows of a model."""
        self._check_host(request, "model-config")
        name, version = request.path_params["model"], request.path_params.get("version", "")
        model = await self._gateway.known(name, version)
        model.hold()
        try:
            return await asyncio.to_thread(lambda: answer(model_view(self._gateway, model, self._entry(name))))
        finally:
            model.release()

    async def example(self, request: Request) -> Response:
        """Answers with a file of a model's examples."""
        self._check_host(request, "model-config")
        entry = self._entry(request.path_params["model"])
        data, media = await asyncio.to_thread(read_example, entry, request.path_params["file"])
        headers = {
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "sandbox",
            "Cache-Control": "no-cache",
        }
        return Response(data, media_type=media, headers=headers)

    def _check_host(self, request: Request, group: str) -> None:
        """Raises ServingError (FORBIDDEN) if a browser may have found this address under a name of somebody else, whose
        pages could then read the answer. With a token for the group they can't."""
        host = name_of(request.headers.get("host", "").lower())
        if group in self._gateway.http_tokens or _is_of_this_machine(host) or host in self._hosts:
            return
        text = f"the console is not shown under the name '{host[:80]}': start the gateway with --console-hosts"
        raise ServingError(
            Kind.FORBIDDEN, f"{text} (OPGATE_CONSOLE_HOSTS) and this name, or with a token for '{group}'"
        )

    def _entry(self, name: str) -> Entry:
        entry = self._gateway.catalog.entry(name)
        if entry is None:
            raise ServingError(Kind.NOT_FOUND, f"Request for unknown model: '{name[:256]}' is not found")
        return entry

    def _why_not(self, request: Request) -> str:
        """Returns why a client may not load and unload models, "" if it may."""
        token = self._gateway.http_tokens.get("model-repository")
        if token is not None and not token.is_in(request.headers.get):
            return token.refusal("API")
        try:
            self._gateway.control.check_explicit()
            check_operator(self._gateway, request, "model-repository")
        except ServingError as error:
            return error.message
        return ""


def _is_of_this_machine(host: str) -> bool:
    """Returns whether nobody else can give this name to an address: an address itself, or a name without a point."""
    if not host or host.endswith(".localhost") or host == socket.gethostname().lower():
        return bool(host)
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return "." not in host
    return True


async def _after(first: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for event in others:
        yield event


def routes(gateway: Gateway) -> Iterator[Route]:
    """Yields the routes of one gateway, none if it has no console. The gateway keeps its last requests from now on."""
    if not gateway.settings.console:
        return
    recent = RecentRequests(gateway.settings.console_bodies)
    gateway.journal.set_keeper(recent)
    gateway.view = ProcessView(gateway, recent)
    endpoints = _Routes(gateway)
    yield Route("GET", "/", endpoints.page, OPEN)
    yield Route("GET", "/console/files/{file}", endpoints.file, OPEN)
    yield Route("GET", "/favicon.ico", endpoints.icon, OPEN)
    yield Route("GET", "/console/stream", endpoints.stream, "statistics")
    requests = call("The last requests, and the slowest of each model", "console", "ConsoleRequests")
    yield Route("GET", "/console/requests", endpoints.requests, "statistics", requests)
    yield Route(
        "GET",
        "/console/ops",
        endpoints.ops,
        "metadata",
        call("The ops of the trusted libraries", "console", "ConsoleOps"),
    )
    for version in ("", "/versions/{version}"):
        yield Route("GET", f"/console/models/{{model}}{version}", endpoints.model, "model-config")
    yield Route("GET", "/console/examples/{model}/{file:path}", endpoints.example, "model-config")
