"""A request on its way through: named arrays in, a callback, named arrays or an error out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from time import perf_counter_ns
from typing import Any

import numpy as np

from service.errors import Kind, ServingError

Array = np.ndarray[Any, Any]


class Request:
    """One inference. Created and completed on the event loop's thread.

    `inputs` maps names to arrays of the checked wire shapes (batch dimension first where the model batches).
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
        self.weight = weight  # elements of ragged inputs: what the cost of a row depends on beside its key
        self.received_ns = perf_counter_ns()
        self.started_ns = 0
        self.deadline_ns = 0
        self.cancelled = False
        self.context: Any = None  # the owner's, never read by execution
        self.done: Callable[[Request], None] = _nobody
        self.result: dict[str, Array] | None = None
        self.error: ServingError | None = None

    def fail(self, error: ServingError) -> None:
        """Sets the error and calls back."""
        self.error = error
        self.done(self)


def _nobody(request: Request) -> None:
    return None


async def run(submit: Callable[[Request], None], request: Request) -> dict[str, Array]:
    """Submits and waits. A cancelled waiter marks the request, so that it is dropped if it still queues."""
    if request.done is not _nobody:
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
