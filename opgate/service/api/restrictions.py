"""Answers 403 over HTTP to clients that lack the token of a group of endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from re import Pattern

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from opgate.service.api.status import error_body
from opgate.service.tokens import Token


class RestrictedRoutes:
    """ASGI middleware that answers 403 to a request for a restricted route without its token.

    A path that belongs to no group needs one of the tokens, so that it isn't open to everybody.
    """

    def __init__(self, app: ASGIApp, tokens: Mapping[str, Token], groups: Sequence[tuple[Pattern[str], str]]) -> None:
        """`groups` are those of the router's patterns, in its order: the first that fits decides."""
        self._app = app
        self._tokens = tokens
        self._groups = groups

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        text = self._refusal(scope["path"], Headers(scope=scope)) if scope["type"] == "http" else ""
        if not text:
            await self._app(scope, receive, send)
            return
        scope["opgate.error"] = text
        body = error_body(text)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _refusal(self, path: str, headers: Headers) -> str:
        """Returns why a client may not have a path, "" if it may."""
        group = next((group for pattern, group in self._groups if pattern.match(path)), "")
        if group:
            token = self._tokens.get(group)
            return "" if token is None or token.is_in(headers.get) else token.refusal("API")
        if any(token.is_in(headers.get) for token in self._tokens.values()):
            return ""
        return "the path belongs to no group of endpoints and is restricted, expecting one of the tokens"
