"""Simulates one gateway that serves one model: requests that arrive at random, the event loop, the queue, the runs.

The rules that form batches are those of the gateway itself (`opgate.service.execution.policy`), and so is the rule
which runs happen on the event loop (`opgate.service.execution.cost`). The times are measured ones.

All requests are alike, and each is answered: it knows no priorities, queue policies, `max_latency_ms` or rate limiter.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from opgate.service.core.request import Request
from opgate.service.core.spec import Batching
from opgate.service.execution.cost import EXPLORE, PROBATION, WARM_UP, CostCurve, HandOver
from opgate.service.execution.policy import Choice, choose
from opgate.tune.cost import Costs, Floats

#: Requests of a simulation, and the share at its beginning that doesn't count, because the queue was empty.
REQUESTS = 20_000
_WARM_UP = 0.1


@dataclass(frozen=True, slots=True)
class Overhead:
    """What a request costs beside its run, in seconds: `loop` on the event loop, which has one core, `fixed` on its way
    from the client and back, and `client` of the client's CPU, if that is on this machine."""

    loop: float
    fixed: float
    client: float = 0.0


@dataclass(frozen=True)
class Setup:
    """A configuration of a model. Without `batching` a run has one request."""

    instances: int
    threads: int
    batching: Batching | None
    max_rows: int

    def __str__(self) -> str:
        batching = "no batching"
        if self.batching is not None:
            delay = self.batching.max_delay_ns / 1e6
            batching = f"batches after {delay:g} ms" if delay else "batches of what waits"
            if self.batching.adaptive:
                batching = "batches by measured costs"
        return (
            f"{self.instances} instance{'s' if self.instances > 1 else ''}, {self.threads} "
            f"thread{'s' if self.threads > 1 else ''}, {batching}"
        )


def learnt(costs: Costs, threads: int, inline_limit: float) -> CostCurve:
    """Returns the cost curve that the gateway has after a while. A run may take `inline_limit` seconds on the loop."""
    curve = CostCurve(HandOver(inline_limit * 1e6))
    for size in costs.sizes:
        cost = costs.by_case[threads, 1, size]
        for _ in range(WARM_UP + EXPLORE + PROBATION):
            curve.record(size, int(cost.median * 1e9), int(cost.cpu * 1e9), on_loop=False)
    return curve


@dataclass
class Model:
    """What the simulation knows about a model: measured costs, overhead, and the rows of a request.

    `inline_limit` is the most seconds that a run may take on the event loop, see OPGATE_INLINE_LIMIT_US. Runs, the
    event loop and the client share `cores`: if together they want more, all of them take longer.
    """

    costs: Costs
    overhead: Overhead
    rows: int
    cores: int
    inline_limit: float = 100e-6
    max_queue: int = 1024
    curves: dict[int, CostCurve] = field(default_factory=dict)

    @cached_property
    def spreads(self) -> dict[tuple[int, int, int], Floats]:
        """For each measured case the times of its runs by their median."""
        return {case: cost.walls / cost.median for case, cost in self.costs.by_case.items()}

    def curve(self, threads: int) -> CostCurve:
        """Returns the cost curve that the gateway has after a while."""
        curve = self.curves.get(threads)
        if curve is None:
            curve = self.curves[threads] = learnt(self.costs, threads, self.inline_limit)
        return curve


@dataclass(frozen=True, slots=True)
class Simulated:
    """The result of a simulation. `latencies` are seconds, without those of the warm-up. They are infinite if more
    requests waited than the gateway's queue takes."""

    latencies: Floats

    def percentile(self, percent: float) -> float:
        """Returns the seconds that `percent` of the latencies don't exceed."""
        return float(np.percentile(self.latencies, percent, method="higher"))


def simulate(model: Model, setup: Setup, rate: float, requests: int = REQUESTS, seed: int = 0) -> Simulated:
    """Simulates requests that arrive at random, `rate` in a second on average."""
    return _Simulation(model, setup, np.random.default_rng(seed)).run(rate, requests)


class _Simulation:
    """Times are seconds from the beginning. Events are (time, number, what happens then)."""

    def __init__(self, model: Model, setup: Setup, random: np.random.Generator) -> None:
        self._model, self._setup, self._random = model, setup, random
        self._curve = model.curve(setup.threads)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0
        self._line: deque[Any] = deque()
        self._busy = 0
        self._loop_free = 0.0
        self._wake = math.inf
        self._latencies: list[float] = []
        self._spread: dict[tuple[int, int, int], tuple[list[float], int]] = {}
        self._times: dict[tuple[int, int], float] = {}
        self._measured_busy = model.costs.busy_counts(setup.threads)
        self._client_cores = self._loop_cores = 0.0

    def run(self, rate: float, requests: int) -> Simulated:
        overhead = self._model.overhead
        self._client_cores = min(1.0, rate * overhead.client)
        self._loop_cores = min(1.0, rate * overhead.loop)
        arrivals = np.cumsum(self._random.exponential(1 / rate, requests)).tolist()
        following = 0
        events = self._events
        most = self._model.max_queue + self._setup.instances * max(1, self._setup.max_rows // self._model.rows)
        while following < requests or events:
            if following < requests and (not events or arrivals[following] <= events[0][0]):
                self._arrive(arrivals[following])
                following += 1
            else:
                now, _, happens = heapq.heappop(events)
                happens(now)
            if following - len(self._latencies) > most:
                return Simulated(np.full(1, math.inf))
        first = int(len(self._latencies) * _WARM_UP)
        return Simulated(np.array(self._latencies[first:]))

    def _at(self, time: float, happens: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, happens))

    def _arrive(self, now: float) -> None:
        """The event loop reads a request, after those that came before it."""
        self._loop_free = max(now, self._loop_free) + self._model.overhead.loop * self._slower(1.0)
        waiting = _Waiting(self._model.rows, now)
        self._at(self._loop_free, lambda read: self._enqueue(waiting, read))

    def _enqueue(self, waiting: _Waiting, now: float) -> None:
        waiting.received_ns = int(now * 1e9)
        self._line.append(waiting)
        self._flush(now)

    def _flush(self, now: float) -> None:
        """Starts what can start, as the scheduler of the gateway does."""
        while self._line:
            choice = self._choose(now)
            if not choice.requests:
                # A nanosecond later, because a float may lie before the time that it stands for.
                wake = max((choice.wake_ns + 1) / 1e9, math.nextafter(now, math.inf))
                if wake < self._wake:
                    self._wake = wake
                    self._at(wake, self._woken)
                return
            on_loop = self._curve.cheap(choice.rows)
            if not on_loop and self._busy == self._setup.instances:
                return
            batch = [self._line.popleft() for _ in range(choice.requests)]
            if on_loop:
                now = max(now, self._loop_free) + self._seconds(choice.rows)
                self._loop_free = now
                self._answer(batch, now)
            else:
                self._busy += 1
                self._at(now + self._seconds(choice.rows), lambda end, batch=batch: self._finish(batch, end))  # type: ignore[misc]

    def _choose(self, now: float) -> Choice:
        batching, line = self._setup.batching, self._line
        if batching is None or (batching.adaptive and len(line) == 1):
            return Choice(1, line[0].rows, 0)
        return choose(line, batching, self._setup.max_rows, self._curve, math.ceil(now * 1e9))

    def _woken(self, now: float) -> None:
        self._wake = math.inf
        self._flush(now)

    def _finish(self, batch: list[_Waiting], now: float) -> None:
        self._busy -= 1
        self._answer(batch, now)
        self._flush(now)

    def _answer(self, batch: list[_Waiting], now: float) -> None:
        fixed = self._model.overhead.fixed
        self._latencies.extend([now - waiting.arrived + fixed for waiting in batch])

    def _seconds(self, rows: int) -> float:
        """Returns the time of a run while others go on: the median of its size, times what a measured run of about this
        size took by its median."""
        threads = self._setup.threads
        busy = min((n for n in self._measured_busy if n >= self._busy), default=self._measured_busy[-1])
        key = (busy, rows)
        median = self._times.get(key)
        if median is None:
            median = self._times[key] = self._model.costs.median(threads, busy, rows)
        sizes = self._model.costs.sizes
        case = (threads, busy, min(sizes, key=lambda size: abs(size - rows)))
        drawn, at = self._spread.get(case, ([], 0))
        if at == len(drawn):
            drawn, at = self._random.choice(self._model.spreads[case], 1000).tolist(), 0
        self._spread[case] = (drawn, at + 1)
        return median * drawn[at] * self._slower(self._loop_cores)

    def _slower(self, loop_cores: float) -> float:
        """Returns by what factor work takes longer, because more wants to run than there are cores."""
        wanted = self._busy * self._setup.threads + loop_cores + self._client_cores
        return max(1.0, wanted / self._model.cores)


class _Waiting(Request):
    """A request without inputs: the policy looks at its rows and at when it came."""

    __slots__ = ("arrived",)

    def __init__(self, rows: int, arrived: float) -> None:
        super().__init__({}, rows, None, ())
        self.arrived = arrived
