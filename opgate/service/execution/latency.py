"""Refuses requests that a model is not likely to answer within the `max_latency_ms` of its config.

The estimates come from what waits and runs before a request, and from what runs took.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from time import perf_counter_ns
from typing import NamedTuple

from opgate.service.core.errors import ServingError, too_slow
from opgate.service.core.request import Request
from opgate.service.core.spec import ModelSpec
from opgate.service.execution.cost import Profile, RunTimes
from opgate.service.execution.instance import Instance
from opgate.service.execution.waiting import Waiting

# So many batches of a shape are looked at one by one.
_PORTIONS = 64


class Work(NamedTuple):
    """Rows of one input shape that must run, and what runs of that shape take."""

    rows: int
    times: RunTimes


def answered_in(own: Work, ahead: Iterable[Work], busy_ns: Sequence[float], max_rows: int) -> float:
    """Returns in how many nanoseconds the last row of `own` has an answer, 0 if that is not known.

    `ahead` is what other lines run before. Runs have at most `max_rows` rows. `busy_ns` says for each instance how long
    it is still busy. Whichever is free first runs the next batch.
    """
    full = (own.rows - 1) // max_rows
    run = own.times.estimate(own.rows - full * max_rows)
    if not run:
        return 0.0
    free = list(busy_ns)
    heapq.heapify(free)
    for work in (*ahead, Work(full * max_rows, own.times)):
        for batch in _batches(work, max_rows):
            heapq.heapreplace(free, free[0] + batch)
    return free[0] + run


def still_busy(estimate_ns: float, passed_ns: float) -> float:
    """Returns how long a run is likely to go on that was estimated to take `estimate_ns`.

    A run that is late by d is assumed to need another d. So the queue doesn't fill behind a run that hangs.
    """
    return abs(estimate_ns - passed_ns)


def _batches(work: Work, max_rows: int) -> Iterator[float]:
    """Yields the nanoseconds of the batches of these rows. Very many batches are taken together in portions."""
    full, rest = divmod(work.rows, max_rows)
    if full:
        portions = min(full, _PORTIONS)
        yield from itertools.repeat(full * work.times.estimate(max_rows) / portions, portions)
    if rest:
        yield work.times.estimate(rest)


class LatencyLimit:
    """The limit of one model. Every method runs on the event loop's thread."""

    def __init__(self, spec: ModelSpec, limit_ns: int, profile: Profile, waiting: Waiting) -> None:
        self._name = spec.name
        self._max_rows = max(1, spec.max_batch_size)
        self._limit_ns = limit_ns
        self._profile = profile
        self._waiting = waiting

    def refusal(self, request: Request, instances: Sequence[Instance]) -> ServingError | None:
        """Returns the error of a request that has come now if it is likely to be answered too late."""
        curve = self._profile.curves.get(request.key)
        if curve is None or curve.times is None:
            return None
        now = perf_counter_ns()
        rows, others = self._waiting.ahead_of(request)
        own = Work(rows + request.rows, curve.times)
        if curve.cheap(request.rows):  # runs on the event loop wait for no instance
            return self._refuse(request, now, answered_in(own, [], [0.0], self._max_rows))
        ahead = [Work(rows, times) for key, rows in others if (times := self._times(key)) is not None]
        busy = [self._busy_ns(instance, now) for instance in instances]
        error = self._refuse(request, now, answered_in(own, ahead, busy, self._max_rows))
        if error is not None and not curve.times.knows(batch := min(own.rows, self._max_rows)):
            curve.times.deny(batch)  # it never ran, and the refusals keep it from running
        return error

    def hopeless(self, request: Request) -> ServingError | None:
        """Returns the error of a waiting request that is likely to be answered too late even if it runs now, alone."""
        times = self._times(request.key)
        return None if times is None else self._refuse(request, perf_counter_ns(), times.estimate(request.rows))

    def _refuse(self, request: Request, now_ns: int, left_ns: float) -> ServingError | None:
        expected = now_ns - request.received_ns + left_ns
        return too_slow(self._name, expected, self._limit_ns) if left_ns and expected > self._limit_ns else None

    def _busy_ns(self, instance: Instance, now_ns: int) -> float:
        batch = instance.batch
        if batch is None:
            return 0.0
        times = self._times(batch.requests[0].key)
        estimate = times.estimate(batch.rows) if times is not None else 0.0
        return still_busy(estimate, now_ns - instance.sent_ns) if estimate else 0.0

    def _times(self, key: Hashable) -> RunTimes | None:
        curve = self._profile.curves.get(key)  # a shape that never ran gets no curve, because it would displace another
        return None if curve is None else curve.times
