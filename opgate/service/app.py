"""A gateway process: loads the repository, serves HTTP and gRPC, ends cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Mapping
from typing import Any, Protocol

import anyio.to_thread
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse
from starlette.routing import Mount, Route, compile_path

from opgate.service import signals, thread_starts
from opgate.service.api import admin, generate, kserve_http, operations, predict, shared_memory
from opgate.service.api.http_exchange import HttpService
from opgate.service.api.journal_middleware import JournalMiddleware
from opgate.service.api.kserve_grpc import GrpcServer
from opgate.service.api.openapi import schema
from opgate.service.api.restrictions import RestrictedRoutes
from opgate.service.api.routes import Endpoint
from opgate.service.api.status import error_body
from opgate.service.console import routes as console
from opgate.service.core.errors import ServingError, of_system
from opgate.service.execution.run_on_loop import ON_LOOP
from opgate.service.freed_memory import give_back_when_idle, keep_all, use_few_arenas
from opgate.service.gateway import Gateway, package_version
from opgate.service.http.server import Server
from opgate.service.listening import Listen, listen
from opgate.service.settings import Settings
from opgate.service.signals import SignalThread
from opgate.service.telemetry.logs import LogSettings

logger = logging.getLogger("opgate")

# Seconds after which the gateway listens although some models are still loaded.
_START_PATIENCE = 60.0


class Member(Protocol):
    """What makes a gateway process one of several."""

    http: socket.socket | None
    grpc: socket.socket | None

    async def join(self, gateway: Gateway) -> None: ...

    def listening(self, listeners: Mapping[str, Listen]) -> None: ...

    def leave(self) -> None: ...


#: The modules with the endpoints of HTTP, in the order in which their paths are looked up.
_ENDPOINTS = (kserve_http, generate, operations, shared_memory, predict, admin, console)


def create_app(gateway: Gateway) -> FastAPI:
    """Returns the ASGI application of a loaded gateway. It works under any ASGI server."""
    # FastAPIOffline brings the files of its pages along, so /docs works without a network.
    # A path with a slash at its end is another one: a redirect would go to whatever host the client names.
    app = FastAPIOffline(title="opgate", version=package_version(), redoc_url=None, redirect_slashes=False)
    table = [route for part in _ENDPOINTS for route in part.routes(gateway)]
    app.openapi = lambda: schema(gateway, table)  # type: ignore[method-assign]
    retry_after = gateway.settings.retry_after

    @app.exception_handler(ServingError)
    async def on_serving_error(request: Request, error: ServingError) -> Response:
        request.scope["opgate.error"] = error.message
        return kserve_http.error_response(error, retry_after)

    @app.exception_handler(OSError)
    async def on_system_error(request: Request, error: OSError) -> Response:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return await on_serving_error(request, of_system(error))

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        text = error.detail if error.status_code != 404 else f"no route {request.method} {request.url.path}"
        request.scope["opgate.error"] = text
        headers = dict(error.headers or {})
        return Response(error_body(text), error.status_code, headers, media_type="application/json")

    @app.exception_handler(RequestValidationError)
    async def on_validation_error(request: Request, error: RequestValidationError) -> Response:
        request.scope["opgate.error"] = str(error)
        return Response(error_body(str(error)), 400, media_type="application/json")

    if not gateway.settings.console:

        @app.get("/", include_in_schema=False)
        async def home() -> Response:
            return RedirectResponse("/docs")

    pages = [(route.path_regex, "metadata") for route in app.routes if isinstance(route, Route | Mount)]
    methods: dict[tuple[str, Endpoint], list[str]] = {}
    for route in table:  # an endpoint is one route of the router, whatever its methods, which 405 then names
        methods.setdefault((route.path, route.endpoint), []).append(route.method)
    for (path, endpoint), names in methods.items():
        app.add_api_route(path, endpoint, methods=names, include_in_schema=False)
    if gateway.http_tokens:
        groups = [*pages, *((compile_path(route.path)[0], route.group) for route in table)]
        app.add_middleware(RestrictedRoutes, tokens=gateway.http_tokens, groups=groups)
    app.add_middleware(JournalMiddleware, gateway=gateway)
    return app


def _tls(settings: Settings) -> dict[str, Any]:
    """Returns uvicorn's options for TLS. Raises OSError if the files can't be used."""
    certificate, key, roots = settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_ca_certs
    if certificate is None and key is None and roots is None:
        return {}
    if certificate is None or key is None:
        raise OSError("HTTP with TLS needs both --ssl-certfile and --ssl-keyfile")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # uvicorn makes its own, too late to say what is wrong
        context.load_cert_chain(certificate, key, settings.ssl_keyfile_password)
        if roots is not None:
            context.load_verify_locations(roots)
        if settings.ssl_ciphers is not None:
            context.set_ciphers(settings.ssl_ciphers)
    except OSError as error:
        files = ", ".join(str(path) for path in (certificate, key, roots) if path is not None)
        raise OSError(f"the TLS files of HTTP can't be used ({files}): {error}") from None
    ciphers = {} if settings.ssl_ciphers is None else {"ssl_ciphers": settings.ssl_ciphers}
    return {
        "ssl_certfile": certificate,
        "ssl_keyfile": key,
        "ssl_keyfile_password": settings.ssl_keyfile_password,
        "ssl_cert_reqs": ssl.CERT_NONE if roots is None else ssl.CERT_REQUIRED,
        "ssl_ca_certs": roots,
        **ciphers,
    }


async def _load(gateway: Gateway, thread: SignalThread | None, member: Member | None) -> None:
    """Loads the models that serve from the start. Raises ServingError as `ModelControl.load_at_start` does."""
    if thread is not None:
        thread.take_signals()
    await gateway.control.load_at_start(_START_PATIENCE)
    if member is not None:
        await member.join(gateway)
    calls = gateway.catalog.calls
    calls.loop = asyncio.get_running_loop()
    calls.control, calls.bring = gateway.all_processes, gateway.control.bring


async def serve(gateway: Gateway, thread: SignalThread | None = None, member: Member | None = None) -> bool:
    """Loads the models and serves until SIGTERM or SIGINT, then finishes the accepted requests. `member` is what makes
    it one of several processes.

    Returns False if the time for that ran out. Raises ServingError as `ModelControl.load_at_start` does.
    """
    settings = gateway.settings
    loop = asyncio.get_running_loop()
    await _load(gateway, thread, member)
    stop = asyncio.Event()
    http = Server(create_app(gateway), HttpService(gateway), **_tls(settings)) if settings.http else None

    def on_signal() -> None:
        if member is not None:
            member.leave()
        gateway.stop(loop.time())
        stop.set()

    if thread is not None:
        thread.on_stop(lambda: loop.call_soon_threadsafe(on_signal))
    rpc = GrpcServer(gateway, None if member is None else member.grpc) if settings.grpc else None
    listening: dict[str, int] = {}
    serving: asyncio.Task[None] | None = None
    if http is not None:
        gateway.connections = http.server_state.connections
        bound = None if member is None else member.http
        bound = bound or listen("HTTP", settings.http_host, settings.http_port, "--http-host")
        listening["http_port"] = bound.getsockname()[1]
        serving = await http.listen(bound)
        # anyio imports its part for asyncio now, and not on the loop in the first form with a large file.
        anyio.to_thread.current_default_thread_limiter()
    if gateway.triton is not None:
        gateway.triton.start()
    if rpc is not None:
        gateway.grpc_connections = rpc.connections
        await rpc.start()
        listening["grpc_port"] = rpc.port
    keep_all()
    gateway.control.start()
    if gateway.view is not None:
        logging.getLogger().addHandler(gateway.view.log)
    if member is None:
        logger.info("listening", extra={"host": settings.http_host, **listening})
    else:
        listeners: dict[str, Listen] = {}
        if http is not None:
            listeners["http"] = http.listen_too
        if rpc is not None:
            listeners["grpc"] = rpc.listen_too
        member.listening(listeners)
    idle = asyncio.create_task(
        give_back_when_idle(lambda: gateway.accepted, lambda: gateway.catalog.closed, lambda: gateway.running)
    )
    await stop.wait()
    idle.cancel()
    logger.info("stopping", extra={"running": gateway.running})
    return await _finish(gateway, http, serving, rpc)


async def _finish(
    gateway: Gateway, http: Server | None, serving: asyncio.Task[None] | None, rpc: GrpcServer | None
) -> bool:
    """Finishes the accepted requests and closes everything. Returns False if the time for that ran out."""
    loop = asyncio.get_running_loop()
    if gateway.view is not None:
        logging.getLogger().removeHandler(gateway.view.log)
    if http is not None:
        http.should_exit = True
    await asyncio.gather(
        *([serving] if serving is not None else []),
        *([rpc.stop(gateway.settings.shutdown_timeout)] if rpc is not None else []),
    )
    await gateway.control.close()
    try:
        drained = await gateway.drain(max(0.0, gateway.stop_at - loop.time()))
        if drained:
            await asyncio.wait_for(gateway.catalog.close(), max(0.5, gateway.stop_at - loop.time()))
    except TimeoutError:
        drained = False
    if gateway.triton is not None:
        await gateway.triton.close()
    await _close_traces(gateway, max(0.5, min(2.0, gateway.stop_at - loop.time())))
    unfinished = (0 if http is None else http.lost) + (0 if rpc is None else rpc.lost)
    if drained and not unfinished:
        logger.info("stopped")
        return True
    logger.warning("stopped in the midst of %d requests", unfinished)
    return False


async def _close_traces(gateway: Gateway, seconds: float) -> None:
    """Writes and sends the last traces. Their collector may not answer, and a stop doesn't wait for that."""
    await asyncio.to_thread(gateway.tracing.close)
    tracer = gateway.tracer
    if tracer is None:
        return
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()

    def close() -> None:
        tracer.close()
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(closed.set)

    threading.Thread(target=close, daemon=True).start()
    try:
        await asyncio.wait_for(closed.wait(), seconds)
    except TimeoutError:
        logger.warning("the last traces are lost: their collector did not take them in %.1f s", seconds)


def run(settings: Settings, log_settings: LogSettings, member: Member | None = None) -> int:
    """Loads the repository and serves it in this process. `member` is what makes it one of several.

    Returns the exit status: 0 after a clean stop, 1 if the gateway can't start or if requests were lost.
    """
    use_few_arenas()
    thread_starts.bound()
    # A second more than the stop may take, because that is the better way to end.
    seconds = settings.shutdown_timeout + 1
    thread = signals.SignalThread(seconds, ON_LOOP, settings.run_timeout, alone=member is None)
    try:
        gateway = Gateway(settings, log_settings)
    except (ServingError, RuntimeError) as error:
        logger.error("%s", error)
        return 1
    import uvloop

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            clean = runner.run(serve(gateway, thread, member))
    except ServingError as error:
        logger.error("%s", error)
        return 1
    except (OSError, RuntimeError) as error:
        logger.error("the server can't start: %s", error)
        return 1
    if clean and gateway.control.is_loading:
        signals.end_process(0)  # the thread that loads a model can't be stopped, and the interpreter would wait for it
    if not clean:
        # A thread that still runs a model can't be stopped, and would abort the interpreter when it ends.
        signals.end_process(1)
    return 0
