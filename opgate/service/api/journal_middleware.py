"""Counts and logs the answers of the ASGI application, and sends the client's names of a request back."""

from __future__ import annotations

import logging
from time import perf_counter_ns

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from opgate.service.api.status import error_body
from opgate.service.gateway import Gateway
from opgate.service.telemetry.journal import Answer, http_level, ids_of

logger = logging.getLogger("opgate.http")


class JournalMiddleware:
    """Wraps the application, and answers if it raises.

    Handlers may put the text of an error and the inference request into the scope.
    """

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = perf_counter_ns()
        status = 0
        headers = dict(scope["headers"])
        ids = ids_of(
            headers.get(b"x-request-id", b"").decode("latin-1"), headers.get(b"traceparent", b"").decode("latin-1")
        )

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                more = [(name.encode(), value.encode()) for name, value in ids.pairs()]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except Exception as error:
            scope["opgate.error"] = text = f"{type(error).__name__}: {error}"
            logger.exception("a request failed")
            if status:
                raise  # the answer has begun, and can only be cut off
            await Response(error_body(text), 500, media_type="application/json")(scope, receive, sent)
        finally:
            path = scope.get("path_params", {})
            route = getattr(scope.get("route"), "path", "none").replace("/versions/{version}", "")
            client = scope.get("client")
            answer = Answer(
                "http",
                route,
                str(status),
                perf_counter_ns() - began,
                str(path.get("model", "")),
                str(path.get("version", "")),
                ids,
                client[0] if client else "",
            )
            failure = scope.get("opgate.error", "") if status >= 400 else ""
            # A connection keeps the scope of its last request, which must not keep the tensors with it.
            self._gateway.journal.answered(answer, scope.pop("opgate.request", None), failure, http_level(status))
