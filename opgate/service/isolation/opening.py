"""What a worker process opens. The gateway sends one of these to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from opgate.ops_build.python_ops.embedded import ERRORS
from opgate.service.isolation.channel import NOTE_SIZE, TIMES_SIZE, encoded
from opgate.service.isolation.confinement import Confinement
from opgate.service.isolation.memory import Array
from opgate.service.isolation.tensors import STRINGS
from opgate.service.isolation.worker_log import begin_log

if TYPE_CHECKING:
    from opgate.service.core.request import OpCall
    from opgate.service.execution.session import BoundRun, SessionOptions
    from opgate.service.isolation.worker_end import Link

T = TypeVar("T")

#: Runs of different shapes that both sides remember, and the bytes of tensors that such a run may have.
MOST_PLANS, SMALL = 256, 1 << 16


class Runner(Protocol):
    """A model that a worker has opened."""

    def description(self) -> dict[str, Any]:
        """Returns what the gateway must know of the model, as JSON."""

    def again(self, data: bytes) -> bytes | None:
        """Answers a question that came before in the same bytes. Returns None if it must be read."""

    def answer(self, question: Any, data: bytes) -> list[Any]:
        """Answers a question of the gateway, whose bytes are `data`. An exception becomes an error."""


@runtime_checkable
class Conversing(Protocol):
    """A model that talks with the gateway, both whenever they want."""

    def description(self) -> dict[str, Any]:
        """Returns what the gateway must know of the model, as JSON."""

    def converse(self) -> None:
        """Talks until the gateway ends. Raises EOFError then."""


class Opening(Protocol):
    """How to open a model in a worker."""

    @property
    def confinement(self) -> Confinement:
        """What the worker may not do. The gateway hands it over before the worker gets the opening."""

    @property
    def files(self) -> tuple[int, ...]:
        """File descriptors of the gateway that the worker needs, under the same numbers."""

    def open(self, link: Link) -> Runner | Conversing:
        """Opens the model."""


@dataclass(frozen=True)
class OnnxOpening:
    """A model file for ONNX Runtime. `name` is what the last words of a crash call the model."""

    name: str
    path: Path
    options: SessionOptions
    confinement: Confinement
    json_log: bool

    @property
    def files(self) -> tuple[int, ...]:
        """The images of the op libraries, see op_libraries.py."""
        images = (*self.options.libraries, *self.options.tensorrt_plugins)
        return tuple(int(path.name) for path in images if path.parent == Path("/proc/self/fd"))

    def open(self, link: Link) -> Runner:
        """Opens the file. Raises ServingError as `Session` does."""
        from opgate.service.native import process

        process.watch_crashes(self.json_log)
        process.note_crashes(link.note, NOTE_SIZE)
        process.set_running(f"model '{self.name}'")
        os.environ[ERRORS] = "log"
        begin_log("info", self.json_log, self.name)
        return _OnnxRunner(self.path, self.options, link)


@dataclass
class _Plan:
    """A run that has happened before: its inputs and outputs lie in the same places again."""

    feeds: dict[str, Array]
    targets: dict[str, Array]
    free: int
    answer: bytes
    bound: BoundRun | None


class _OnnxRunner:
    def __init__(self, path: Path, options: SessionOptions, link: Link) -> None:
        from opgate.service.execution.session import Session

        self._session = Session(path, options)
        self._link = link
        self._options = self._session.run_options()
        self._times = link.times
        self._write_times()
        self._binds = True
        self._plans: dict[bytes, _Plan] = {}

    def description(self) -> dict[str, Any]:
        session = self._session
        kinds = {"inputs": session.inputs, "outputs": session.outputs, "defaulted": session.defaulted}
        return {
            **{kind: [[t.name, t.type, t.shape] for t in tensors] for kind, tensors in kinds.items()},
            "timed": session.ops.count,
            "nodes": {} if session.gpu is None else {name: sorted(types) for name, types in session.nodes().items()},
        }

    def again(self, data: bytes) -> bytes | None:
        plan = self._plans.get(data)
        if plan is None:
            return None
        if plan.bound is not None:
            if self._stoppable(plan.bound.run):
                return plan.answer
            self._binds = False
            plan.bound = None
        names = list(plan.targets)
        results = self._stoppable(partial(self._session.run, names, plan.feeds))
        for target, result in zip(plan.targets.values(), results, strict=True):
            if target.shape != result.shape or target.dtype != result.dtype:
                return encoded(["done", self._link.write(names, results, plan.free)])
            target[...] = result
        return plan.answer

    def answer(self, question: Any, data: bytes) -> list[Any]:
        if question[0] == "profile":
            return ["done", [list(operator) for operator in self._session.profile()]]
        _, names, entries, free, *more = question
        link = self._link
        feeds = dict(link.view(entries))
        if more:  # the gateway wants to know the calls of ops
            calls: list[OpCall] = []
            results = self._stoppable(lambda options: self._session.run(names, feeds, options, calls))
            return ["done", link.write(names, results, free), [list(call) for call in calls]]
        written = link.write(names, self._stoppable(partial(self._session.run, names, feeds)), free)
        answer = ["done", written]
        small = free <= SMALL and sum(entry[4] for entry in written) <= SMALL
        if small and all(entry[1] != STRINGS for entry in (*entries, *written)):
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            targets = dict(link.view(written))
            if len(targets) == len(names):  # no output is asked for twice
                bound = self._session.bind(feeds, targets) if self._binds else None
                self._plans[data] = _Plan(feeds, targets, free, encoded(answer), bound)
        return answer

    def _stoppable(self, run: Callable[[Any], T]) -> T:
        """Runs with options by which the gateway can end the run."""
        link, options = self._link, self._options
        if options.terminate:  # the message came after the end of its run
            options = self._options = self._session.run_options()
        link.let_stop(options)
        try:
            return run(options)
        finally:
            link.options = None
            self._write_times()
            if options.terminate:
                self._options = self._session.run_options()

    def _write_times(self) -> None:
        """Lets the gateway see how long ops took, also if this process dies in its next run."""
        if self._session.ops.count:
            self._session.ops.write(self._times, TIMES_SIZE)
