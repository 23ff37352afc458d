"""A thread that runs batches."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from time import perf_counter_ns

from opgate.service.execution.batch import Batch
from opgate.service.execution.session import ModelSession

logger = logging.getLogger("opgate.scheduler")


class Worker:
    """One instance of a model: a thread that runs batches in a session. It wakes the event loop once for each batch."""

    def __init__(
        self,
        name: str,
        session: ModelSession,
        run: Callable[[ModelSession, Batch], None],
        finished: Callable[[Worker, Batch], None],
    ) -> None:
        self.session = session
        self.batch: Batch | None = None  # the one that it runs
        self.sent_ns = 0  # when it got that
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
