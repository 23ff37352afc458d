"""Lets the answers of a model out in the order in which its requests came."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

from opgate.service.core.request import Request

# Gives a request the answer that it has.
_Answer: TypeAlias = Callable[[], None]


class OrderedAnswers:
    """The requests of a model without an answer, in order of arrival, and the answers that wait for earlier ones."""

    def __init__(self) -> None:
        self._requests: OrderedDict[Request, _Answer | None] = OrderedDict()

    def add(self, request: Request) -> None:
        """Adds a request that came after all others."""
        self._requests[request] = None

    def answer(self, request: Request, answer: _Answer) -> None:
        """Calls `answer` once all earlier requests have ended, maybe now."""
        self._requests[request] = answer
        self._let_out()

    def leave(self, request: Request) -> None:
        """Forgets a request that ended without an answer of the model. Later ones don't wait for it any more."""
        if request in self._requests:
            del self._requests[request]
            self._let_out()

    def _let_out(self) -> None:
        # An answer can submit requests and end others, so each turn looks at the first request anew.
        while self._requests:
            request, answer = next(iter(self._requests.items()))
            if answer is None:
                return
            del self._requests[request]
            answer()
