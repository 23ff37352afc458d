"""A model in a worker process. It has the methods of `Session`, and it starts again when the process dies."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import select
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from opgate.service.errors import Kind, ServingError
from opgate.service.execution.session import EngineError, EngineTensor
from opgate.service.isolation.opening import Opening
from opgate.service.isolation.process import WorkerDiedError, WorkerProcess, command
from opgate.service.isolation.segments import Array, Pool, View, leased
from opgate.service.isolation.tensors import Layout, read

logger = logging.getLogger("opgate.worker")

# After this many deaths without a run between, the next start waits: twice as long after each further death.
_AT_ONCE = 3
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
# Seconds in which a model must be open. TensorRT takes minutes to build an engine.
_START = 1200.0


class _RunOptions:
    """What `run_options` of a session returns: a thread sets `terminate` to end a run that nobody needs."""

    __slots__ = ("_terminate", "number", "process")

    def __init__(self) -> None:
        self._terminate = False
        self.number = 0
        self.process: WorkerProcess | None = None

    @property
    def terminate(self) -> bool:
        """Whether the run should end."""
        return self._terminate

    @terminate.setter
    def terminate(self, value: bool) -> None:
        self._terminate = value
        if value and self.process is not None:
            self.process.stop(self.number)


class ProcessSession:
    """A model in a worker process of its own. It has the methods of `Session`, and one run at a time."""

    def __init__(self, name: str, opening: Opening, run_timeout: float) -> None:
        """Starts the process. `name` is that of the model. Raises ServingError with why it doesn't open the model.

        A run that takes longer than `run_timeout` seconds ends the process.
        """
        self.isolated = True
        self._name = name
        self._opening = pickle.dumps(opening)
        self._files = opening.files
        self._timeout = run_timeout
        self._pool = Pool()
        self._runs = threading.Lock()
        self._run_number = 0
        self._result_size = 0
        self._changed = threading.Condition()
        self._process: WorkerProcess | None = None
        self._closed = False
        self._failures = 0  # deaths and failed starts since the last run that returned
        self.down = ""  # why the model can't run now, while nobody tries to start the process
        self.starts = 0
        self.deaths = 0
        self._end = os.eventfd(0, os.EFD_CLOEXEC)
        self._first: Any = None  # what the first start found, or its error
        # The process ends with the thread that starts it. See worker.py.
        self._thread = threading.Thread(target=self._supervise, name=f"worker-{name}", daemon=True)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._first is not None)
        if isinstance(self._first, ServingError):
            self._thread.join()
            raise self._first
        found: Any = self._first
        self.inputs, self.outputs, self.defaulted = (
            tuple(EngineTensor(name, type_, tuple(shape)) for name, type_, shape in found[kind])
            for kind in ("inputs", "outputs", "defaulted")
        )
        self._nodes = {provider: set(types) for provider, types in found["nodes"].items()}
        self.gpu = getattr(getattr(opening, "options", None), "gpu", None)

    @property
    def pid(self) -> int:
        """The number of the process, 0 while there is none."""
        process = self._process
        return 0 if process is None else process.pid

    def run_options(self) -> _RunOptions:
        """Returns options for one run, see `_RunOptions`."""
        return _RunOptions()

    def nodes(self) -> dict[str, set[str]]:
        """Returns the op types of the nodes by provider, in a session on a GPU."""
        return self._nodes

    def run(self, outputs: Sequence[str], feeds: dict[str, Array], options: Any = None) -> list[Array]:
        """Runs the model and returns the named outputs, as views of the memory that it shares with the process.

        Raises EngineError if the model fails, WorkerDiedError if its process dies, and ServingError (UNAVAILABLE) if
        the process can't run now.
        """
        layout = Layout(list(feeds), list(feeds.values()))
        source = leased(self._pool, self._pool.take(layout.size))
        layout.write(source.lease.segment)
        target = leased(self._pool, self._pool.take(self._result_size))
        with self._runs:
            process, answer = self._ask(outputs, layout, source, target, options)
            if answer[0] == "larger":
                self._result_size = answer[1]
                target = leased(self._pool, self._pool.take(answer[1]))
                with self._noticing(process):
                    answer = process.ask(["segment", process.share(target.lease.segment)], self._timeout)
        self._failures = 0
        if answer[0] == "error":
            raise EngineError(Kind(answer[1]) if answer[1] else Kind.INTERNAL, answer[2])
        try:
            return [read(entry, target, target.size)[1] for entry in answer[1]]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            process.kill()
            raise WorkerDiedError(f"its worker process gave outputs that can't be read: {error}") from None

    def _ask(
        self, outputs: Sequence[str], layout: Layout, source: View, target: View, options: Any
    ) -> tuple[WorkerProcess, Any]:
        """Lets the process run. A process that had died before the question came is not to blame on its request."""
        while True:
            process = self._running_process()
            self._run_number += 1
            if options is not None:
                options.number, options.process = self._run_number, process
            forgotten = self._pool.dropped()
            process.forget(forgotten)
            numbers = process.share(source.lease.segment), process.share(target.lease.segment)
            question = ["run", self._run_number, list(outputs), layout.entries, *numbers, forgotten]
            try:
                with self._noticing(process):
                    return process, process.ask(question, self._timeout)
            except WorkerDiedError as error:
                if not error.unread:
                    raise

    @contextlib.contextmanager
    def _noticing(self, process: WorkerProcess) -> Iterator[None]:
        """Takes the process as gone at once if it dies in the block."""
        try:
            yield
        except WorkerDiedError:
            with self._changed:
                if self._process is process:
                    self._process = None
            raise

    def close(self) -> None:
        """Ends the process. Nothing may run the session any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        os.eventfd_write(self._end, 1)
        self._thread.join()
        os.close(self._end)

    def _running_process(self) -> WorkerProcess:
        """Returns the process, after its start if it starts now."""
        with self._changed:
            self._changed.wait_for(lambda: self._process is not None or self.down or self._closed)
            if self._process is None:
                raise ServingError(Kind.UNAVAILABLE, self.down or "the model is being unloaded")
            return self._process

    def _supervise(self) -> None:
        """Starts the process again and again, until the session is closed."""
        while True:
            process, reason = self._start()
            if process is not None:
                reason = self._until_death(process)
            if self._closed or self._first is None or isinstance(self._first, ServingError):
                return
            self.deaths += 1
            self._failures += 1
            wait = _wait(self._failures)
            logger.error("model '%s': %s", self._name, reason, extra={"model": self._name, "deaths": self._failures})
            if wait:
                with self._changed:
                    self.down = f"{reason}, {self._failures} times in a row. The next start is in {wait:g} s"
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._closed, wait)
                    self.down = ""
                    if self._closed:
                        return

    def _start(self) -> tuple[WorkerProcess | None, str]:
        """Returns a process that has opened the model, or why there is none. The first time that goes to `_first`."""
        process: WorkerProcess | None = None
        try:
            process = WorkerProcess(command(), self._files)
            self.starts += 1
            kind, *rest = process.open(self._opening, _START)
            if kind == "error":
                raise ServingError(Kind.UNAVAILABLE, rest[1])
            first: Any = rest[0]
        except ServingError as error:
            if process is not None:
                process.kill()
            process, first = None, error
        with self._changed:
            if self._first is None:
                self._first = first
            self._process = process
            self._changed.notify_all()
        return process, "" if process is not None else str(first)

    def _until_death(self, process: WorkerProcess) -> str:
        """Waits until the process has ended, and returns why. Ends it if the session is closed."""
        ready = select.poll()
        ready.register(process.pidfd, select.POLLIN)
        ready.register(self._end, select.POLLIN)
        ready.poll()
        with self._changed:
            self._process = None
        if self._closed:
            process.kill()
        return process.death()


def _wait(failures: int) -> float:
    """Returns how many seconds the next start waits."""
    return 0.0 if failures <= _AT_ONCE else min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (failures - _AT_ONCE - 1))
