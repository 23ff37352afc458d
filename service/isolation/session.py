"""A model in a worker process. It has the methods of `Session`, and it starts again when the process dies."""

from __future__ import annotations

import logging
import os
import pickle
import select
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from opgate.service.errors import Kind, ServingError
from opgate.service.execution.request import Request
from opgate.service.execution.session import EngineError, EngineTensor
from opgate.service.execution.spec import ModelSpec
from opgate.service.isolation.channel import encoded
from opgate.service.isolation.opening import Opening
from opgate.service.isolation.process import WorkerDiedError, WorkerProcess, command
from opgate.service.isolation.segments import MOST_PLANS, REPEATED, SMALLEST, Array, Pool, View, leased
from opgate.service.isolation.tensors import STRINGS, Entry, Layout, read

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


class _Repeat(NamedTuple):
    """A run on small inputs of some shapes: what the process is asked, and where the inputs go."""

    question: bytes
    targets: list[Array]


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
        self._small = {number: leased(self._pool, self._pool.take(0)) for number in REPEATED}
        self._repeats: dict[Hashable, _Repeat] = {}
        self._results: dict[bytes, list[Array]] = {}  # views of small outputs, by what the process answers for them
        self._changed = threading.Condition()
        self._process: WorkerProcess | None = None
        self._closed = False
        self._failures = 0  # deaths and failed starts since the last run that returned
        self.down = ""  # why the model can't run now, while nobody tries to start the process
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
        logger.info("a worker process runs model '%s': %s", name, opening.confinement, extra={"model": name})
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
        key = (tuple(outputs), tuple([(name, array.dtype, array.shape) for name, array in feeds.items()]))
        repeat = self._repeats.get(key)
        with self._runs:
            if repeat is not None:
                return self._run_again(repeat, feeds.values(), options)
            layout = Layout(list(feeds), list(feeds.values()))
            if layout.size <= SMALLEST and all(entry[1] != STRINGS for entry in layout.entries):
                if len(self._repeats) >= MOST_PLANS:
                    self._repeats.clear()
                question = encoded(["run", [], list(outputs), layout.entries, *REPEATED])
                memory = self._small[REPEATED[0]]
                targets = [read(entry, memory, memory.size)[1] for entry in layout.entries]
                repeat = self._repeats[key] = _Repeat(question, targets)
                return self._run_again(repeat, feeds.values(), options)
            process, answer, held = self._ask("run", [list(outputs), layout.entries], layout, options)
            return [array for _, array in self._tensors(process, answer[1], held, answer[2])]

    def _run_again(self, repeat: _Repeat, arrays: Iterable[Array], options: Any) -> list[Array]:
        """Runs on small inputs, which lie in a segment that is always there. Small outputs are copied from another."""

        def question(process: WorkerProcess) -> bytes:
            for target, array in zip(repeat.targets, arrays, strict=True):
                target[...] = array
            return repeat.question

        process, data = self._converse(question, options)
        known = self._results.get(data)
        if known is None:
            held = dict(self._small)
            answer = self._last_answer(process, data, held)
            found = [array for _, array in self._tensors(process, answer[1], held, answer[2])]
            if answer[2] != REPEATED[1]:
                return found
            known = found
            if all(entry[1] != STRINGS for entry in answer[1]):
                if len(self._results) >= MOST_PLANS:
                    self._results.clear()
                self._results[data] = known
        self._failures = 0
        return [array.copy() for array in known]

    def execute(self, spec: ModelSpec, requests: Sequence[Request], options: Any = None) -> None:
        """Only a model in Python takes requests."""
        raise NotImplementedError

    def _ask(
        self, kind: str, details: list[Any], layout: Layout, options: Any, context: Any = None
    ) -> tuple[WorkerProcess, Any, dict[int, View]]:
        """Asks the process to run. `layout` has the inputs, and `details` are what the process reads with them.
        `context` is for `_reply`.

        Returns the process, its answer, and the segments of the run by their numbers. Raises as `run` does.
        """
        source = leased(self._pool, self._pool.take(layout.size))
        layout.write(source.lease.segment)
        target = leased(self._pool, self._pool.take(self._result_size))
        held = {view.lease.segment.number: view for view in (source, target)}

        def question(process: WorkerProcess) -> bytes:
            forgotten = self._pool.dropped()
            process.forget(forgotten)
            numbers = [process.share(view.lease.segment) for view in (source, target)]
            return encoded([kind, forgotten, *details, *numbers])

        process, data = self._converse(question, options)
        return process, self._last_answer(process, data, held, context), held

    def _converse(self, question: Callable[[WorkerProcess], bytes], options: Any) -> tuple[WorkerProcess, bytes]:
        """Asks the process, or the one that follows it if it had died before. Returns it, and its first message."""
        while True:
            process = self._process or self._running_process()
            self._run_number += 1
            if options is not None:
                options.number, options.process = self._run_number, process
            try:
                return process, process.ask(question(process), self._timeout, self._run_number)
            except WorkerDiedError as error:
                self._forget(process)
                if not error.unread:  # otherwise the request is not to blame
                    raise

    def _last_answer(self, process: WorkerProcess, data: bytes, held: dict[int, View], context: Any = None) -> Any:
        """Answers what the process asks until it is done. Returns its last message. Raises EngineError."""
        try:
            answer = process.parsed(data)
            while answer[0] not in ("done", "error"):
                reply = encoded(self._reply(process, answer, held, context))
                answer = process.parsed(process.ask(reply, self._timeout))
        except WorkerDiedError:
            self._forget(process)
            raise
        self._failures = 0
        if answer[0] == "error":
            raise EngineError(Kind(answer[1]) if answer[1] else Kind.INTERNAL, answer[2])
        return answer

    def _forget(self, process: WorkerProcess) -> None:
        """Takes the process as gone at once: it has died."""
        with self._changed:
            if self._process is process:
                self._process = None

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

    def _tensors(
        self, process: WorkerProcess, entries: Sequence[Entry], held: Mapping[int, View], number: int
    ) -> list[tuple[str, Array]]:
        """Returns tensors that the process has written to a segment, with their names.

        Raises WorkerDiedError if they are none.
        """
        try:
            memory = held[number]
            return [read(entry, memory, memory.size) for entry in entries]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            process.kill()
            self._forget(process)
            raise WorkerDiedError(f"its worker process gave outputs that can't be read: {error}") from None

    def close(self) -> None:
        """Ends the process. Nothing may run the session any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        os.eventfd_write(self._end, 1)
        self._thread.join()
        os.close(self._end)
        # The model may stay in memory until Python collects it. What it shared with the process need not.
        self._pool.close()
        self._small = {}
        self._repeats.clear()
        self._results.clear()

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
            kind, *rest = process.open(self._opening, _START)
            if kind == "error":
                raise ServingError(Kind.UNAVAILABLE, rest[1])
            for view in self._small.values():
                process.share(view.lease.segment)
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
