"""A request on its way through the gateway: named arrays in, named arrays or an error out, and a callback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from time import perf_counter_ns
from typing import Any

import numpy as np

from service.errors import Kind, ServingError

Array = np.ndarray[Any, Any]


class Request:
    """One inference. It is created and completed on the event loop's thread.

    `inputs` maps names to arrays whose shapes have been checked (batch dimension first if the model batches).
    `rows` is the batch size, 1 for a model that doesn't batch. Requests with equal `key` may share a batch.
    `done` is called once, with the request, after `result` or `error` is set. Times are perf_counter nanoseconds.
    """

    __slots__ = (
        "cancelled", "context", "deadline_ns", "done", "error", "id", "inputs", "key", "outputs",
        "received_ns", "result", "rows", "started_ns", "timeout_us", "weight",
    )  # fmt: skip

    def __init__(
        self,
        inputs: dict[str, Array],
        rows: int,
        key: Hashable,
        outputs: tuple[str, ...],
        *,
        id: str = "",
        timeout_us: int = 0,
        weight: int = 0,
    ) -> None:
        self.inputs = inputs
        self.rows = rows
        self.key = key
        self.outputs = outputs
        self.id = id
        self.timeout_us = timeout_us
        self.weight = weight  # elements of ragged inputs: the cost of a run depends on them and on the key
        self.received_ns = perf_counter_ns()
        self.started_ns = 0
        self.deadline_ns = 0
        self.cancelled = False
        self.context: Any = None  # for the code that made the request; execution never reads it
        self.done: Callable[[Request], None] = _no_callback
        self.result: dict[str, Array] | None = None
        self.error: ServingError | None = None

    def fail(self, error: ServingError) -> None:
        """Sets the error and calls `done`."""
        self.error = error
        self.done(self)


def _no_callback(request: Request) -> None:
    return None


async def run(submit: Callable[[Request], None], request: Request) -> dict[str, Array]:
    """Submits a request, waits for it and returns its result. Raises ServingError if it failed.

    If the waiting task is cancelled, the request is marked as cancelled, and the scheduler drops it if it still waits.
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
            request.cancelled = True
            raise
    if request.error is not None:
        raise request.error
    if request.result is None:
        raise ServingError(Kind.INTERNAL, "the request ended without a result")
    return request.result
