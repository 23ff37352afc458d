"""The instances of a model: each runs batches, one at a time."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Protocol

from opgate.service.core.request import Request
from opgate.service.execution.batch import Batch
from opgate.service.execution.rate_limiter import Claim
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


class InstanceThread:
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


class Instances:
    """The instances of a model version, of which a batch gets an idle one. A rate limiter may have a say in that."""

    def __init__(self, instances: Sequence[Instance], claims: Sequence[Claim], *, in_turn: bool) -> None:
        """`claims` has one entry for each instance, or none without a rate limiter. Idle instances run `in_turn`, else
        the one that ran last runs next."""
        self.all = instances
        self.idle = deque(instances)
        self._claims = dict(zip(instances, claims, strict=bool(claims)))
        self._next = self.idle.popleft if in_turn else self.idle.pop

    def take(self) -> Instance:
        """Takes an idle instance, if it can be one that isn't down."""
        instance = self._next()
        if instance.session.down:
            for other in self.idle:
                if not other.session.down:
                    self.idle.remove(other)
                    self.idle.append(instance)
                    return other
        return instance

    def take_with_resources(self) -> Instance | None:
        """Takes an idle instance that gets its resources from the rate limiter now, None if there is none."""
        for instance in sorted(self.idle, key=lambda instance: self._claims[instance].turn):
            if self._claims[instance].take():
                self.idle.remove(instance)
                return instance
        return None

    def release(self, instance: Instance, ns: int) -> None:
        """Takes an instance as idle after a run of so many nanoseconds."""
        if self._claims:
            self._claims[instance].give_back(ns)
        self.idle.append(instance)

    def withdraw(self) -> None:
        """Lets other models have the resources that nothing needs here now."""
        for instance in self.idle:
            self._claims[instance].withdraw()

    async def close(self) -> None:
        """Ends the threads, and frees the sessions and the resources."""
        for instance in self.all:
            instance.stop()
        for session in {instance.session for instance in self.all}:
            await asyncio.to_thread(session.close)  # a large model takes a while
        for claim in self._claims.values():
            claim.remove()
