"""Headers of HTTP and metadata of gRPC that become parameters of a request, for models in Python to read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opgate.service.core.request import Request

_CASE = "(?-i)"


def read_pattern(text: str) -> re.Pattern[str] | None:
    """Returns the pattern of `--http-header-forward-pattern`, None for an empty one. It ignores case unless it begins
    with "(?-i)".

    Raises ValueError for what is no regular expression.
    """
    if not text:
        return None
    try:
        if text.startswith(_CASE):
            return re.compile(text.removeprefix(_CASE))
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"expected a regular expression, got {text!r}: {error}") from None


def forward(pattern: re.Pattern[str], headers: Iterable[tuple[str, str | bytes]], request: Request) -> None:
    """Adds the headers whose names have a match to the parameters of a request. A parameter of the request's own stays
    as it is, and so does one whose header has no text as its value."""
    found = {name: _text(value) for name, value in headers if isinstance(value, str) and pattern.search(name)}
    if found:
        own = request.options.parameters
        request.options = request.options._replace(parameters={**found, **own})


def _text(value: str) -> str:
    """Returns the value of a header, which HTTP gives as Latin-1, as UTF-8 if it is that."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value
