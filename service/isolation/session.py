"""A model in a worker process. It has the methods of `Session`, and it starts again when the process dies."""

from __future__ import annotations

import logging
import os
import pickle
import select
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opgate.service.errors import Kind, ServingError
from opgate.service.execution.request import Request
from opgate.service.execution.session import EngineError, EngineTensor
from opgate.service.execution.spec import ModelSpec
from opgate.service.isolation.opening import Opening
from opgate.service.isolation.process import WorkerDiedError, WorkerProcess, command
from opgate.service.isolation.segments import Array, Pool, View, leased
from opgate.service.isolation.tensors import Entry, Layout, read

logger = logging.getLogger("opgate.worker")

# After this many deaths without a run between, the next start waits: twice as long after each further death.
_AT_ONCE = 3
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
# Bytes that a run gets for its outputs at once, if earlier ones needed them.
_LARGEST_GUESS = 1 << 24
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

    takes_requests = False
    isolated = True

    def __init__(self, name: str, opening: Opening, run_timeout: float, python: Path | None = None) -> None:
        """Starts the process. `name` is that of the model. Raises ServingError with why it doesn't open the model.

        A run that takes longer than `run_timeout` seconds ends the process. `python` is the interpreter of another
        environment.
        """
        self._name = name
        self._opening = pickle.dumps(opening)
        self._files = opening.files
        self._command = command() if python is None else command(python)
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
        self.description: dict[str, Any] = self._first  # type: ignore[assignment]  # set by _supervise
        self.inputs, self.outputs, self.defaulted = (
            tuple(EngineTensor(name, type_, tuple(shape)) for name, type_, shape in self.description.get(kind, ()))
            for kind in ("inputs", "outputs", "defaulted")
        )
        self._nodes = {provider: set(types) for provider, types in self.description.get("nodes", {}).items()}
        options = getattr(opening, "options", None)
        self.gpu = getattr(options, "gpu", None)
        self.intra_op_threads: int = getattr(options, "intra_op_threads", 0)

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
        answer, held = self._ask("run", [list(outputs), layout.entries], layout, options)
        return [array for _, array in self._tensors(answer[1], held, answer[2])]

    def execute(self, spec: ModelSpec, requests: Sequence[Request], options: Any = None) -> None:
        """Only a model in Python takes requests."""
        raise NotImplementedError

    def _ask(
        self, kind: str, details: list[Any], layout: Layout, options: Any, context: Any = None
    ) -> tuple[Any, dict[int, View]]:
        """Asks the process to run. `layout` has the inputs, and `details` are what the process reads with them.
        `context` is for `_reply`.

        Returns its answer, and the segments of the run by their numbers. Raises as `run` does.
        """
        source = leased(self._pool, self._pool.take(layout.size))
        layout.write(source.lease.segment)
        target = leased(self._pool, self._pool.take(self._result_size))
        held = {view.lease.segment.number: view for view in (source, target)}
        with self._runs:
            while True:
                process = self._running_process()
                self._run_number += 1
                if options is not None:
                    options.number, options.process = self._run_number, process
                try:
                    forgotten = self._pool.dropped()
                    process.forget(forgotten)
                    numbers = [process.share(view.lease.segment) for view in (source, target)]
                    answer = process.ask([kind, forgotten, self._run_number, *details, *numbers], self._timeout)
                    while answer[0] not in ("done", "error"):
                        answer = process.ask(self._reply(process, answer, held, context), self._timeout)
                    break
                except WorkerDiedError as error:
                    with self._changed:
                        if self._process is process:
                            self._process = None
                    if not error.unread:  # otherwise it had died before, and the request is not to blame
                        raise
        self._failures = 0
        if answer[0] == "error":
            raise EngineError(Kind(answer[1]) if answer[1] else Kind.INTERNAL, answer[2])
        return answer, held

    def _reply(self, process: WorkerProcess, message: Any, held: dict[int, View], context: Any) -> Any:
        """Returns what the process gets for a question of its own within a run."""
        if message[0] != "segment":
            return ["error", Kind.UNSUPPORTED.value, f"the gateway doesn't know {message[0]}"]
        try:
            view = leased(self._pool, self._pool.take(message[1]))
        except (OSError, ValueError, TypeError) as error:
            return ["error", Kind.INTERNAL.value, f"{message[1]} bytes of shared memory: {error}"]
        number = process.share(view.lease.segment)
        held[number] = view
        self._result_size = max(self._result_size, min(message[1], _LARGEST_GUESS))
        return ["segment", number]

    def _tensors(self, entries: Sequence[Entry], held: Mapping[int, View], number: int) -> list[tuple[str, Array]]:
        """Returns tensors that the process has written to a segment. Raises WorkerDiedError if they are none."""
        try:
            memory = held[number]
            return [read(entry, memory, memory.size) for entry in entries]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            process = self._process
            if process is not None:
                process.kill()
            raise WorkerDiedError(f"its worker process gave outputs that can't be read: {error}") from None

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
            wait = wait_before_start(self._failures)
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
            process = WorkerProcess(self._command, self._files)
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


def wait_before_start(failures: int) -> float:
    """Returns how many seconds the next start of a process waits after so many deaths in a row."""
    return 0.0 if failures <= _AT_ONCE else min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (failures - _AT_ONCE - 1))
