"""The search for the highest rate of arrivals at which a model keeps an aim of latency."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from opgate.load.latencies import Slo, duration
from opgate.load.run import Client, Measured, Plan, Run

#: The search ends when the highest good rate and the lowest bad one differ by this share.
WITHIN = 0.05
#: A step is made longer so that it has so many requests, and lasts so many times the latency of the aim: in a shorter
#: one, a queue that grows would not show. It is made so many times as long at most.
_STEP_REQUESTS = 100
_STEP_LATENCIES = 20
_STEP_LONGEST = 4
#: The lowest rate that is tried brings so many requests in a step of the usual length.
_FEWEST_REQUESTS = 10


class Search:
    """Says which rate to try next: it doubles until a rate misses, and then bisects.

    A rate that misses is tried once more before it counts as bad, because other work of the machine may have been the
    reason. If the first rate is bad, the search halves down to the lowest one.
    """

    def __init__(self, first: float, lowest: float) -> None:
        """Both are in requests/s."""
        self._lowest = lowest
        self._again = False
        self.rate: float | None = max(first, lowest)  # to try next; None when the search is over
        self.good: float | None = None  # the highest rate that kept the aim
        self.bad: float | None = None  # the lowest rate above it that missed

    def tried(self, held: bool) -> None:
        """Says whether `rate` kept the aim."""
        assert self.rate is not None
        if held:
            self.good, self._again = self.rate, False
        elif not self._again:
            self._again = True
            return
        else:
            self.bad, self._again = self.rate, False
        self.rate = self._next()

    def _next(self) -> float | None:
        if self.bad is None:
            assert self.good is not None
            return 2 * self.good
        if self.good is None:
            return max(self.bad / 2, self._lowest) if self.bad > self._lowest else None
        return math.sqrt(self.good * self.bad) if self.bad > self.good * (1 + WITHIN) else None


@dataclass(frozen=True, slots=True)
class Step:
    """A rate that was tried. `miss` says why it missed the aim, and `fault` why the load generator was the reason.
    They are empty if that is not so."""

    rate: float
    measured: Measured
    miss: str
    fault: str


@dataclass(slots=True)
class Found:
    """The result of a search. `good` is None if no rate kept the aim."""

    slo: Slo
    good: float | None = None
    bad: float | None = None
    interrupted: bool = False
    steps: list[Step] = field(default_factory=list)

    @property
    def fault(self) -> str:
        """Why the load generator was the reason for the last miss, empty if it was not."""
        return next((step.fault for step in reversed(self.steps) if step.miss), "")


def step_seconds(usual: float, rate: float, slo: Slo) -> float:
    """Returns how long a step at this rate is, if `usual` is the least."""
    wanted = max(usual, _STEP_REQUESTS / rate, _STEP_LATENCIES * slo.seconds)
    return min(wanted, _STEP_LONGEST * usual)


def why_missed(measured: Measured, slo: Slo) -> str:
    """Returns why a run missed an aim, empty if it kept it."""
    if measured.failed:
        return f"{measured.failed:,} of its requests failed"
    if measured.latencies.count == 0:
        return "there was no answer"
    found = measured.latencies.percentile(slo.percent)
    return "" if found < slo.seconds else f"p{slo.percent:g} was {duration(found)}"


def is_lost(measured: Measured, slo: Slo) -> bool:
    """Returns whether a run that still goes on can't keep an aim: a request failed, or too many took too long."""
    expected = measured.plan.rate * measured.plan.seconds
    return measured.failed > 0 or measured.latencies.over(slo.seconds) > max(1.0, 2 * slo.share * expected)


def generator_fault(measured: Measured, percent: float = 99.0) -> str:
    """Returns why the load generator, and not the server, limits what was measured; empty if it doesn't."""
    if measured.busy > 0.9:
        return "the load generator used nearly a whole core"
    late = measured.lateness.percentile(percent)  # NaN in a closed loop
    if late > measured.latencies.percentile(percent) / 2:
        return f"half of p{percent:g} or more is that the load generator sent late"
    return ""


async def find_rate(
    client: Client, slo: Slo, plan: Plan, tell: Callable[[Step], None], watch: Callable[[Run], None]
) -> Found:
    """Searches the highest rate at which `slo` holds. A `rate` in the plan is the first to try.

    `tell` is called after each step, `watch` as in `Run`.
    """

    def step_watch(run: Run) -> None:
        watch(run)
        if not run.measured.stopped and run.plan.rate and is_lost(run.measured, slo):
            run.stop()

    found = Found(slo)
    first = plan.rate
    if not first:
        alone = await Run(client, replace(plan, seconds=min(1.0, plan.seconds), concurrency=1), watch).run()
        first = alone.rate / 2
    search = Search(first, _FEWEST_REQUESTS / plan.seconds)
    while (rate := search.rate) is not None:
        run = Run(client, replace(plan, rate=rate, seconds=step_seconds(plan.seconds, rate, slo)), step_watch)
        measured = await run.run()
        if run.interrupted:
            found.interrupted = True
            break
        miss = why_missed(measured, slo)
        step = Step(rate, measured, miss, generator_fault(measured, slo.percent) if miss else "")
        found.steps.append(step)
        tell(step)
        search.tried(not miss)
    found.good, found.bad = search.good, search.bad
    return found
