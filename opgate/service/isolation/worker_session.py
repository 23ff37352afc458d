"""A model in a worker process, which starts again when it dies."""

from __future__ import annotations

import logging
import os
import pickle
import select
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opgate.child_process import wait_before_start
from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.op_times import OpTimes, bounded, sum_of
from opgate.service.execution.session import EngineTensor
from opgate.service.isolation.opening import Opening
from opgate.service.isolation.process import WorkerProcess, command, environment

logger = logging.getLogger("opgate.worker")

# Libraries of a model that say how long their ops take.
_MOST_TIMED = 64


@dataclass(frozen=True)
class WorkerLimits:
    """What the operator allows the worker processes of all models.

    A run that takes longer than `run_timeout` seconds ends its process, and so does a model that isn't open after
    `start_timeout`. The tensors of a run may have `tensor_bytes`. `environment` are names of variables that a worker
    gets, with * and ?.
    """

    run_timeout: float
    tensor_bytes: int = 1 << 32
    environment: tuple[str, ...] = ()
    start_timeout: float = 1200.0


class WorkerSession:
    """A model in a worker process of its own: what all sessions of such models have in common. A thread starts the
    process, and another one when it has died."""

    isolated = True
    #: How many times the memory of a run a process shares with the gateway.
    MEMORIES = 1

    def __init__(self, name: str, opening: Opening, limits: WorkerLimits, python: Path | None = None) -> None:
        """Starts the process. `name` is that of the model. Raises ServingError with why it doesn't open the model.

        `python` is the interpreter of another environment.
        """
        self._name = name
        self._opening = pickle.dumps(opening)
        self._confinement = opening.confinement
        self._files = opening.files
        self._command = command() if python is None else command(python)
        self._limits = limits
        self._changed = threading.Condition()
        self._process: WorkerProcess | None = None
        self._measured: WorkerProcess | None = None  # the process whose op times are not in those of the past
        self._closed = False
        self._failures = 0  # deaths and failed starts since the last run that returned
        self.down = ""  # why the model can't run now, while nobody tries to start the process
        self.deaths = 0
        self._timed = 0  # libraries that say how long their ops take
        self._past_op_times: OpTimes = {}  # of processes that have died
        self._first: Any = None  # what the first start found, or its error
        self._end = os.eventfd(0, os.EFD_CLOEXEC)
        # The process ends with the thread that starts it. See keeper.py.
        self._thread = threading.Thread(target=self._supervise, name=f"worker-{name}", daemon=True)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._first is not None)
        if isinstance(self._first, ServingError):
            self._thread.join()
            os.close(self._end)
            raise self._first
        self.description: dict[str, Any] = self._first  # type: ignore[assignment]  # set by _supervise
        try:
            self._describe()
        except (TypeError, ValueError, AttributeError) as error:
            self.close()
            text = f"its worker process says of the model what no model has: {error}"
            raise ServingError(Kind.UNAVAILABLE, text) from None
        options = getattr(opening, "options", None)
        self.gpu = getattr(options, "gpu", None)
        self.intra_op_threads: int = getattr(options, "intra_op_threads", 0)

    @property
    def asks_ready(self) -> bool:
        """Whether the model says itself whether it is ready."""
        return False

    def ask_ready(self) -> Future[str]:
        """Asks a model that `asks_ready`. The result is why it isn't ready, or empty."""
        raise NotImplementedError

    def _describe(self) -> None:
        """Takes over what the process says of the model."""
        self.inputs, self.outputs, self.defaulted = (
            tuple(
                EngineTensor(str(name), str(type_), tuple(shape))
                for name, type_, shape in self.description.get(kind, ())
            )
            for kind in ("inputs", "outputs", "defaulted")
        )
        self._timed = min(_MOST_TIMED, int(self.description.get("timed", 0)))
        self._nodes = {provider: set(types) for provider, types in self.description.get("nodes", {}).items()}
        missing = "; ".join(map(str, self.description.get("missing", ())))
        logger.info(
            "a worker process runs model '%s': %s%s",
            self._name,
            replace(self._confinement, counted=bool(self.description.get("counted"))),
            f". Not in force: {missing}" if missing else "",
            extra={"model": self._name},
        )

    @property
    def pid(self) -> int:
        """The number of the process, 0 while there is none."""
        process = self._process
        return 0 if process is None else process.pid

    def nodes(self) -> dict[str, set[str]]:
        """Returns the op types of the nodes by provider, in a session on a GPU."""
        return self._nodes

    def op_times(self) -> OpTimes:
        """Returns how long the calls of the ops took, by op and node. Any thread may ask, also after the end."""
        with self._changed:
            process = self._measured
            return self._past_op_times if process is None else self._with_past(process)

    def _with_past(self, process: WorkerProcess) -> OpTimes:
        return bounded(sum_of((self._past_op_times, process.op_times(self._timed)))) if self._timed else {}

    def close(self) -> None:
        """Ends the process. Nothing may run the session any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        os.eventfd_write(self._end, 1)
        self._thread.join()
        os.close(self._end)

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
                self._refuse_waiting(self.down)
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, wait)
                    self.down = ""
                    if self._closed:
                        return

    def _refuse_waiting(self, reason: str) -> None:
        """Is called when the next start of the process waits."""

    def _start(self) -> tuple[WorkerProcess | None, str]:
        """Returns a process that has opened the model, or why there is none. The first time that goes to `_first`."""
        process: WorkerProcess | None = None
        try:
            process = WorkerProcess(
                self._command,
                self._confinement,
                self._limits.tensor_bytes * self.MEMORIES,
                self._files,
                environment(self._confinement, self._limits.environment),
            )
            kind, *rest = process.open(self._opening, self._limits.start_timeout, self._end)
            if kind != "done":
                raise ServingError(Kind.UNAVAILABLE, str(rest[-1]))
            first: Any = dict(rest[0])
        except Exception as error:
            if process is not None:
                process.kill()
                process.free()  # the error refers to it
            process = None
            first = error if isinstance(error, ServingError) else _not_started(error)
        with self._changed:
            if self._first is None:
                self._first = first
            self._process = self._measured = process
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
        reason = process.death()
        with self._changed:
            self._past_op_times, self._measured = self._with_past(process), None
        return reason


def _not_started(error: Exception) -> ServingError:
    """Returns the error of a start that failed because something is short, such as descriptors or memory."""
    text = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    return ServingError(Kind.UNAVAILABLE, f"no worker process can be started: {text}")
