"""Compares configurations by simulation, and says how many gateways a rate needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from opgate.load.latencies import Slo
from opgate.service.core.spec import Batching, ModelSpec
from opgate.tune.cost import pairs, powers
from opgate.tune.simulation import REQUESTS, Model, Setup, Simulated, simulate

#: A search ends when the highest rate that keeps the aim is known within this share.
_WITHIN = 0.03
#: A setup must hold this much more than a simpler one. A smaller difference can't be told from noise.
_BETTER = 1.05
#: Delays of batches that are tried, by the latency of the aim.
_DELAYS = (0.05, 0.2)
#: A simulation lasts at least so many times the latency of the aim, up to so many requests: otherwise a queue that
#: grows slowly would not show.
_LATENCIES = 20
_MOST_REQUESTS = 200_000
#: At this share of what a setup can do at most the search gives up.
_LOWEST = 1e-3


def simulated(model: Model, setup: Setup, rate: float, slo: Slo) -> Simulated:
    """Simulates a rate for long enough to see whether it keeps an aim."""
    wanted = int(rate * _LATENCIES * slo.seconds)
    return simulate(model, setup, rate, min(_MOST_REQUESTS, max(REQUESTS, wanted)))


@dataclass(slots=True)
class Candidate:
    """A setup, the highest rate at which it keeps the aim, and the simulated (rate, percentile in seconds)."""

    setup: Setup
    rate: float = 0.0
    points: list[tuple[float, float]] = field(default_factory=list)

    def rate_under(self, seconds: float) -> float:
        """Returns the highest simulated rate whose percentile lies under another latency, 0 if there is none."""
        return max((rate for rate, found in self.points if found < seconds), default=0.0)


def setups(spec: ModelSpec, cores: int, slo: Slo, direct: int = 0) -> Iterator[Setup]:
    """Yields the setups to compare, simple ones first.

    Policies for the queue, priorities and what else is a part of dynamic batching is kept, so a model that has such
    keeps batching.

    A model whose sequences have rows of its `direct` instances for themselves keeps these, because they say how many
    sequences there are at once: threads are compared. A batch has what waits when an instance is idle.
    """
    if direct:
        waiting = Batching(adaptive=False) if spec.batched else None
        yield from (Setup(direct, threads, waiting, max(1, spec.max_batch_size)) for threads in powers(cores))
        return
    stated = spec.batching or Batching()
    needs_batching = replace(stated, adaptive=True, preferred=(), max_delay_ns=0) != Batching()
    batchings: list[Batching | None] = [] if needs_batching else [None]
    if needs_batching or spec.max_batch_size > 1:
        batchings.append(Batching())
    if spec.max_batch_size > 1:
        batchings += [Batching(adaptive=False, max_delay_ns=int(slo.seconds * share * 1e9)) for share in _DELAYS]
    for batching in batchings:
        for instances, threads in sorted(pairs(cores)):
            yield Setup(instances, threads, batching, max(1, spec.max_batch_size))


def search(model: Model, setup: Setup, slo: Slo) -> Candidate:
    """Finds the highest rate at which a setup keeps the aim."""
    candidate = Candidate(setup)

    def tried(rate: float) -> bool:
        found = simulated(model, setup, rate, slo).percentile(slo.percent)
        candidate.points.append((rate, found))
        return found < slo.seconds

    quickest = min(model.costs.by_case[setup.threads, 1, size].walls.min() for size in model.costs.sizes)
    if quickest + model.overhead.fixed + model.overhead.loop >= slo.seconds:
        return candidate
    least = min(
        model.costs.median(setup.threads, 1, size) / size for size in model.costs.sizes[: None if setup.batching else 1]
    )
    # More than this no setup can hold: every run costs its least, and the event loop has one core.
    most = min(setup.instances / (least * model.rows), 1 / model.overhead.loop)
    bad, good, rate = most, 0.0, most / 2
    while bad > good * (1 + _WITHIN) and rate > most * _LOWEST:
        if tried(rate):
            good = rate
        else:
            bad = rate
        rate = math.sqrt(good * bad) if good else bad / 2
    candidate.rate = good
    candidate.points.sort()
    return candidate


def best(candidates: list[Candidate]) -> Candidate:
    """Returns the candidate that holds the highest rate. Another must be clearly better than a simpler one."""
    chosen = candidates[0]
    for candidate in candidates[1:]:
        if candidate.rate > chosen.rate * _BETTER:
            chosen = candidate
    return chosen


def refined(model: Model, candidate: Candidate, slo: Slo) -> None:
    """Simulates more rates of a candidate, for the curve of its latencies."""
    for share in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1):
        rate = candidate.rate * share
        candidate.points.append((rate, simulated(model, candidate.setup, rate, slo).percentile(slo.percent)))
    candidate.points.sort()


def replicas(rate: float, held: float, headroom: float) -> int:
    """Returns how many gateways a rate needs, if one holds `held` and `headroom` of it is kept free."""
    return max(1, math.ceil(rate / (held * (1 - headroom)) - 1e-9))


def compare(model: Model, tried: Iterable[Setup], slo: Slo, tell: Callable[[Candidate], None]) -> list[Candidate]:
    """Searches every setup. `tell` hears each result."""
    found = []
    for setup in tried:
        found.append(search(model, setup, slo))
        tell(found[-1])
    return found
