"""One run of `opgate load`: a closed loop, which sends after each answer, or an open loop, which follows a clock."""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import numpy as np

from opgate.load.latencies import Latencies
from opgate.load.target_model import Input
from opgate.service.core.spec import ModelSpec

#: Called with each answer: when its request was due, in seconds of perf_counter, and its error or None.
Answered = Callable[[float, str | None], None]

#: As many requests are with the server at most. In an open loop, others wait here, and that time counts.
MOST_UNDER_WAY = 4096
_MOST_ERRORS = 20
_TICK = 0.1


class Client(Protocol):
    """Sends one request again and again, alone or as a part of sequences."""

    name: str
    wire: str
    serves_sequences: bool  # whether the model does that it was asked for

    async def model(self, name: str, version: str) -> ModelSpec: ...
    def prepare(self, inputs: Sequence[Input], sequence_length: int = 0) -> None: ...
    async def first(self) -> tuple[str, set[str]]: ...
    def start(self, answered: Answered) -> None: ...
    def send(self, due: float) -> None: ...
    def end_sequences(self) -> int: ...
    def drop(self) -> None: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """How a run sends. Times are seconds. A `rate` of requests/s means an open loop, else `concurrency` counts.

    What is due in the warm-up isn't measured. At the end, the run ends its sequences, whose last requests aren't
    measured either, and waits `wait` seconds for the last answers.
    """

    seconds: float
    warm_up: float = 1.0
    wait: float = 5.0
    concurrency: int = 1
    rate: float = 0.0


@dataclass(slots=True)
class Measured:
    """What a run has measured. Times are seconds.

    `latencies` are those of the good answers, counted from the time at which the request was due. `lateness` says how
    much later than that the requests of an open loop were sent.
    """

    plan: Plan
    seconds: float = 0.0  # the time in which it measured
    in_time: int = 0  # good answers that came in this time, also to what was due in the warm-up
    failed: int = 0
    unanswered: int = 0  # as many of the failed ones had no answer at the end
    busy: float = 0.0  # the share of one core that this process used
    stopped: bool = False  # whether it ended before its time
    latencies: Latencies = field(default_factory=Latencies)
    lateness: Latencies = field(default_factory=Latencies)
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """The good answers in a second."""
        return self.in_time / self.seconds if self.seconds > 0 else 0.0


class Run:
    """Sends with a client as a plan says."""

    def __init__(self, client: Client, plan: Plan, watch: Callable[[Run], None] = lambda run: None) -> None:
        """`watch` is called ten times a second. It may stop the run."""
        self._client = client
        self._watch = watch
        self._from = self._end = self._due = 0.0
        self._arrivals: Iterator[float] = iter(())
        self._held: deque[float] = deque()  # the due times of requests that wait until fewer are under way
        self._fresh: list[float] = []
        self._fresh_lateness: list[float] = []
        self._measured_due = 0
        self._timer: Timer | None = None
        self.plan = plan
        self.in_flight = 0
        self._ending = False
        self._last_in_flight = 0  # requests that end sequences: their due time is infinite
        self.interrupted = False
        self.measured = Measured(plan)

    @property
    def elapsed(self) -> float:
        """Seconds since the warm-up, negative before its end."""
        return min(perf_counter(), self._end) - self._from

    def stop(self) -> None:
        """Sends no more. The answers of what was sent are still read."""
        self.measured.stopped = True
        self.in_flight -= len(self._held)
        self._held.clear()

    def interrupt(self) -> None:
        """Ends the run at once."""
        self.interrupted = True
        self.stop()

    async def run(self) -> Measured:
        """Runs to the end of the plan, and returns what was measured."""
        plan, measured = self.plan, self.measured
        self._client.start(self._answered)
        begin, begin_cpu = perf_counter(), time.thread_time()
        self._from = begin + plan.warm_up
        self._end = self._from + plan.seconds
        if plan.rate:
            self._arrivals = arrivals(plan.rate, begin, np.random.default_rng())
            self._due = next(self._arrivals)
            self._timer = Timer(self._send_due)
            self._timer.set(self._due)
        else:
            for _ in range(plan.concurrency):
                self._send(perf_counter())
        try:
            while not measured.stopped and (left := self._end - perf_counter()) > 0:
                await asyncio.sleep(min(_TICK, left))
                self._flush()
                self._watch(self)
            measured.seconds = max(0.0, self.elapsed)
            measured.busy = (time.thread_time() - begin_cpu) / (perf_counter() - begin)
            await self._last_answers()
        finally:
            if self._timer is not None:
                self._timer.close()
            self._client.drop()
        return measured

    async def _last_answers(self) -> None:
        plan, measured = self.plan, self.measured
        self._ending = True
        self._end_sequences()
        end = perf_counter() + plan.wait
        while (self.in_flight or self._last_in_flight) and not self.interrupted and perf_counter() < end:
            await asyncio.sleep(0.01)
            self._watch(self)
        self._flush()
        if not measured.stopped:
            answered = measured.latencies.count + measured.failed
            measured.unanswered = self._measured_due - answered if plan.rate else self.in_flight
            if measured.unanswered:
                measured.failed += measured.unanswered
                measured.errors[f"no answer within {plan.wait:g} s after the end"] = measured.unanswered

    def _end_sequences(self) -> None:
        """Sends the last request of each sequence that waits, so that the server keeps no state of this run."""
        count = 0 if self.interrupted else self._client.end_sequences()
        self._last_in_flight += count
        for _ in range(count):
            self._client.send(math.inf)

    def _send(self, due: float) -> None:
        self.in_flight += 1
        if self.in_flight > MOST_UNDER_WAY and self.plan.rate:
            self._held.append(due)
        else:
            self._client.send(due)

    def _send_due(self) -> None:
        """Sends what is due. It doesn't look at the clock again, because answers must be read in between."""
        now = perf_counter()
        while self._due <= now and self._due < self._end and not self.measured.stopped:
            self._send(self._due)
            if self._due >= self._from:
                self._measured_due += 1
                self._fresh_lateness.append(perf_counter() - self._due)
            self._due = next(self._arrivals)
        if self._due < self._end and not self.measured.stopped:
            assert self._timer is not None
            self._timer.set(self._due)

    def _answered(self, due: float, error: str | None) -> None:
        if math.isinf(due):
            self._last_in_flight -= 1
        else:
            self._measure(due, error)
        if self._ending:
            self._end_sequences()

    def _measure(self, due: float, error: str | None) -> None:
        now = perf_counter()
        self.in_flight -= 1
        in_time = self._from <= now < self._end
        if error is None and in_time:
            self.measured.in_time += 1
        if self.plan.rate:
            if due >= self._from:
                self._count(now - due, error)
            if self._held:
                self._client.send(self._held.popleft())
        else:
            if in_time:
                self._count(now - due, error)
            if now < self._end and not self.measured.stopped:
                self._send(now)

    def _count(self, latency: float, error: str | None) -> None:
        measured = self.measured
        if error is None:
            self._fresh.append(latency)
        else:
            measured.failed += 1
            known = error in measured.errors or len(measured.errors) < _MOST_ERRORS
            measured.errors[error if known else "other errors"] += 1

    def _flush(self) -> None:
        self.measured.latencies.add(self._fresh)
        self.measured.lateness.add(self._fresh_lateness)
        self._fresh.clear()
        self._fresh_lateness.clear()


def arrivals(rate: float, begin: float, random: np.random.Generator) -> Iterator[float]:
    """Yields the times of a Poisson process of so many arrivals a second, without end."""
    while True:
        times = begin + np.cumsum(random.exponential(1 / rate, 1024))
        yield from times.tolist()
        begin = float(times[-1])


class _Itimerspec(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns"))


class Timer:
    """A timer of Linux with a precision of microseconds. Those of event loops have milliseconds."""

    _ABSOLUTE = 1

    def __init__(self, callback: Callable[[], None]) -> None:
        """`callback` is called on the running event loop. Raises OSError."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._file = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._loop.add_reader(self._file, self._fired)

    def set(self, when: float) -> None:
        """Fires at that time of perf_counter, at once if it is over. An earlier setting is lost."""
        spec = _Itimerspec(0, 0, int(when), int(when % 1 * 1e9))
        self._libc.timerfd_settime(self._file, self._ABSOLUTE, ctypes.byref(spec), None)

    def close(self) -> None:
        """Ends the timer."""
        self._loop.remove_reader(self._file)
        os.close(self._file)

    def _fired(self) -> None:
        os.read(self._file, 8)
        self._callback()
