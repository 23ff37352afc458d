"""One inference request of a client and its answer, whatever the protocol."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from time import perf_counter_ns
from typing import Generic, TypeVar

from opgate.service.client_limits import ClientLimits
from opgate.service.core.errors import (
    Kind,
    NotLoadedError,
    ServingError,
    detached,
    internal,
    limited,
    not_loaded_in_time,
    of_system,
)
from opgate.service.core.request import Request
from opgate.service.gateway import LONG_COST, Gateway, Served
from opgate.service.header_forwarding import forward
from opgate.service.telemetry.journal import NO_IDS, Answer, Ids

T = TypeVar("T")
A = TypeVar("A")


class Exchange(Generic[A]):
    """One request of a client, from its bytes to its answer, which is an `A`.

    The request is decoded and the answer is encoded here or on a thread, by what that costs. Shared memory is read, the
    request is submitted, and what fails becomes an error for the client. A class for a protocol says how requests are
    decoded, how answers are encoded and sent, and whether the client still waits. Only the event loop's thread uses it,
    but for `decode` and `encode`.

    It is long, because a request may end at each of these steps, and every protocol must do the same then.
    """

    __slots__ = ("asked_ns", "began_ns", "gateway", "ids", "model", "request", "version")

    protocol = ""

    def __init__(self, gateway: Gateway, model: str = "", version: str = "", ids: Ids = NO_IDS) -> None:
        """`model` and `version` are those that the client names, `ids` how it names the request."""
        self.gateway = gateway
        self.model = model
        self.version = version
        self.ids = ids
        self.request: Request | None = None  # when it has been decoded
        self.began_ns = perf_counter_ns()
        self.asked_ns = 0  # when it asked for a model that was not in memory

    # What a protocol says.

    @property
    def ended(self) -> bool:
        """Whether the client has an answer, or waits for none any more."""
        raise NotImplementedError

    @property
    def route(self) -> str:
        """What the client called, for the journal."""
        raise NotImplementedError

    @property
    def peer(self) -> str:
        """The address of the client."""
        raise NotImplementedError

    @property
    def headers(self) -> Iterable[tuple[str, str | bytes]]:
        """The headers that the client sent with the request, with names in lower case."""
        raise NotImplementedError

    def timeout_us(self) -> int:
        """Returns the microseconds in which the client wants its answer, before the request is decoded. 0 for any
        number, or if that can't be told."""
        return 0

    def encoding_cost(self, request: Request) -> int:
        """Returns what encoding the answer costs, in bytes of JSON that cost the same."""
        raise NotImplementedError

    def encode(self, request: Request) -> tuple[A, int]:
        """Returns the answer and its bytes. Raises ServingError."""
        raise NotImplementedError

    def hold(self, size: int) -> bool:
        """Counts the bytes of an answer until the client has taken it. Returns whether there is room for them."""
        raise NotImplementedError

    def send(self, answer: A, size: int) -> None:
        """Answers the client."""
        raise NotImplementedError

    def refuse(self, error: ServingError) -> None:
        """Answers the client with an error."""
        raise NotImplementedError

    def leave(self) -> None:
        """Is called in place of `send` and `refuse` where the exchange has ended."""

    # What is the same for all.

    def find(self, again: Callable[[], None]) -> Served | None:
        """Returns the model that the client names. Refuses the request, and returns None, if there is none.

        If the model is loaded on demand, it is loaded first. Then this returns None, and `again` is called later.
        """
        try:
            return self.gateway.find(self.model, self.version)
        except NotLoadedError:
            self._bring(again)
        except ServingError as error:
            self.refuse(error)
        return None

    def _bring(self, again: Callable[[], None]) -> None:
        """Loads the model, and calls `again` then. Refuses the request if that fails or takes longer than its
        timeout."""
        limits = self.gateway.client_limits
        if limits is not None and not self.asked_ns and (beyond := self._beyond(limits)) is not None:
            self.refuse(beyond)
            return
        waits, now = True, perf_counter_ns()
        self.asked_ns = self.asked_ns or now

        def end(error: ServingError | None) -> None:
            nonlocal waits
            if not waits:
                return
            waits = False
            if timer is not None:
                timer.cancel()
            if self.ended:
                self.leave()
            elif error is not None:
                self.refuse(error)
            else:
                again()

        timer = None
        if timeout_us := self.timeout_us():
            left = timeout_us / 1e6 - (now - self.asked_ns) / 1e9
            timer = asyncio.get_running_loop().call_later(
                max(0.0, left), end, not_loaded_in_time(self.model, timeout_us)
            )
        self.gateway.bring(self.model, self.version, end)

    def _beyond(self, limits: ClientLimits) -> ServingError | None:
        """Counts the request for its client. Returns the error for a client that sends more than it may."""
        client, rate, seconds = limits.take(self.headers, self.peer)
        return limited(client, rate, seconds) if seconds else None

    def start(self, served: Served, cost: int, decode: Callable[[], Request]) -> None:
        """Decodes a request, runs its model and answers. `cost` is what decoding costs, as in `encoding_cost`.

        The answer may be sent before this returns. A client that sends more than it may is refused.
        """
        limits = self.gateway.client_limits
        if limits is not None and not self.asked_ns and (error := self._beyond(limits)) is not None:
            served.failed(error)
            self.refuse(error)
            return
        if cost < LONG_COST:
            self._read(served, decode, self.decoded)
        else:
            self._read_on_thread(served, decode, self.decoded)

    def _read_on_thread(
        self, served: Served, read: Callable[[], Request], then: Callable[[Served, Request], None]
    ) -> None:
        """Reads a request on a thread, and hands it on. The model stays loaded until then."""

        def done(finished: Future[Request]) -> None:
            try:
                if self.ended:
                    self.leave()
                else:
                    self._read(served, finished.result, then)
            finally:
                served.model.release()

        try:
            self.on_thread(read, done)
            served.model.hold()  # `done` is called in a later turn of the loop
        except Exception as error:
            self.fail(error)

    def _read(self, served: Served, read: Callable[[], Request], then: Callable[[Served, Request], None]) -> None:
        try:
            try:
                request = read()
            except Exception as error:
                served.failed(error)
                raise
            then(served, request)
        except Exception as error:
            self.fail(error)
        finally:
            del read  # closure, exception, traceback and this frame would form a reference cycle

    def decoded(self, served: Served, request: Request) -> None:
        """Goes on with the request: reads what of it lies in shared memory, and submits it."""
        self.request = request
        if self.asked_ns:
            request.received_ns = self.asked_ns  # it has waited for its model since then
        if (pattern := self.gateway.forwarded.get(self.protocol)) is not None:
            forward(pattern, self.headers, request)
        if (shared := request.shared) is not None and shared.unread:
            read = lambda: shared.read(request)  # noqa: E731
            if shared.cost < LONG_COST:
                self._read(served, read, self.hand_over)
            else:
                self._read_on_thread(served, read, self.hand_over)
        else:
            self.hand_over(served, request)

    def hand_over(self, served: Served, request: Request) -> None:
        """Gives the model the request, which may have ended then."""
        if self.gateway.observed:
            self.gateway.choose(served.model, request)
        self.gateway.submit(served.model, request, self.finish)

    def finish(self, request: Request) -> None:
        """Answers. The gateway calls this when the request has a result or an error."""
        if self.ended:
            self.leave()
            return
        if request.error is not None:
            self.refuse(request.error)
            return
        try:
            if self.encoding_cost(request) >= LONG_COST:
                self.on_thread(lambda: self.encode(request), self._encoded)
                return
            encoded = self.encode(request)
        except Exception as error:
            self.fail(error)
            return
        self._answer(*encoded)

    def _encoded(self, encoded: Future[tuple[A, int]]) -> None:
        if self.ended:
            self.leave()
            return
        try:
            result = encoded.result()
        except Exception as error:
            self.fail(error)
            return
        finally:
            del encoded  # future, exception, traceback and this frame would form a reference cycle
        self._answer(*result)

    def _answer(self, answer: A, size: int) -> None:
        if self.hold(size):
            self.send(answer, size)
        else:
            self.refuse(self.gateway.no_room(size))

    def on_thread(self, work: Callable[[], T], done: Callable[[Future[T]], None]) -> None:
        """Calls `work` on a thread unless the exchange has ended by then, and `done` with its future on the loop."""
        loop = asyncio.get_running_loop()

        def unless_ended() -> T:
            if self.ended:
                raise ServingError(Kind.CANCELED, "the client left")
            return work()

        future = self.gateway.work_on_thread(unless_ended)
        future.add_done_callback(lambda finished: loop.call_soon_threadsafe(done, finished))

    def fail(self, error: Exception, what: str = "a request") -> None:
        """Answers the client with an error. One that is no ServingError is the gateway's own: the log says that `what`
        failed."""
        if isinstance(error, ServingError):
            self.refuse(error)
            return
        logging.getLogger(f"opgate.{self.protocol}").error("%s failed", what, exc_info=error)
        if isinstance(error, OSError):  # its text may name a path
            self.refuse(of_system(error))
        else:
            self.refuse(internal(f"{type(error).__name__}: {error}"))
        detached(error)

    def tell(self, code: str, level: int, error: str) -> None:
        """Tells the journal how the request ended: the status, and the severity and the text of an error."""
        ns = perf_counter_ns() - self.began_ns
        model, version = self.model[:256], self.version[:32]
        answer = Answer(self.protocol, self.route, code, ns, model, version, self.ids, self.peer)
        self.gateway.journal.answered(answer, self.request, error, level)
