"""The endpoints over HTTP. One table of them makes the router, guards them with tokens and describes them in the
OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import Response

from opgate.service.repository.loader import LoadedModel

Endpoint = Callable[..., Awaitable[Response]]
#: An operation object of the OpenAPI document.
Operation = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint. The clients of a group of endpoints may need a token. `described` is its description, a function of
    the model for a path that names one, None if the document leaves it out."""

    method: str
    path: str
    endpoint: Endpoint
    group: str
    described: Operation | Callable[[LoadedModel], Operation | None] | None = None


def of_models(
    method: str,
    rest: str,
    endpoint: Endpoint,
    group: str,
    described: Callable[[LoadedModel], Operation | None],
    of: str = "/v2/models",
) -> Iterator[Route]:
    """Yields the routes of an endpoint of models and of their versions. `rest` is what follows the name in the path."""
    for version in ("", "/versions/{version}"):
        yield Route(method, f"{of}/{{model}}{version}{rest}", endpoint, group, described)
