"""Answers 403 over HTTP to clients that lack the token of a group of endpoints."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from opgate.service.api.status import error_body
from opgate.service.tokens import Token, group_of_route


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
        # The router's patterns and those of the groups needn't agree about line ends and the like.
        odd = not scope["path"].isprintable()
        token = None if odd else self._tokens.get(group_of_route(scope["path"]))
        if not odd and (token is None or token.is_in(Headers(scope=scope).get)):
            await self._app(scope, receive, send)
            return
        text = token.refusal("API") if token is not None else "the path has a character that can't be printed"
        scope["opgate.error"] = text
        body = error_body(text)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": body})
