"""A request on its way through the gateway: named arrays in, named arrays or an error out, and a callback."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from collections.abc import Sequence as SequenceOf
from time import perf_counter_ns
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from opgate.service.core.errors import Kind, ServingError

Array = np.ndarray[Any, Any]


class Sequence(NamedTuple):
    """The place of a request in a sequence of requests that share state. `id` is not 0 and not empty."""

    id: int | str
    start: bool
    end: bool


class Options(NamedTuple):
    """What a client asks of the way in which its request runs."""

    timeout_us: int = 0  # 0 for none
    priority: int = 0  # 1 is the highest; 0 is the model's default
    sequence: Sequence | None = None
    empty_final_response: bool = False  # whether a stream without responses shall end with an empty one
    parameters: Mapping[str, bool | int | float | str] = MappingProxyType({})  # the client's own, for models in Python


class Times(NamedTuple):
    """When a request came, left the queue, ran in the engine and got its result, in perf_counter nanoseconds.

    A time is 0 if it did not come to that.
    """

    received_ns: int
    started_ns: int
    run_begin_ns: int
    run_end_ns: int
    ended_ns: int


class OpCall(NamedTuple):
    """One call of a custom op in a run, in perf_counter nanoseconds. A tensor is "f32[2,3]", an absent one "none".

    On a GPU the time is that of the launch.
    """

    op: str
    node: str
    begin_ns: int
    end_ns: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class StepRun(NamedTuple):
    """What a step of a pipeline did: its model, its times, whether it failed, and the calls of ops if they were
    recorded."""

    model: str
    times: Times
    failed: bool
    op_calls: SequenceOf[OpCall] = ()


class Response(NamedTuple):
    """One of several responses to a request. An error need not be the last one."""

    outputs: dict[str, Array]
    final: bool = False
    error: ServingError | None = None
    parameters: Mapping[str, bool | int | float | str] = MappingProxyType({})


_NO_OPTIONS = Options()
# So many responses of one request, or so many bytes of them, wait for the client without being counted.
_FREELY, _FREELY_BYTES = 16, 1 << 20
# Bytes of a response beside its elements.
_BYTES_BESIDE = 512


class Budget(Protocol):
    """The bytes that requests and answers may hold, all together."""

    def hold(self, size: int, small: bool = False, /) -> bool:
        """Counts bytes. Returns whether there was room for them."""

    def let_go(self, size: int, /) -> None:
        """Counts bytes no more."""


class _Stream:
    """Responses that nobody has taken yet, each with the bytes that the budget counts of it."""

    __slots__ = ("budget", "bytes", "changed", "waiting")

    def __init__(self, budget: Budget | None) -> None:
        self.budget = budget
        self.waiting: deque[tuple[Response, int, int]] = deque()
        self.bytes = 0
        self.changed = asyncio.Event()

    def take(self, response: Response) -> bool:
        """Takes a response. Returns whether there is room for it."""
        size, counted = _bytes_of(response.outputs), 0
        if len(self.waiting) >= _FREELY and self.bytes + size > _FREELY_BYTES:
            if self.budget is None:
                return False
            if not self.budget.hold(size):
                self.budget.let_go(size)
                return False
            counted = size
        self.waiting.append((response, size, counted))
        self.bytes += size
        self.changed.set()
        return True

    def give(self) -> Response:
        """Returns the first one."""
        response, size, counted = self.waiting.popleft()
        self.bytes -= size
        if counted and self.budget is not None:
            self.budget.let_go(counted)
        return response

    def drop(self) -> None:
        """Lets go of all of them."""
        while self.waiting:
            self.give()

    __del__ = drop


class Request:
    """One inference. It is created and completed on the event loop's thread.

    `inputs` maps names to arrays whose shapes have been checked (batch dimension first if the model batches).
    `rows` is the batch size, 1 for a model that doesn't batch. Requests with equal `key` may share a batch.
    `done` is called once, with the request, after `result` or `error` is set. Times are perf_counter nanoseconds.
    """

    __slots__ = (
        "again", "budget", "context", "done", "ended", "ended_ns", "error", "group", "id", "inputs", "key",
        "leave", "op_calls", "open", "options", "origin", "outputs", "parameters", "received_ns", "renew", "result",
        "rows", "run_ns", "shared", "started_ns", "steps", "stream", "timer", "traced", "weight",
    )  # fmt: skip

    def __init__(
        self,
        inputs: dict[str, Array],
        rows: int,
        key: Hashable,
        outputs: tuple[str, ...],
        *,
        id: str = "",
        options: Options = _NO_OPTIONS,
        weight: int = 0,
    ) -> None:
        self.inputs = inputs
        self.rows = rows
        self.key = key
        self.outputs = outputs
        self.id = id
        self.options = options
        self.weight = weight  # elements of ragged and padded inputs: the cost of a run depends on them and on the key
        self.group: Hashable = None  # the values that the requests of a batch must have in common, if the model asks
        self.received_ns = perf_counter_ns()
        self.started_ns = 0
        # The client's request that this one runs for. That one has the timeout, and gets the responses of a stream.
        self.origin: Request | None = None
        # For the code that made the request; execution never reads them. `shared` has its tensors in shared memory.
        self.context: Any = None
        self.shared: Any = None
        self.run_ns = (0, 0)  # when the engine began and ended
        self.ended_ns = 0  # when the result or the error was there
        # Whether `done` has been called. The run of a request that left or ran out of time may go on without it.
        self.ended = False
        self.steps: SequenceOf[StepRun] = ()  # of a pipeline
        self.traced: bool | None = None  # whether it was chosen for a trace, None if that is not decided
        # The calls of ops in its run, which the requests of a batch share. None if nobody wants to know them.
        self.op_calls: SequenceOf[OpCall] | None = None
        # Gives up the place in the queue and the run. The executor that has the request sets it.
        self.leave: Callable[[Request, ServingError], None] | None = None
        self.timer: asyncio.TimerHandle | None = None  # of the timeout
        self.done: Callable[[Request], None] = _no_callback
        self.result: dict[str, Array] | None = None
        self.parameters: Mapping[str, bool | int | float | str] = {}  # of the result, from a model in Python
        self.budget: Budget | None = None  # of responses that wait for the client
        self.stream: _Stream | None = None  # of the responses of a model that gives several
        self.error: ServingError | None = None
        self.open = False  # whether its run is over and its responses are still to come
        self.again = False  # whether its run is over, and the model wants it once more
        self.renew: Callable[[], None] | None = None  # is called before it runs once more

    @property
    def unwanted(self) -> bool:
        """Whether nobody waits for the result any more."""
        return (self.origin or self).ended

    @property
    def result_bytes(self) -> int:
        """The bytes of the arrays of the result, 0 if there is none. Texts count as the pointers to them."""
        return sum(array.nbytes for array in (self.result or {}).values())

    def times(self) -> Times:
        """Returns when what happened."""
        return Times(self.received_ns, self.started_ns, *self.run_ns, self.ended_ns)

    def fail(self, error: ServingError) -> None:
        """Sets the error and calls `done`."""
        self.error = error
        self.end()

    def end(self) -> None:
        """Calls `done`. The result or the error has been set."""
        self.ended_ns = perf_counter_ns()
        self.ended = True
        self.leave = None
        if self.stream is not None:
            self.stream.changed.set()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.done(self)

    async def respond(self, response: Response) -> None:
        """Takes one of several responses, maybe the last one. Waits for the client to take those before it if the
        budget has no room."""
        stream = self.stream = self.stream or _Stream(self.budget)
        while not self.ended and not stream.take(response):
            stream.changed.clear()
            await stream.changed.wait()

    async def responses(self) -> AsyncIterator[Response]:
        """Yields the responses as they come, until the request has ended."""
        stream = self.stream = self.stream or _Stream(self.budget)
        try:
            while True:
                while stream.waiting:
                    yield stream.give()
                    stream.changed.set()
                if self.ended:
                    return
                stream.changed.clear()
                await stream.changed.wait()
        finally:
            stream.drop()

    def cancel(self) -> None:
        """Ends the request of a client that has left. It gives up its place in the queue and its run at once."""
        self._leave(ServingError(Kind.CANCELED, "the client left"))

    def expire_after(self, timeout_us: int, then: Callable[[Request], None] | None = None) -> None:
        """Ends the request, or calls `then`, when this time since its arrival is over. Does nothing if it is 0."""
        if timeout_us:
            left = timeout_us / 1e6 - (perf_counter_ns() - self.received_ns) / 1e9
            # uvloop's timers count milliseconds, and may fire half of one too early.
            expired = Request._expire if then is None else then
            self.timer = asyncio.get_running_loop().call_later(max(0.0, left) + 0.0005, expired, self)

    def _expire(self) -> None:
        waited = (perf_counter_ns() - self.received_ns) // 1000
        self._leave(ServingError(Kind.DEADLINE, f"the request's timeout ran out after {waited} us"))

    def _leave(self, error: ServingError) -> None:
        if not self.ended and self.leave is not None:
            self.leave(self, error)


def _no_callback(request: Request) -> None:
    return None


def _bytes_of(outputs: Mapping[str, Array]) -> int:
    """Returns about how many bytes a response takes."""
    size = _BYTES_BESIDE
    for array in outputs.values():
        size += array.nbytes
        if array.dtype.kind == "O":
            size += sum(map(len, array.reshape(-1).tolist()))
    return size


async def give(request: Request, response: Response, seconds: float | None) -> None:
    """Gives a client one of the responses to its request, when there is room for it.

    A client that takes nothing for so many seconds has left, also if its protocol doesn't say so. None is any number.
    """
    try:
        async with asyncio.timeout(seconds):
            await request.respond(response)
    except TimeoutError:
        request.cancel()


async def run(submit: Callable[[Request], None], request: Request) -> dict[str, Array]:
    """Submits a request, waits for it and returns its result. Raises ServingError if it failed.

    If the waiting task is cancelled, the request ends.
    """
    if request.done is not _no_callback:
        raise RuntimeError("the request already has a callback")
    future: asyncio.Future[None] | None = None

    def done(_: Request) -> None:
        if future is not None and not future.done():
            future.set_result(None)

    request.done = done
    submit(request)
    if request.result is None and request.error is None:
        future = asyncio.get_running_loop().create_future()
        try:
            await future
        except asyncio.CancelledError:
            request.cancel()
            raise
    if request.error is not None:
        raise request.error
    if request.result is None:
        raise ServingError(Kind.INTERNAL, "the request ended without a result")
    return request.result
