"""A model file in a worker process: how it runs, as in the gateway's own process."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from opgate.service.core.datatypes import BY_ONNX
from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.request import OpCall
from opgate.service.execution.engine_profile import Operator, read_operators
from opgate.service.execution.session import EngineError
from opgate.service.execution.timed_ops import read_calls
from opgate.service.isolation.channel import MOST_BYTES, MessageTooLongError, encoded
from opgate.service.isolation.memory import Array
from opgate.service.isolation.opening import MOST_PLANS, SMALL, OnnxOpening
from opgate.service.isolation.process import WorkerDiedError, WorkerProcess
from opgate.service.isolation.tensors import STRINGS, Entry, Layout, copy, view
from opgate.service.isolation.worker_session import WorkerLimits, WorkerSession

# Seconds in which a run waits for the start of a process in the place of one that died.
_PATIENCE = 60.0


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


class Run:
    """A run in a process, and when it must have ended, by time.monotonic()."""

    __slots__ = ("number", "process", "until")

    def __init__(self, process: WorkerProcess, number: int, timeout: float) -> None:
        self.process = process
        self.number = number
        self.until = time.monotonic() + timeout

    def copies(self, entries: Sequence[Entry], most: int) -> list[tuple[str, Array]]:
        """Returns names and copies of at most so many tensors in the memory of the process. Raises ValueError,
        TypeError."""
        memory = self.process.tensors
        if len(entries) > most:
            raise ValueError(f"{len(entries)} tensors, expected at most {most}")
        sizes = [entry[4] for entry in entries]
        if min(sizes, default=0) < 0 or sum(sizes) > memory.size:  # several may name the same bytes
            raise ValueError(f"the tensors take {sum(sizes)} bytes of a memory of {memory.size}")
        return [copy(entry, memory.memory, memory.size) for entry in entries]


class _SmallRuns:
    """What is remembered of runs on small tensors in a process: such tensors have the same places each time."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process
        self._memory = process.tensors
        # By names, dtypes and shapes: what the process is asked, and where the inputs go.
        self.questions: dict[Hashable, tuple[bytes, list[Array]]] = {}
        # Views of outputs, by their names and what the process answers for them.
        self.results: dict[tuple[tuple[str, ...], bytes], list[Array]] = {}

    def keep_question(self, key: Hashable, question: bytes, entries: Sequence[Entry]) -> None:
        """Remembers where inputs lie."""
        if len(self.questions) >= MOST_PLANS:
            self.questions.clear()
        self.questions[key] = question, [view(entry, self._memory.memory, self._memory.size)[1] for entry in entries]

    def keep_result(self, key: tuple[tuple[str, ...], bytes], entries: Sequence[Entry]) -> None:
        """Remembers where outputs lie, if they are small and no strings."""
        if any(entry[1] == STRINGS for entry in entries) or sum(entry[4] for entry in entries) > SMALL:
            return
        if len(self.results) >= MOST_PLANS:
            self.results.clear()
        self.results[key] = [view(entry, self._memory.memory, self._memory.size)[1] for entry in entries]


class ProcessSession(WorkerSession):
    """A model file in a worker process of its own. It has the methods of `Session`, and one run at a time."""

    takes_requests: Literal[False] = False
    #: Bytes of tensors that stay in memory between runs.
    KEPT_BYTES = 1 << 26

    def __init__(self, name: str, opening: OnnxOpening, limits: WorkerLimits) -> None:
        """Starts the process. `name` is that of the model. Raises ServingError with why it doesn't open the model."""
        self._file = opening
        self._runs = threading.Lock()
        self._run_number = 0
        self._small: _SmallRuns | None = None
        self._late = f"a run took longer than {limits.run_timeout:g} s"
        super().__init__(name, opening, limits)
        self._expected = {tensor.name: tensor for tensor in self.outputs}

    def run_options(self) -> Any:
        """Returns options for one run, see `_RunOptions`."""
        return _RunOptions()

    def run(
        self,
        outputs: Sequence[str],
        feeds: dict[str, Array],
        options: Any = None,
        calls: list[OpCall] | None = None,
    ) -> list[Array]:
        """Runs the model and returns the named outputs, as views of the memory that it shares with the process. The
        calls of ops are added to `calls`.

        Raises EngineError if the model fails, WorkerDiedError if its process dies, and ServingError (UNAVAILABLE) if
        the process can't run now.
        """
        with self._runs:
            while True:
                process = self._process or self._running_process()
                small = self._small
                if small is None or small.process is not process:
                    small = self._small = _SmallRuns(process)
                try:
                    if calls is None:
                        return self._run(process, small, outputs, feeds, options)
                    return self._run_recorded(process, outputs, feeds, options, calls)
                except WorkerDiedError as error:
                    if not error.unread:  # otherwise the request is not to blame
                        raise

    def _run(
        self, process: WorkerProcess, small: _SmallRuns, outputs: Sequence[str], feeds: dict[str, Array], options: Any
    ) -> list[Array]:
        names = tuple(outputs)
        key = (names, tuple([(name, array.dtype, array.shape) for name, array in feeds.items()]))
        known = small.questions.get(key)
        if known is not None:
            question, targets = known
            for target, array in zip(targets, feeds.values(), strict=True):
                target[...] = array
        else:
            layout = Layout(list(feeds), list(feeds.values()))
            question = encoded(["run", names, layout.entries, layout.end])
            self._write(process, layout)
            if layout.end <= SMALL and all(entry[1] != STRINGS for entry in layout.entries):
                small.keep_question(key, question, layout.entries)
        run = self._begin(process, options)
        data = self._asked(run, question)
        results = small.results.get((names, data))
        if results is not None:
            self._failures = 0
            return [array.copy() for array in results]
        answer = self._last_answer(run, data)
        found = self._outputs(run, answer, outputs)
        small.keep_result((names, data), answer[1])
        if known is None:
            process.tensors.keep(self.KEPT_BYTES)
        return found

    def _run_recorded(
        self,
        process: WorkerProcess,
        outputs: Sequence[str],
        feeds: dict[str, Array],
        options: Any,
        calls: list[OpCall],
    ) -> list[Array]:
        layout = Layout(list(feeds), list(feeds.values()))
        self._write(process, layout)
        run = self._begin(process, options)
        question = encoded(["run", list(outputs), layout.entries, layout.end, True])
        answer = self._last_answer(run, self._asked(run, question))
        try:
            calls += read_calls(answer.pop())
        except (ValueError, TypeError, OverflowError) as error:
            raise self._unreadable(run, error) from None
        found = self._outputs(run, answer, outputs)
        process.tensors.keep(self.KEPT_BYTES)
        return found

    def profiled(self, folder: Path) -> ProcessSession:
        """Opens the file in another process, with a profiler that writes to a folder. Raises ServingError as
        `ProcessSession` does."""
        opening = self._file
        confinement = replace(opening.confinement, writable=str(folder))
        options = replace(opening.options, profile=folder)
        opening = replace(opening, options=options, confinement=confinement)
        return ProcessSession(self._name, opening, self._limits)

    def profile(self) -> list[Operator]:
        """Ends the profiler of a session that `profiled` has opened. Returns the operators of the last run."""
        with self._runs:
            run = self._begin(self._process or self._running_process(), None)
            answer = self._last_answer(run, self._asked(run, encoded(["profile"])))
            try:
                _, rows = answer
                return read_operators(rows)
            except (ValueError, TypeError, OverflowError) as error:
                raise self._unreadable(run, error) from None

    def _write(self, process: WorkerProcess, layout: Layout) -> None:
        """Copies the inputs of a run to the shared memory. Raises ServingError (TOO_LARGE) if they have no room."""
        memory = process.tensors
        if layout.end > memory.size:
            text = f"the inputs take {layout.end} bytes, a run in a worker process has {memory.size}"
            raise ServingError(Kind.TOO_LARGE, f"{text} (OPGATE_MAX_WORKER_BYTES)")
        layout.write(memory.memory)

    def _begin(self, process: WorkerProcess, options: Any) -> Run:
        """Begins a run. `options` are those of `run_options`."""
        self._run_number += 1
        if options is not None:
            options.number, options.process = self._run_number, process
            if options.terminate:  # while the run waited for a process
                process.stop(self._run_number)
        return Run(process, self._run_number, self._limits.run_timeout)

    def _asked(self, run: Run, question: bytes) -> bytes:
        """Asks the process to run, and returns its first message. Raises ServingError (TOO_LARGE) for a question that
        is too long."""
        try:
            return run.process.ask(question, run.number, run.until, self._late)
        except MessageTooLongError as error:
            text = f"ids and parameters of requests take {error.size} bytes on the way to a worker process"
            raise ServingError(Kind.TOO_LARGE, f"{text}, the limit is {MOST_BYTES}") from None
        except WorkerDiedError:
            self._forget(run.process)
            raise

    def _last_answer(self, run: Run, data: bytes) -> Any:
        """Answers what the process asks until the run is done. Returns its last message.

        Raises EngineError. After any other error the process is ended: it may wait for an answer that never comes.
        """
        process = run.process
        failure: tuple[Kind, str] | None = None
        try:
            answer = process.parsed(data)
            while answer[0] not in ("done", "error"):
                text = f"the gateway doesn't know {str(answer[0])[:80]}"
                reply = encoded(["error", Kind.UNSUPPORTED.value, text])
                answer = process.parsed(process.ask(reply, run.number, run.until, self._late))
            if answer[0] == "error":
                _, kind, text = answer
                failure = Kind(kind) if kind else Kind.INTERNAL, str(text)
        except BaseException as error:
            process.kill()
            self._forget(process)
            if not isinstance(error, Exception) or isinstance(error, ServingError):
                raise
            text = f"its worker process asked for what nobody can give: {type(error).__name__}: {error}"
            raise WorkerDiedError(text[:1000]) from None
        self._failures = 0
        if failure is not None:
            raise EngineError(*failure)
        return answer

    def _forget(self, process: WorkerProcess) -> None:
        """Takes the process as gone at once: it has died."""
        with self._changed:
            if self._process is process:
                self._process = None

    def _outputs(self, run: Run, answer: Any, names: Sequence[str]) -> list[Array]:
        """Returns copies of the outputs that a run has given, which are those that were asked for and of the types that
        the model file states. Raises WorkerDiedError if they are others."""
        try:
            _, entries = answer
            found = run.copies(entries, len(names))
            if [name for name, _ in found] != list(names):
                raise ValueError(f"expected {list(names)}")
            for name, array in found:
                self._check(name, array)
        except (ValueError, TypeError, IndexError) as error:
            raise self._unreadable(run, error) from None
        return [array for _, array in found]

    def _check(self, name: str, array: Array) -> None:
        """Raises ValueError if an output is not as the model file states it."""
        stated = self._expected.get(name)
        if stated is None:
            raise ValueError(f"there is no output '{name}'")
        datatype = BY_ONNX.get(stated.type)
        if datatype is not None and array.dtype != datatype.dtype:
            raise ValueError(f"output '{name}' is {array.dtype}, the model says {datatype.name}")

    def _unreadable(self, run: Run, error: Exception) -> WorkerDiedError:
        run.process.kill()
        self._forget(run.process)
        return WorkerDiedError(f"its worker process gave outputs that can't be read: {error}")

    def _running_process(self) -> WorkerProcess:
        """Returns the process, after its start if it starts now. Raises ServingError (UNAVAILABLE)."""
        with self._changed:
            self._changed.wait_for(lambda: self._process is not None or self.down or self._closed, _PATIENCE)
            if self._process is None:
                reason = "the model is being unloaded" if self._closed else "its worker process is still starting"
                raise ServingError(Kind.UNAVAILABLE, self.down or reason)
            return self._process

    def close(self) -> None:
        """Ends the process. Nothing may run the session any more."""
        super().close()
        self._small = None
