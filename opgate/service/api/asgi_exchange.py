"""An exchange that a coroutine of the ASGI application waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import Request as HttpRequest

from opgate.service.core.errors import Kind, NotLoadedError, ServingError, detached
from opgate.service.core.request import Request
from opgate.service.exchange import Exchange
from opgate.service.gateway import Gateway, Served

T = TypeVar("T")
A = TypeVar("A")
# Where the scope of a request has when it asked for a model that was not in memory. It was counted for its client then.
_ASKED = "opgate.asked_ns"


class AsgiExchange(Exchange[A]):
    """The request of an ASGI route and its answer. The route reads the body, and sends the answer."""

    __slots__ = ("_cost", "_encode", "_http", "_result", "_submission")

    protocol = "http"

    def __init__(
        self,
        gateway: Gateway,
        http: HttpRequest,
        cost: Callable[[Request], int],
        encode: Callable[[Request], tuple[A, int]],
    ) -> None:
        """`cost` and `encode` are the `encoding_cost` and the `encode` of the exchange."""
        super().__init__(gateway)
        self.asked_ns = http.scope.pop(_ASKED, 0)  # it counts for the first of several parts
        loop = asyncio.get_running_loop()
        self._http = http
        self._cost = cost
        self._encode = encode
        self._submission: asyncio.Future[Request] = loop.create_future()
        self._result: asyncio.Future[A] = loop.create_future()

    async def run(self, served: Served, cost: int, decode: Callable[[], Request]) -> A:
        """Decodes a request, runs its model and returns the answer. Raises ServingError, CANCELED if the client leaves.

        `cost` is what decoding costs, as in `encoding_cost`.
        """
        try:
            await self.submit(served, cost, decode)
            if not self._result.done():
                await unless_left(self._http, self._result)
            return self._result.result()
        finally:
            self.cancel()

    async def submit(self, served: Served, cost: int, decode: Callable[[], Request]) -> Request:
        """Decodes a request and returns it when the model has got it. Raises ServingError. Whoever calls this calls
        `cancel` in the end.

        It waits until the body has been read even if the client leaves: until then its bytes are in use.
        """
        self.start(served, cost, decode)
        return await self._submission

    async def answer(self) -> A:
        """Waits until a request that was submitted has ended, and returns its answer. Raises its error."""
        await asyncio.wait((self._result,))
        return self._result.result()

    def cancel(self) -> None:
        """Ends the request if it has no answer yet."""
        self._result.cancel()
        if self.request is not None:
            self.request.cancel()

    @property
    def ended(self) -> bool:
        """Whether the route has an answer or an error, or waits for none."""
        return self._result.done()

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers of the request."""
        return self._http.headers.items()

    def decoded(self, served: Served, request: Request) -> None:
        """Goes on with the request."""
        self.note(request)
        super().decoded(served, request)

    def note(self, request: Request) -> None:
        """Gives the request to the journal, which the middleware tells how it ended."""
        self._http.scope["opgate.request"] = request

    def hand_over(self, served: Served, request: Request) -> None:
        """Tells `submit` that the model has got the request."""
        super().hand_over(served, request)
        if self.request is not None and not self._submission.done():
            self._submission.set_result(self.request)

    @property
    def peer(self) -> str:
        """The address of the client."""
        return self._http.client.host if self._http.client is not None else ""

    def encoding_cost(self, request: Request) -> int:
        """Returns what encoding the answer costs."""
        return self._cost(request)

    def encode(self, request: Request) -> tuple[A, int]:
        """Returns the answer and its bytes."""
        return self._encode(request)

    def hold(self, size: int) -> bool:
        """Counts the bytes of the answer, on a connection of the gateway."""
        counted = self._http.scope.get("opgate.counted")
        return counted is None or bool(counted.hold_answer(size))

    def send(self, answer: A, size: int) -> None:
        """Gives the answer to the route."""
        self._result.set_result(answer)

    def refuse(self, error: ServingError) -> None:
        """Raises an error in the route."""
        detached(error)
        for future in (self._submission, self._result):
            if not future.done():
                future.set_exception(error)
                future.exception()  # the route may wait for the other one, or for none


class _Search(AsgiExchange[Served]):
    """A request that has no model yet, because its model must be loaded."""

    __slots__ = ("_timeout_us",)

    def __init__(self, gateway: Gateway, http: HttpRequest, model: tuple[str, str], timeout_us: int) -> None:
        super().__init__(gateway, http, lambda _: 0, lambda _: _never())
        self.model, self.version = model
        self._timeout_us = timeout_us

    def timeout_us(self) -> int:
        """Returns the microseconds in which the client wants its answer, 0 for any number."""
        return self._timeout_us

    async def served(self) -> Served:
        """Returns the model when it is there. Raises ServingError."""

        def look() -> None:
            if (served := self.find(look)) is not None:
                self.send(served, 0)

        try:
            look()
            self._http.scope[_ASKED] = self.asked_ns
            return await self._result  # its body may not have been read, so nobody can tell whether the client left
        finally:
            self._result.cancel()


def _never() -> tuple[Served, int]:
    raise AssertionError("a request without a model has no answer")


def model_and_version(http: HttpRequest) -> tuple[str, str]:
    """Returns the model that the path of a request names, and its version, "" for any."""
    return http.path_params.get("model", ""), http.path_params.get("version", "")


async def found(
    gateway: Gateway, http: HttpRequest, model: tuple[str, str] | None = None, *, timeout_us: int = 0
) -> Served:
    """Returns a model for a request: of this name and version, or the one that its path names. Loads it first if it is
    not in memory, unless the client sends more requests than it may.

    Raises ServingError, also if that takes longer than `timeout_us`.
    """
    model = model or model_and_version(http)
    try:
        return gateway.find(*model)
    except NotLoadedError:
        return await _Search(gateway, http, model, timeout_us).served()


async def unless_left(http: HttpRequest, work: Awaitable[T]) -> T:
    """Waits for work. Cancels it if the client leaves, and raises ServingError (CANCELED). The body has been read."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(http))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
    finally:
        leaving.cancel()
        working.cancel()
    raise ServingError(Kind.CANCELED, "the client left")


async def _left(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
