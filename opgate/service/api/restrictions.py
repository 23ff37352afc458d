"""Answers 403 over HTTP to clients that lack the token of a group of endpoints."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from opgate.service.api.status import error_body
from opgate.service.tokens import Token, refusal_of_route


class RestrictedRoutes:
    """ASGI middleware that answers 403 to a request for a restricted route without its token."""

    def __init__(self, app: ASGIApp, tokens: Mapping[str, Token]) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        text = refusal_of_route(scope["path"], self._tokens, Headers(scope=scope).get)
        if not text:
            await self._app(scope, receive, send)
            return
        scope["opgate.error"] = text
        body = error_body(text)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": body})
