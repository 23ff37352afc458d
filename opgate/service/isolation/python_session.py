"""A model in Python in a worker process. It gets the requests of a batch one by one, as in Triton.

The thread that starts the process also talks with it, see python_talk.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Literal

from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.request import Request
from opgate.service.core.spec import ModelSpec
from opgate.service.core.tensors import SMALL
from opgate.service.execution.batch import Batch
from opgate.service.execution.cost import CostCurve, HandOver
from opgate.service.execution.instance import Closed, Finished, Instance
from opgate.service.execution.session import ModelSession
from opgate.service.isolation.calls import Calls
from opgate.service.isolation.loop_reader import runs_on
from opgate.service.isolation.process import WorkerDiedError, WorkerProcess
from opgate.service.isolation.python_job import Job
from opgate.service.isolation.python_model import PythonOpening
from opgate.service.isolation.python_talk import Talk, UnreadError
from opgate.service.isolation.worker_session import WorkerLimits, WorkerSession

# Seconds in which a batch waits for the start of a process in the place of one that died.
_PATIENCE = 60.0
# Seconds in which a model must say whether it is ready, as in Triton.
_READY = 5.0


class PythonSession(WorkerSession):
    """A `model.py` in a worker process of its own."""

    takes_requests: Literal[True] = True
    MEMORIES = 2

    def __init__(
        self, name: str, opening: PythonOpening, limits: WorkerLimits, calls: Calls, python: Path | None = None
    ) -> None:
        """Starts the process, which initializes the model. Raises ServingError with what the model raised.

        `calls` runs what the model asks of other models. `python` is the interpreter of another environment.
        """
        self.calls = calls
        self._jobs: deque[Job] = deque()  # that no process has yet
        self._posted: deque[Callable[[Talk], None]] = deque()
        self._talk: Talk | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._asked_ready: Future[str] | None = None
        self._asked_until = 0.0
        self._numbers = itertools.count(1)  # of requests, in all processes that the model has
        try:
            super().__init__(name, opening, limits, python)
        except BaseException:
            os.close(self._wake)
            raise

    def instance(self, spec: ModelSpec, finished: Finished, closed: Closed) -> Instance:
        """Returns what runs batches."""
        return _PythonInstance(self, spec, finished, closed)

    def run_options(self) -> Any:
        """Returns None: requests are cancelled one by one."""
        return None

    def submit(self, job: Job) -> None:
        """Takes a batch, from any thread. On the event loop it begins at once, if it is small and the next one."""
        with self._changed:
            refused = self._refusal()
            if not refused:
                self._jobs.append(job)
        if refused:
            job.end(ServingError(Kind.UNAVAILABLE, refused))
            return
        talk = self._talk
        if talk is None or not talk.do(Talk.start_next):
            self.post(None)

    def _refusal(self) -> str:
        if self._closed:
            return "the model is being unloaded"
        return self.down if self._process is None else ""

    @property
    def starting(self) -> bool:
        """Whether there is no process now."""
        return self._process is None

    def give_up(self, job: Job) -> None:
        """Fails a batch that no process has taken in time."""
        with self._changed:
            if job not in self._jobs or self._process is not None:
                return
            self._jobs.remove(job)
        job.end(ServingError(Kind.UNAVAILABLE, self.down or "its worker process is still starting"))

    def leave(self, request: Request) -> None:
        """Tells the model that nobody waits for a request any more."""
        self.post(lambda talk: talk.leave(request))

    @property
    def asks_ready(self) -> bool:
        """Whether the model has a method `is_ready`."""
        return bool(self.description.get("asks_ready"))

    def ask_ready(self) -> Future[str]:
        """Asks `is_ready` of the model. The result is why it isn't ready, or empty. Those who ask meanwhile get the
        same."""
        with self._changed:
            asked = self._asked_ready
            if asked is not None and not asked.done() and time.monotonic() < self._asked_until:
                return asked
            asked = self._asked_ready = Future()
            asked.set_running_or_notify_cancel()  # one of those who ask may leave
            self._asked_until = time.monotonic() + _READY
            if self._process is None:
                asked.set_result(self._refusal() or "its worker process is still starting")
                return asked
        self.post(lambda talk: talk.ask_ready(asked, _READY))
        return asked

    def post(self, what: Callable[[Talk], None] | None, size: int = 0) -> None:
        """Has something done that may copy so many bytes, if there is a process then: on the event loop at once, if
        that can be, else by the thread of the process. Wakes that if there is nothing to do."""
        if what is not None:
            talk = self._talk
            if talk is not None and size <= SMALL and talk.do(what):
                return
            self._posted.append(what)
        with self._changed:
            if self._wake >= 0:  # the session is not closed
                os.eventfd_write(self._wake, 1)

    def change_metric(self, change: Sequence[Any]) -> None:
        """Changes a metric of the model's own. Raises ValueError and TypeError for what is no change."""
        name, kind, text, labels, buckets, how, value = change
        own = {str(key): str(label) for key, label in dict(labels).items()}
        ends = [float(end) for end in buckets]
        self.calls.metrics.change(self._name, str(name), str(kind), str(text), own, ends, str(how), float(value))

    def execute(self, spec: ModelSpec, requests: Sequence[Request], options: Any = None) -> None:
        """Runs requests outside of the queue, waits for them, and sets the result or the error of each. Nobody takes
        the responses of a decoupled model."""
        end = time.monotonic() + _PATIENCE + 2 * self._limits.run_timeout
        while True:
            self._execute_once(spec, requests, end)
            requests = [request for request in requests if request.again]
            if not requests:
                return

    def _execute_once(self, spec: ModelSpec, requests: Sequence[Request], end: float) -> None:
        done = threading.Event()
        batch = Batch(list(requests), sum([request.rows for request in requests]), CostCurve(HandOver(0)))
        waiting = set(requests)

        def closed(request: Request) -> None:
            waiting.discard(request)
            if not waiting:
                done.set()

        def finished() -> None:
            for request in requests:
                if not request.open:
                    closed(request)

        self.submit(Job(batch, spec, lambda what: what(), finished, closed, deque([batch.requests]), alone=True))
        if not done.wait(max(0.0, end - time.monotonic())):
            raise ServingError(Kind.UNAVAILABLE, "its worker process did not answer")

    # What the supervising thread does.

    def _until_death(self, process: WorkerProcess) -> str:
        """Talks with the process until it has ended, or until the session is closed. Returns why it has ended."""
        talk = self._talk = Talk(self, process, self._numbers)
        reason = ""
        try:
            talk.serve(self._jobs, self._posted, self._wake, self._end)
        except WorkerDiedError as error:
            reason = error.message
        except UnreadError as error:
            reason = process.at_fault(str(error)).message
        except Exception as error:
            reason = process.at_fault(f"it sent what nobody can read ({type(error).__name__}: {error})").message
        with self._changed:
            self._process = self._talk = None
        if self._closed:
            process.kill()
        reason = reason or process.death()
        talk.died(reason, self._jobs)
        for job in list(self._jobs):
            if job.waits is not None:
                job.waits()
        process.free()  # requests that a client still holds may refer to it
        if talk.ran:
            self._failures = 0
        return reason

    def _refuse_waiting(self, reason: str) -> None:
        with self._changed:
            jobs = list(self._jobs)
            self._jobs.clear()
        for job in jobs:
            job.end(ServingError(Kind.UNAVAILABLE, reason))

    def close(self) -> None:
        """Lets the model finalize itself, and ends the process."""
        super().close()
        self._refuse_waiting("the model is being unloaded")
        with self._changed:
            wake, self._wake = self._wake, -1
            asked = self._asked_ready
        os.close(wake)
        if asked is not None and not asked.done():
            asked.set_result("the model is being unloaded")

    @property
    def run_timeout(self) -> float:
        """Seconds in which `execute` must return, and a model send something for a request that it left open."""
        return self._limits.run_timeout


class _PythonInstance:
    """An instance that hands its batches to the thread of a process."""

    def __init__(self, session: PythonSession, spec: ModelSpec, finished: Finished, closed: Closed) -> None:
        self.session: ModelSession = session
        self.batch: Batch | None = None
        self.sent_ns = 0
        self._python = session
        self._spec = spec
        self._finished = finished
        self._closed = closed

    def start(self, batch: Batch, loop: asyncio.AbstractEventLoop) -> None:
        """Hands over a batch. `finished` is called on `loop` when `execute` has returned, and then `closed` for each
        request that was left open."""
        self.batch = batch
        self.sent_ns = perf_counter_ns()

        def tell(what: Callable[[], None]) -> None:
            if runs_on(loop):
                loop.call_soon(what)
                return
            with contextlib.suppress(RuntimeError):  # the loop has closed
                loop.call_soon_threadsafe(what)

        runs = deque([batch.requests])
        job = Job(batch, self._spec, tell, lambda: self._finished(self, batch), self._closed, runs)

        def give_up_later() -> None:
            loop.call_later(_PATIENCE, self._python.give_up, job)

        job.waits = lambda: tell(give_up_later)
        self._python.submit(job)
        if self._python.starting:
            job.waits()

    def leave(self, request: Request) -> None:
        """Tells the model that nobody waits for a request any more."""
        self._python.leave(request)

    def stop(self) -> None:
        """Does nothing: the session ends its thread."""
