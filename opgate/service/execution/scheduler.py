"""The queue of one model: decides which requests run next, which of them share a batch, and on which thread."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from time import perf_counter_ns

from opgate.service.core.errors import Kind, ServingError, in_queue, queue_full, too_late, unloading
from opgate.service.core.request import Request
from opgate.service.core.spec import Batching, ModelSpec, QueuePolicy
from opgate.service.core.statistics import ModelStatistics
from opgate.service.execution.alarm import Alarm
from opgate.service.execution.batch import Batch, execute, padding, try_out
from opgate.service.execution.cost import CostCurve, Profile
from opgate.service.execution.grouping import group_of
from opgate.service.execution.instance import Instance, Instances, InstanceThread
from opgate.service.execution.latency import LatencyLimit
from opgate.service.execution.ordering import OrderedAnswers
from opgate.service.execution.padding import element_counts
from opgate.service.execution.policy import choose
from opgate.service.execution.rate_limiter import Claim
from opgate.service.execution.run_on_loop import ON_LOOP
from opgate.service.execution.session import ModelSession
from opgate.service.execution.waiting import Line, Waiting
from opgate.service.native.process import set_running

logger = logging.getLogger("opgate.scheduler")

# Runs of a model hold the event loop for about this many nanoseconds in a turn, however many requests wait.
_TURN_NS = 2_000_000
# Bytes of inputs whose copy costs about as much as a cheap run costs beyond the work of the model itself.
_LARGE = 1 << 18


class Scheduler:
    """Accepts requests for one model version and calls each back.

    Each instance has a session, and instances may share one. Every method runs on the event loop's thread, except
    `_execute`, which runs on the threads of the instances too.

    It is long, because whatever comes or ends, such as a request, a run or a wait, changes the same queue and may start
    the next run.
    """

    def __init__(
        self,
        spec: ModelSpec,
        sessions: Sequence[ModelSession],
        statistics: ModelStatistics,
        *,
        max_queue_size: int = 1024,
        inline_limit_us: float = 100.0,
        run_timeout: float | None = 60.0,
        claims: Sequence[Claim] = (),
    ) -> None:
        """`sessions` has one entry for each instance, and so has `claims` if a rate limiter decides when they run. With
        `inline_limit_us` 0 no batch runs on the event loop.

        While a run takes longer than `run_timeout` seconds, `overdue` says so. None is for sessions that end such runs.
        """
        self.spec = spec
        self._name = f"model '{spec.name}' version {spec.version}"
        self.statistics = statistics
        self.session = sessions[0]  # instances on the CPU share it, and runs on the event loop use it
        batching = spec.batching or Batching()
        self._batching = spec.batching if spec.batched else None  # None if each request runs alone
        self._policy = None if batching.priority_levels else batching.policy  # if all requests have the same
        self._waiting = Waiting(batching, max_queue_size)
        limit_ns = batching.max_latency_ns
        self._profile = Profile(inline_limit_us, timed=bool(limit_ns))
        self._latency_limit = LatencyLimit(spec, limit_ns, self._profile, self._waiting) if limit_ns else None
        self._ordered = OrderedAnswers() if batching.preserve_ordering else None
        self._flush_due = False
        self._alarm: Alarm | None = None
        self._run_timeout = run_timeout
        self._watch: asyncio.TimerHandle | None = None
        self._overdue = ""  # that a run takes too long
        self._ran_on_loop = False  # as long as it is False, nothing can start while every instance is busy
        self._closed = False
        self._rest: asyncio.Event | None = None
        instances: list[Instance] = [
            session.instance(spec, self._finished, self._closed_late)
            if session.takes_requests
            else InstanceThread(f"{spec.name}-{spec.version}-{i}", session, self._execute, self._finished)
            for i, session in enumerate(sessions)
        ]
        # On the CPU the thread that ran last has warm caches. GPUs take turns.
        self._instances = Instances(instances, claims, in_turn=sessions[0].gpu is not None)
        self._idle = self._instances.idle
        self._grouped = bool(self.spec.batch_by or self.spec.length_buckets)
        self._open: set[Request] = set()  # requests that their runs have left open
        self._limited = bool(claims)  # whether a rate limiter decides when the instances run
        self._waits_for_resources = False
        for claim in claims:
            claim.wake = self._flush_soon

    def submit(self, request: Request) -> None:
        """Accepts a checked request. `request.done` is called on this thread, maybe before this method returns."""
        if self._closed:
            self._fail(request, unloading(self.spec.name))
            return
        if self._grouped and not self._group(request):
            return
        waiting, policy = self._waiting, self._policy
        if waiting.size >= waiting.max_size or policy is None:
            if full := waiting.full_for(request):
                self._fail(request, queue_full(self.spec.name, full))
                return
            policy = waiting.policy_of(request)
        timeout = policy.timeout_us(request.options.timeout_us) if request.origin is None else 0
        late = timeout and perf_counter_ns() - request.received_ns >= timeout * 1000
        if late and not policy.delay:
            self._fail(request, too_late(self.spec.name, timeout))
            return
        if self._overdue and not self._idle:
            self._fail(request, ServingError(Kind.UNAVAILABLE, self._overdue))
            return
        # An idle model accepts whatever it estimates, because only a run can show that the estimate is too high.
        if self._latency_limit is not None and (waiting.size or not self._idle):
            error = self._latency_limit.refusal(request, self._instances.all)
            if error is not None:
                self._fail(request, error)
                return
        if self._ordered is not None:
            self._ordered.add(request)
        if not waiting.size and self._runs_alone(request) and self._start(self._form([request], request.rows)):
            self._await(request, timeout if timeout == request.options.timeout_us else 0, policy)
            return
        waiting.add(request)
        self.statistics.pending = waiting.size
        if late:
            waiting.postpone(request)
        self._await(request, 0 if late else timeout, policy)
        # An instance that is busy flushes when it is idle again. If none is busy, the request came from the answer of a
        # batch that _flush ran on this thread, and _flush may not look at the request's line any more.
        if self._batching is not None or self._idle:
            # Batches are formed once per turn of the loop, so that all requests that arrive in one turn can share one.
            self._flush_soon()

    def _group(self, request: Request) -> bool:
        """Reads the values that the requests of a batch have in common. Returns False if that failed the request."""
        try:
            request.group = group_of(self.spec, request)
        except ServingError as error:
            self._fail(request, error)
            return False
        return True

    def _runs_alone(self, request: Request) -> bool:
        """Returns whether a request runs at once, although others that arrive in this turn of the loop could join it.

        To copy large inputs into a batch costs more than a cheap run of its own, whose input the cache still holds.
        """
        batching = self._batching
        if batching is None:
            return True
        if not batching.adaptive:
            return False
        size = 0
        for array in request.inputs.values():
            size += array.nbytes
        return size >= _LARGE and self._curve([request]).cheap(request.rows)

    def try_out(self, request: Request) -> None:
        """Runs a request on the calling thread, past the queue and the statistics. Raises ServingError."""
        try_out(self.session, self.spec, request)

    @property
    def overdue(self) -> str:
        """Why the model is not ready: a run takes too long, or none of its processes runs."""
        if self._overdue:
            return self._overdue
        reasons = [instance.session.down for instance in self._instances.all]
        return reasons[0] if all(reasons) else ""

    @property
    def hand_over_ns(self) -> float:
        """What it costs to have a run on a thread, as it was measured."""
        return self._profile.hand_over.typical_ns

    async def close(self) -> None:
        """Refuses new requests, waits until the accepted ones are answered, ends the threads and frees the sessions."""
        self._closed = True
        if not self.at_rest:
            self._rest = asyncio.Event()
            await self._rest.wait()
        await self._instances.close()
        if self._watch is not None:
            self._watch.cancel()
        if self._alarm is not None:
            self._alarm.close()

    @property
    def at_rest(self) -> bool:
        """Whether every accepted request is answered."""
        return not self._waiting.size and len(self._idle) == len(self._instances.all) and not self._open

    def _await(self, request: Request, timeout_us: int, policy: QueuePolicy) -> None:
        """Lets a request that has no answer yet leave early, or wait behind others when its time is over."""
        if not request.ended:
            request.leave = self._let_go
            if timeout_us:
                request.expire_after(timeout_us, self._waiting.postpone if policy.delay else None)

    def _only_their_own_timeouts(self, batch: Batch) -> None:
        """Stops the timeouts of the config for requests that run: they are those of the queue, as in Triton."""
        for request in batch.requests:
            if request.timer is not None:
                own = request.options.timeout_us
                if self._waiting.policy_of(request).timeout_us(own) != own:
                    request.timer.cancel()
                    request.timer = None

    def _let_go(self, request: Request, error: ServingError) -> None:
        """Ends a request whose client left or whose time ran out: takes it out of its line, or out of its run."""
        if self._waiting.remove(request):
            self.statistics.pending = self._waiting.size
            if self._limited:
                self._flush_soon()  # resources may be kept for a run that nobody needs any more
            self._fail(request, in_queue(error))
            self._rested()
            return
        self._fail(request, error)
        self.stop_if_unwanted(request)
        if request in self._open:
            self._open.discard(request)
            self._rested()

    def stop_if_unwanted(self, request: Request) -> None:
        """Stops the run of a request if nobody waits for anything that it gives."""
        for instance in self._instances.all:
            instance.leave(request)
            if instance.batch is not None and request in instance.batch.requests:
                instance.batch.stop_if_unwanted()

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Starts every batch that can start now. Sets a timer if a line waits for more requests."""
        self._flush_due = False
        self._waits_for_resources = False
        if self._alarm is not None:
            self._alarm.cancel()
        wake_ns = 0
        # The line with the oldest request comes first. After a batch, the line goes behind the others.
        order = self._waiting.order()
        end_ns = perf_counter_ns() + _TURN_NS
        while order and (self._idle or self._ran_on_loop):
            if perf_counter_ns() > end_ns:
                self._flush_soon()
                break
            key = order.popleft()
            line = self._waiting.lines.get(key)
            if line and self._latency_limit is not None:
                self._drop_hopeless(line, self._latency_limit)
            if not line:
                continue
            count, rows, its_wake_ns = self._choose(line)
            if not count:
                wake_ns = min(wake_ns or its_wake_ns, its_wake_ns)
                self._waiting.hold_back(order, key)
                continue
            batch = self._form(list(islice(line, count)), rows)
            started = self._start(batch, partial(self._waiting.take, key, count))
            if not started:
                if self._waits_for_resources:
                    break  # no other batch gets them either
                self._waiting.hold_back(order, key)
            elif key in self._waiting.lines:
                self._waiting.put_back(order, key)
        self.statistics.pending = self._waiting.size
        if wake_ns:
            if self._alarm is None:
                self._alarm = Alarm(self._flush)
            self._alarm.set(wake_ns - perf_counter_ns())
        if self._limited and not self._waits_for_resources and not self._flush_due:
            self._instances.withdraw()
        self._rested()

    def learn(self, request: Request, wall_ns: int) -> None:
        """Takes a run of a request alone into account, for the limit on the latency."""
        for curve in {self._profile.curve(request.key), self._curve([request])} if self._latency_limit else ():
            if curve.times is not None:
                curve.times.record(request.rows, wall_ns)

    def _drop_hopeless(self, line: deque[Request] | Line, limit: LatencyLimit) -> None:
        """Fails the first requests of a line if they can't be answered in time any more.

        The last one that waits runs all the same: it shows what a run takes now.
        """
        while line and self._waiting.size > 1 and (error := limit.hopeless(line[0])) is not None:
            self._let_go(line[0], error)

    def _choose(self, line: deque[Request] | Line) -> tuple[int, int, int]:
        """Returns how many requests of a line run now, their rows, and otherwise when to look again, as Choice does."""
        batching = self._batching
        if batching is None or (batching.adaptive and len(line) == 1):
            return 1, line[0].rows, 0
        curve = self._profile.curve(line[0].key)
        return choose(line, batching, self.spec.max_batch_size, curve, perf_counter_ns())

    def _form(self, requests: list[Request], rows: int) -> Batch:
        return Batch(requests, rows, self._curve(requests))

    def _curve(self, requests: list[Request]) -> CostCurve:
        """Returns the costs of runs like that of these requests, which decide whether it may happen on the loop.

        The time of a run grows with the elements of ragged and padded inputs, so there is a curve for each power of two
        of them.
        """
        key, weight = requests[0].key, 0
        for request in requests:
            weight += request.weight
        if weight and self.spec.padding is not None:
            weight = max(weight, element_counts(self.spec.padding, requests)[1])
        return self._profile.curve((key, weight.bit_length()) if weight else key)

    def _start(self, batch: Batch, before_run: Callable[[], None] | None = None) -> bool:
        """Runs a batch on the event loop if that is cheap, else hands it to an idle instance.

        Returns False if no instance can run it now. Calls `before_run` if the batch can run, before it runs.
        """
        batch.on_loop = batch.curve.cheap(batch.rows)
        instance: Instance | None = None
        if self._limited:
            instance = self._instances.take_with_resources()
            if instance is None:
                self._waits_for_resources = True
                return False
        elif not batch.on_loop and not self._idle:
            return False
        if before_run is not None:
            before_run()
            self._only_their_own_timeouts(batch)
        if batch.on_loop:
            self._ran_on_loop = True
            ON_LOOP.model = self.spec.name
            ON_LOOP.since_ns = batch.formed_ns
            self._execute(self.session, batch)
            ON_LOOP.since_ns = 0
            if instance is not None:
                self._instances.release(instance, batch.wall_ns)
            self._complete(batch)
        else:
            instance = instance or self._instances.take()
            loop = asyncio.get_running_loop()
            batch.options = instance.session.run_options()
            instance.start(batch, loop)
            if self._watch is None and self._run_timeout is not None:
                self._watch = loop.call_later(self._run_timeout, self._look_for_overdue)
        return True

    def _look_for_overdue(self) -> None:
        """Ends the requests of runs that take too long. The model is not ready until the engine returns."""
        self._watch = None
        assert self._run_timeout is not None
        now = perf_counter_ns()
        for instance in self._instances.all:
            batch = instance.batch
            if batch is None or batch.overdue or now - instance.sent_ns < self._run_timeout * 1e9:
                continue
            batch.overdue = True
            self.statistics.overdue += 1
            self._overdue = f"a run of model '{self.spec.name}' takes longer than {self._run_timeout:g} s"
            ids = [request.id for request in batch.requests if request.id]
            logger.error(self._overdue, extra={"model": self.spec.name, "version": self.spec.version, "ids": ids})
            for request in batch.requests:
                if not request.ended:
                    self._fail(request, ServingError(Kind.INTERNAL, self._overdue))
            batch.stop_if_unwanted()
        if self._overdue and not self._idle:
            for line in list(self._waiting.lines.values()):
                for request in list(line):
                    self._let_go(request, ServingError(Kind.UNAVAILABLE, self._overdue))
        begun = [one.sent_ns for one in self._instances.all if one.batch is not None and not one.batch.overdue]
        if begun:
            delay = self._run_timeout - (now - min(begun)) / 1e9
            self._watch = asyncio.get_running_loop().call_later(delay, self._look_for_overdue)

    def _execute(self, session: ModelSession, batch: Batch) -> None:
        set_running(self._name)
        execute(session, self.spec, batch)
        set_running(None)

    def _finished(self, instance: Instance, batch: Batch) -> None:
        back_ns = perf_counter_ns()
        self._profile.hand_over.record(batch.begun_ns - instance.sent_ns + back_ns - batch.ended_ns)
        instance.batch = None
        if batch.overdue and not any(one.batch is not None and one.batch.overdue for one in self._instances.all):
            self._overdue = ""
            seconds = (back_ns - instance.sent_ns) / 1e9
            logger.warning(
                "the run that took too long has ended: model '%s' is ready again after %.1f s", self.spec.name, seconds
            )
        # The instance starts the next batch before the answers of this one are written.
        self._instances.release(instance, batch.wall_ns)
        if self._waiting.size:
            self._flush()
        self._complete(batch)
        self._rested()

    def _run_again(self, request: Request) -> None:
        """Puts a request behind the others of its line: the model wants it once more. Its sequence has begun."""
        if (place := request.options.sequence) is not None:
            request.options = request.options._replace(sequence=place._replace(start=False))
        if request.renew is not None:
            request.renew()
        self._waiting.add(request)
        self._flush_soon()

    def _closed_late(self, request: Request) -> None:
        """Answers a request that its run had left open."""
        self._open.discard(request)
        answer = partial(self._answer, [request], request.started_ns, request.run_ns)
        if self._ordered is None:
            answer()
        elif not request.ended:
            self._ordered.answer(request, answer)
        self._rested()

    def _rested(self) -> None:
        if self._rest is not None and self.at_rest:
            self._rest.set()

    def _complete(self, batch: Batch) -> None:
        now = perf_counter_ns()
        requests = batch.requests
        statistics = self.statistics
        learns = batch.executions == 1 and not batch.stopped
        for request in requests:
            learns = learns and request.error is None
        if learns:
            of_shape = self._profile.curve(requests[0].key)
            for curve in (of_shape,) if of_shape is batch.curve else (of_shape, batch.curve):
                curve.record(batch.rows, batch.wall_ns, batch.cpu_ns, batch.on_loop)
            brought, added = padding(self.spec, requests)
            statistics.padded_elements += brought
            statistics.padding_elements += added
        statistics.executed(
            batch.rows,
            len(requests),
            (
                batch.infer_start_ns - batch.formed_ns,
                batch.infer_end_ns - batch.infer_start_ns,
                now - batch.infer_end_ns,
            ),
            batch.executions,
        )
        run_ns = (batch.infer_start_ns, batch.infer_end_ns)
        for request in requests:
            if request.open and not request.ended:
                request.started_ns, request.run_ns = batch.formed_ns, run_ns
                self._open.add(request)
            elif request.again and not request.ended:
                self._run_again(request)
        if self._ordered is None:
            self._answer(requests, batch.formed_ns, run_ns)
            return
        for request in requests:
            if not request.ended and not request.open and not request.again:
                self._ordered.answer(request, partial(self._answer, [request], batch.formed_ns, run_ns))

    def _answer(self, requests: Sequence[Request], started_ns: int, run_ns: tuple[int, int]) -> None:
        """Ends requests that have run."""
        now = perf_counter_ns()
        statistics = self.statistics
        for request in requests:
            if request.ended or request.open or request.again:
                continue
            request.started_ns = started_ns
            request.run_ns = run_ns
            if request.error is not None:
                statistics.failed(request.error.kind.value, now - request.received_ns)
            else:
                statistics.succeeded(request.rows, now - request.received_ns, started_ns - request.received_ns)
            try:
                request.end()
            except Exception:
                # If one answer can't be written, the other clients must still get theirs.
                logger.exception("writing the answer of a request for model '%s' failed", self.spec.name)

    def _fail(self, request: Request, error: ServingError) -> None:
        self.statistics.failed(error.kind.value, perf_counter_ns() - request.received_ns)
        try:
            request.fail(error)
        except Exception:
            logger.exception("writing an error of model '%s' failed", self.spec.name)
        if self._ordered is not None:
            self._ordered.leave(request)
