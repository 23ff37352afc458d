"""What is under way between the gateway and a worker process that runs a model in Python: runs, requests that wait for
responses, and calls of other models.

A run ends when `execute` has returned. Its requests may get their responses later, while others run.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np

from opgate.service.core.errors import Kind, ServingError, internal
from opgate.service.core.request import Array, Request, Response
from opgate.service.core.tensors import SMALL
from opgate.service.execution.batch import as_serving_error, assemble
from opgate.service.isolation.calls import Calls, marked
from opgate.service.isolation.mail import WINDOW, NoRoomError, Packed
from opgate.service.isolation.process import WorkerDiedError, WorkerProcess
from opgate.service.isolation.process_calls import MOST_CALLS, CallsOfProcess
from opgate.service.isolation.python_job import Job, envelope_of, response_of, settle
from opgate.service.isolation.tensors import BF16
from opgate.service.isolation.thread_and_loop import Turns

# Seconds in which a model may end itself.
_FINALIZE = 10.0
# Milliseconds between two looks for room in a memory that was full.
_RETRY = 2.0
# Bytes of the gateway's side of the memory that stay between runs.
_KEPT_BYTES = 1 << 26
# A worker that sends more responses than its window allows breaks the rules.
_MOST_UNTAKEN = 2 * WINDOW
# So many messages wait for a worker that doesn't read, and so many bytes of them beyond the memory that it has.
_MOST_UNSENT = 4 * MOST_CALLS


@dataclass(eq=False)
class _Open:
    """A request that the process works on, until its last response."""

    number: int
    request: Request
    job: Job
    until: float
    executed: bool = False  # whether `execute` has returned
    ended: bool = False  # whether its last response has come
    closed: bool = False  # whether the client has all of them
    untaken: int = 0  # responses that the client has not taken
    waiting: deque[tuple[Response | None, bool]] = field(default_factory=deque)
    giving: asyncio.Task[None] | None = None  # gives the client what waits

    @property
    def waits_for_model(self) -> bool:
        """Whether its run is over, and the client has all responses that have come."""
        return self.executed and not self.untaken


class UnreadError(Exception):
    """The process leaves unread what the gateway says."""


class Owner(Protocol):
    """The session of the process."""

    calls: Calls

    @property
    def run_timeout(self) -> float:
        """Seconds in which `execute` must return, and a model send something for a request that it left open."""

    def change_metric(self, change: Sequence[Any]) -> None:
        """Changes a metric of the model's own."""

    def post(self, what: Callable[[Talk], None] | None, size: int = 0) -> None:
        """Has something done that may copy so many bytes, if there is a process then."""


class Talk(Turns):
    """One process. One at a time uses it: a thread, or the event loop, which reads what the process says until a large
    message comes. That one the thread reads, and from the next small one on the loop reads again.

    It is long, because all of it changes what is under way: runs, open requests and what waits to be sent.
    """

    def __init__(self, owner: Owner, process: WorkerProcess, numbers: Iterator[int]) -> None:
        """`numbers` are those of requests. No other process of the model gets the same."""
        super().__init__()
        self.ran = False  # whether any run has come to its end
        self._is_open = True  # whether the process may still say something
        self._lends = True  # whether the loop may read that
        self._jobs: deque[Job] = deque()
        self._owner = owner
        self._process = process
        self._mail = process.mail()
        self._calls = CallsOfProcess(self)
        self._next_number = numbers
        self._job: Job | None = None
        self._open: dict[int, _Open] = {}
        self._numbers: dict[Request, int] = {}
        self._unsent: deque[Packed] = deque()
        self._unsent_bytes = 0
        self._look_at = 0.0  # when to look for what takes too long
        self._finalized = False
        self._asked_ready: tuple[Future[str], float] | None = None
        self._ready_number = 0

    # The thread.

    def serve(self, jobs: deque[Job], posted: deque[Callable[[Talk], None]], wake: int, end: int) -> None:
        """Talks until the process has ended, or until `end` can be read. Batches come from `jobs`, and `wake` can be
        read when there is something in `jobs` or `posted`. Raises WorkerDiedError for a process that breaks the rules.
        """
        self._jobs, self._posted, self._wake = jobs, posted, wake
        ready = select.poll()
        for file in (self._process.pidfd, wake, end):
            ready.register(file, select.POLLIN)
        try:
            self._serve(ready, end)
        finally:
            self._end_turns()

    def _serve(self, ready: select.poll, end: int) -> None:
        wakes, pidfd = self._mail.wakes, self._process.pidfd
        registered = False
        while True:
            with self._lock:
                reads, patience = self._before_wait()
            if reads != registered:
                ready.register(wakes, select.POLLIN) if reads else ready.unregister(wakes)
                registered = reads
            found = dict(ready.poll(patience))
            with self._lock:
                if self._wake in found:
                    self._do_posted()
                if self._mail.has_come or found.get(wakes, 0) & select.POLLIN:
                    self._lends = self._mail.coming() <= SMALL
                    self._take()
                elif wakes in found:  # the other end is closed, so the process is about to be gone
                    self._is_open = False
                elif pidfd in found and not self._lent and (registered or not self._is_open):
                    return
                if self._reader is not None and (pidfd in found or end in found):  # the rest is read here
                    self._reader.set(False)
                    self._lends = False
                if end in found:
                    ready.unregister(end)
                    self._finalize(ready)
                    return
                self._after_wait()

    def _before_wait(self) -> tuple[bool, float | None]:
        """Starts what is next. Returns whether the thread reads what the process says, and the milliseconds until
        something must be looked at."""
        if self._fault is not None:
            raise self._fault
        self.start_next()
        if self._is_open and self._lends:
            self._lend(self._owner.calls.loop, self._mail.wakes)
        return self._is_open and not self._lent, 0.0 if self._mail.has_come else self._patience()

    def _after_wait(self) -> None:
        self._send_waiting()
        if self._job is None:
            self._mail.keep(_KEPT_BYTES)
        if self._look_at and time.monotonic() >= self._look_at:
            self._look_for_late()

    def start_next(self) -> None:
        """Starts the run that is next, if there is none."""
        while self._job is None and self._jobs and not self._unsent:
            if self._on_loop and not self._jobs[0].is_small:
                self._rouse()
                return
            self._start(self._jobs.popleft())

    # The event loop.

    def _leave_to_thread(self) -> None:
        self._owner.post(None)

    def _take_small(self) -> bool:
        try:
            if self._mail.coming() > SMALL:
                return False
        except BlockingIOError:  # there was nothing to be read
            return True
        except EOFError:
            return False
        self._take()
        if self._job is None:
            self.start_next()
        return True

    def _patience(self) -> float | None:
        """Returns the milliseconds until something must be looked at."""
        if self._unsent:
            return _RETRY
        if not self._look_at:
            return None
        return max(0.0, self._look_at - time.monotonic()) * 1000 + 1

    def _later(self) -> float:
        """Returns when what begins now takes too long."""
        until = time.monotonic() + self._owner.run_timeout
        self._look_before(until)
        return until

    def _look_before(self, until: float) -> None:
        """Has the thread look for what takes too long at some time, or before."""
        if not self._look_at or until < self._look_at:
            self._look_at = until
            if self._on_loop:
                self._rouse()

    def _look_for_late(self) -> None:
        """Ends a process whose `execute` takes too long, and requests for which nothing comes any more."""
        now, job, seconds = time.monotonic(), self._job, self._owner.run_timeout
        if job is not None and job.running and now >= job.until:
            self._process.end_late(f"a run took longer than {seconds:g} s")
            raise WorkerDiedError(self._process.death())
        for one in [one for one in self._open.values() if one.waits_for_model and now >= one.until]:
            self.say(["cancel", one.number])
            text = f"the model sent nothing for {seconds:g} s (OPGATE_RUN_TIMEOUT)"
            self._close(one, ServingError(Kind.INTERNAL, text))
        ends = [one.until for one in self._open.values() if one.waits_for_model]
        if job is not None and job.running:
            ends.append(job.until)
        if self._asked_ready is not None:
            if now >= self._asked_ready[1]:
                self._told_ready("is_ready took too long")
            else:
                ends.append(self._asked_ready[1])
        self._look_at = min(ends, default=0.0)

    def say(self, message: Sequence[Any], names: Sequence[str] = (), arrays: Sequence[Array] = ()) -> None:
        """Sends a message, later if there is no room now. Raises NoRoomError if there never is, and UnreadError if
        too much waits for a worker that doesn't read."""
        packed = self._mail.pack(message, names, arrays)
        if not self._unsent and self._sent(packed):
            return
        self._unsent.append(packed)
        self._unsent_bytes += packed.size
        if self._on_loop:
            self._rouse()
        if len(self._unsent) > _MOST_UNSENT or self._unsent_bytes > self._mail.most + packed.size:
            raise UnreadError(f"it left {len(self._unsent)} messages unread")

    def _sent(self, packed: Packed) -> bool:
        try:
            return self._mail.post(packed)
        except BrokenPipeError:
            return True  # its death will be seen

    def _send_waiting(self) -> None:
        while self._unsent and self._sent(self._unsent[0]):
            self._unsent_bytes -= self._unsent.popleft().size

    def _take(self) -> None:
        """Takes a message of the process. Raises ValueError and the like for one that breaks the rules."""
        message, tensors = self._mail.receive()
        for place, (name, array) in enumerate(tensors):
            if array.dtype == BF16:
                tensors[place] = name, array.view(np.uint16)
        kind, *rest = message
        if kind == "executed":
            (envelopes,) = rest
            self._executed(envelopes, tensors)
        elif kind == "failed":
            (text,) = rest
            self._failed(internal(str(text)))
        elif kind == "response":
            number, present, final, error, parameters = rest
            self._respond(number, bool(present), bool(final), error, parameters, tensors)
        elif kind == "metric":
            self._owner.change_metric(rest)
        elif kind == "ready":
            number, ready, reason = rest
            if number == self._ready_number:
                self._told_ready("" if ready else str(reason)[:1000])
        elif kind == "finalized":
            self._finalized = True
        else:
            self._calls.take(kind, rest, tensors)

    # Runs.

    def _start(self, job: Job) -> None:
        """Sends the next requests of a batch."""
        self._job = job
        requests = job.running = job.todo.popleft()
        batch = job.batch
        batch.begun_ns = batch.begun_ns or perf_counter_ns()
        names: list[str] = []
        arrays: list[Array] = []
        envelopes: list[Any] = []
        job.until = self._later()
        try:
            for request in requests:
                request.again = False
                feeds = assemble(job.spec, [request])
                names += feeds
                arrays += [marked(job.spec.inputs.get(name), array) for name, array in feeds.items()]
                number = next(self._next_number)
                envelopes.append([number, len(feeds), *envelope_of(request)])
                self._open[number] = _Open(number, request, job, job.until)
                self._numbers[request] = number
            batch.executions += 1
            batch.infer_start_ns = perf_counter_ns()
            self.say(["execute", envelopes], names, arrays)
            job.message = self._mail.sent + len(self._unsent)
        except NoRoomError as error:
            self._failed(ServingError(Kind.TOO_LARGE, str(error)))
            return
        except ServingError as error:
            self._failed(error)
            return
        for request in requests:
            if request.unwanted:
                self.leave(request)

    def _executed(self, envelopes: Sequence[Any], tensors: list[tuple[str, Array]]) -> None:
        """Takes what `execute` has returned: for each request a response, an error, or nothing yet."""
        job = self._job
        if job is None or len(envelopes) != len(job.running):
            raise ValueError(f"{len(envelopes)} results")
        self.ran = True
        rest: Iterator[tuple[str, Array]] = iter(tensors)
        for request, envelope in zip(job.running, envelopes, strict=True):
            one = self._open[self._numbers[request]]
            if envelope is None:
                self._leave_open(one)
                continue
            if envelope == "again":
                self._forget(one)
                request.again = True
                continue
            count, error, parameters = envelope
            own = dict(islice(rest, int(count)))
            self._forget(one)
            settle(job.spec, request, own, error, parameters)
        if next(rest, None) is not None:
            raise ValueError("more tensors than its results have")
        self._go_on(job)

    def _failed(self, error: ServingError) -> None:
        """Takes a run as failed. The requests of a batch run again one by one, so that only the one at fault fails,
        unless some have responses."""
        job = self._job
        if job is None:
            raise ValueError("a run that nobody asked for has failed")
        self.ran = True
        self._end_run(job, error)
        self._go_on(job)

    def _end_run(self, job: Job, error: ServingError) -> None:
        running = [(request, self._open.get(self._numbers.get(request, 0))) for request in job.running]
        answered = any(one is not None and (one.ended or one.untaken or request.result) for request, one in running)
        again = len(running) > 1 and not job.spec.streams and not answered
        for request, one in running:
            if one is not None and one.ended:  # it has its last response
                self._leave_open(one)
                continue
            if one is not None:
                self._forget(one)
            if not again:
                request.error = request.error or as_serving_error(job.spec, error)
            elif not request.unwanted:
                job.todo.append([request])
        job.running = []

    def _leave_open(self, one: _Open) -> None:
        """Lets a request wait for its responses after its run."""
        one.executed, one.until = True, self._later()
        one.request.open = not one.closed
        if one.closed:
            self._forget(one)

    def _go_on(self, job: Job) -> None:
        job.running = []
        self._job = None
        if job.todo:
            self._jobs.appendleft(job)
            return
        if self._on_loop and self._mail.keeps_more(_KEPT_BYTES):
            self._rouse()
        job.end()

    # Responses that senders send.

    def _respond(self, number: int, present: bool, final: bool, error: Any, parameters: Any, tensors: Any) -> None:
        if type(number) is not int:
            raise ValueError("a response without the number of its request")
        one = self._open.get(number)
        if one is None or one.ended:  # nobody waits for it any more
            self.say(["taken", number])
            return
        self._moves(one)
        one.ended = final
        request, spec = one.request, one.job.spec
        if not spec.streams:
            if present and request.result is None and request.error is None:
                settle(spec, request, dict(tensors), error, parameters)
            self._taken(one, final)
            return
        response = response_of(spec, request, final, error, parameters, dict(tensors)) if present else None
        if response is not None and response.error is not None and final:  # the error that ends a stream
            request.error, response = response.error, None
        loop = self._owner.calls.loop
        if request.unwanted or loop is None or one.job.alone:
            self._taken(one, final)
            return
        one.untaken += 1
        if one.untaken > _MOST_UNTAKEN:
            raise ValueError("more responses than the gateway has room for")
        if self._on_loop:
            self._hand_over(loop, one, response, final)
        else:
            loop.call_soon_threadsafe(self._hand_over, loop, one, response, final)

    def _hand_over(self, loop: asyncio.AbstractEventLoop, one: _Open, response: Response | None, final: bool) -> None:
        """Gives a response to the client when it has taken those before it. Runs on the event loop."""
        one.waiting.append((response, final))
        if one.giving is None:
            one.giving = loop.create_task(self._give(one))

    async def _give(self, one: _Open) -> None:
        target = one.request.origin or one.request
        while one.waiting:
            response, final = one.waiting.popleft()
            try:
                if response is not None:
                    await self._owner.calls.give(target, response)
                    del response
            finally:
                self._owner.post(lambda talk, final=final: talk.taken(one, final))  # type: ignore[misc]
        one.giving = None

    def taken(self, one: _Open, final: bool) -> None:
        """Takes note that a client has room for one more response to a request."""
        if self._open.get(one.number) is one:
            one.untaken -= 1
            self._moves(one)
            self._taken(one, final)

    def _moves(self, one: _Open) -> None:
        """Lets the time of a request begin anew, and that of the run in which it is: a stream may take long, as long as
        it moves and somebody wants it."""
        one.until = self._later()
        if one.job is self._job and not one.request.unwanted:
            one.job.until = one.until

    def _taken(self, one: _Open, final: bool) -> None:
        self.say(["taken", one.number])
        if final:
            self._close(one, None)

    def _close(self, one: _Open, error: ServingError | None) -> None:
        """Ends a request after its last response."""
        one.ended = one.closed = True
        request, job = one.request, one.job
        if error is not None:
            request.error = request.error or as_serving_error(job.spec, error)
        elif request.error is None and request.result is None:
            if job.spec.streams:
                request.result = {}
            else:
                request.error = internal(f"model '{job.spec.name}': it has sent no response")
        if one.executed:
            self._forget(one)
            request.open = False
            if job.ended:  # otherwise the end of the batch answers it
                job.tell(lambda: job.closed(request))

    def _forget(self, one: _Open) -> None:
        self._open.pop(one.number, None)
        self._numbers.pop(one.request, None)

    def leave(self, request: Request) -> None:
        """Tells the process that nobody waits for a request any more."""
        if number := self._numbers.get(request):
            self.say(["cancel", number])

    @property
    def calls(self) -> Calls:
        """Runs calls of other models."""
        return self._owner.calls

    def post(self, what: Callable[[], None], size: int) -> None:
        """Has something done that may copy so many bytes, unless the process has ended by then."""
        self._owner.post(lambda talk: what() if talk is self else None, size)

    # Whether the model is ready.

    def ask_ready(self, asked: Future[str], seconds: float) -> None:
        """Asks the model. The result of `asked` is why it isn't ready, or empty."""
        self._told_ready("is_ready took too long")
        until = time.monotonic() + seconds
        self._asked_ready = asked, until
        self._look_before(until)
        self._ready_number += 1
        self.say(["ready", self._ready_number])

    def _told_ready(self, reason: str) -> None:
        if self._asked_ready is not None:
            asked, self._asked_ready = self._asked_ready[0], None
            asked.set_result(reason)

    # The end.

    def _finalize(self, ready: select.poll) -> None:
        """Lets the model end itself."""
        end = time.monotonic() + _FINALIZE
        self.say(["finalize"])
        if self._is_open:
            ready.register(self._mail.wakes, select.POLLIN)
        while not self._finalized and time.monotonic() < end:
            found = dict(ready.poll(100))
            if self._mail.has_come or found.get(self._mail.wakes, 0) & select.POLLIN:
                self._take()
            elif self._process.pidfd in found:
                return
            self._send_waiting()

    def died(self, reason: str, jobs: deque[Job]) -> None:
        """Fails what was under way in the process, which has ended. Runs that it has not read, and those of a batch
        whose run has failed, come first in `jobs`."""
        self._calls.cancel()
        self._told_ready(reason)
        error = WorkerDiedError(reason)
        job, self._job = self._job, None
        if job is not None:
            if job.running and self._mail.taken_by_peer() < job.message:  # its requests are not to blame
                for request in job.running:
                    self._open.pop(self._numbers.pop(request, 0), None)
                job.todo.appendleft(job.running)
                job.running = []
            else:
                self._end_run(job, error)
        for one in list(self._open.values()):
            one.waiting.clear()
            self._close(one, error)
        if job is not None and job.todo:
            jobs.appendleft(job)
        elif job is not None:
            job.end()
        self._mail.close()
