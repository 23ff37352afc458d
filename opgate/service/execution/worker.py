"""An instance of a model: what runs its batches, one at a time."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Protocol

from opgate.service.core.request import Request
from opgate.service.execution.batch import Batch
from opgate.service.execution.session import ModelSession

logger = logging.getLogger("opgate.scheduler")


class Instance(Protocol):
    """One instance of a model."""

    session: ModelSession
    batch: Batch | None  # the one that it runs
    sent_ns: int  # when it got that

    def start(self, batch: Batch, loop: asyncio.AbstractEventLoop) -> None:
        """Hands over a batch. After its run, `finished` is called on `loop`."""

    def leave(self, request: Request) -> None:
        """Is told that nobody waits for a request any more."""

    def stop(self) -> None:
        """Ends what the instance needs, after the batches that it already has."""


Finished = Callable[[Instance, Batch], None]
#: Takes a request that was left open by its run, and now has its result or error.
Closed = Callable[[Request], None]


class Worker:
    """A thread that runs batches in a session. It wakes the event loop once for each batch."""

    def __init__(
        self, name: str, session: ModelSession, run: Callable[[ModelSession, Batch], None], finished: Finished
    ) -> None:
        self.session = session
        self.batch: Batch | None = None
        self.sent_ns = 0
        self._batches: queue.SimpleQueue[tuple[Batch, asyncio.AbstractEventLoop] | None] = queue.SimpleQueue()
        self._run = run
        self._finished = finished
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def start(self, batch: Batch, loop: asyncio.AbstractEventLoop) -> None:
        """Hands over a batch. After its run, `finished` is called on `loop`."""
        self.batch = batch
        self.sent_ns = perf_counter_ns()
        self._batches.put((batch, loop))

    def leave(self, request: Request) -> None:
        """Does nothing: a run ends when nobody waits for any of its requests."""

    def stop(self) -> None:
        """Ends the thread after the batches that it already has."""
        self._batches.put(None)

    def _work(self) -> None:
        while (item := self._batches.get()) is not None:
            batch, loop = item
            self._run(self.session, batch)
            try:
                loop.call_soon_threadsafe(self._finished, self, batch)
            except RuntimeError:
                logger.warning("the event loop closed before a batch of %d requests ended", len(batch.requests))
                return
            del item, batch  # the thread may wait long for the next ones
