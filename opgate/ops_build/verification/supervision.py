"""Engines in processes of their own, so that a kernel that crashes or loops ends its case and nothing else."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any

from opgate import folders
from opgate.child_process import ChildProcess, tied
from opgate.ops_build.case import Array, Case
from opgate.ops_build.engines.engine import Absent, CaseRefused, Engine, EngineEnded, EngineSource
from opgate.ops_build.engines.process_end import how_ended, last_words
from opgate.ops_build.op_table import Op

#: Seconds that a case may take.
TIME_LIMIT = 60.0
#: Seconds that a process may take until its engines are there.
START_LIMIT = 300.0
#: The environment of the processes: kernels on the CPU run on guarded tensors (op_call/guard.h).
GUARD = {"OPGATE_GUARD": "1"}


class EngineProcess:
    """A process with the engines of a source. It starts when something is asked, and again after it has ended."""

    def __init__(self, source: EngineSource, time_limit: float = TIME_LIMIT, python: Path | None = None) -> None:
        """`python` is the interpreter of another environment, whose packages the engines then are."""
        self._source = source
        self._time_limit = time_limit
        self._python = sys.executable if python is None else str(python)
        self._path = [path for path in sys.path if path] if python is None else [str(folders.PACKAGE.parent)]
        self._process: ChildProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._messages: IO[bytes] | None = None

    def engines(self) -> list[SupervisedEngine | Absent]:
        """Returns the engines of the process. Raises EngineEnded if it doesn't come up."""
        answer = self._ask(("engines",), START_LIMIT)
        return [
            engine if isinstance(engine, Absent) else SupervisedEngine(self, index, *engine)
            for index, engine in enumerate(answer)
        ]

    def ask(self, *question: Any) -> Any:
        """Asks the process. Raises CaseRefused if it answers with an exception, and EngineEnded if it ends or doesn't
        answer in time."""
        if self._process is None:
            self._ask(("engines",), START_LIMIT)
        return self._ask(question, self._time_limit)

    def close(self) -> None:
        """Ends the process."""
        self._stop()

    def _ask(self, question: tuple[Any, ...], limit: float) -> Any:
        if self._process is None:
            self._start()
        connection = self._connection
        assert connection is not None
        try:
            connection.send(question)
            if not connection.poll(limit):
                self._stop()
                raise EngineEnded(f"it took longer than {limit:g} seconds, so its process was ended")
            kind, answer = connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            code, messages = self._stop((signal.SIGCONT, 10.0))  # its own exit status, not that of a kill
            raise EngineEnded(f"{how_ended(code)}{': ' if messages else ''}{messages}") from None
        if kind == "ended":
            raise EngineEnded(answer)
        if kind == "raised":
            raise CaseRefused(*answer)
        return answer

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process lives)
        self._process = ChildProcess(
            tied([self._python, "-m", "opgate.ops_build.verification.supervision", str(theirs.fileno())]),
            [theirs.fileno()],
            stdout=self._messages,
            stderr=self._messages,
            env=os.environ | GUARD | {"PYTHONPATH": os.pathsep.join(self._path)},
        )
        theirs.close()
        self._connection.send(self._source)

    def _stop(self, *steps: tuple[signal.Signals, float]) -> tuple[int, str]:
        """Ends the process, see ChildProcess.end. Returns its exit status and the last lines that it wrote."""
        if self._process is None:
            return 0, ""
        assert self._connection is not None and self._messages is not None
        code = self._process.end(*steps)
        self._connection.close()
        self._messages.seek(0)
        messages = last_words(self._messages.read().decode(errors="replace"))
        self._messages.close()
        self._process = self._connection = self._messages = None
        return code, messages


class SupervisedEngine:
    """An engine in another process."""

    def __init__(self, process: EngineProcess, index: int, name: str, device: str) -> None:
        self.name, self.device = name, device
        self._process, self._index = process, index

    def refusal(self, op: Op, types: Mapping[str, str]) -> str | None:
        answer: str | None = self._process.ask("refusal", self._index, op, types)
        return answer

    def run(self, op: Op, case: Case, types: Mapping[str, str]) -> dict[str, Array]:
        """Returns the outputs by name. Raises as EngineProcess.ask does."""
        outputs: dict[str, Array] = self._process.ask("run", self._index, op, case, types)
        return outputs


@contextlib.contextmanager
def supervised(
    sources: Sequence[EngineSource], time_limit: float = TIME_LIMIT, python: Path | None = None
) -> Iterator[list[SupervisedEngine | Absent]]:
    """Gives the engines of all sources, each source in a process of its own, and ends the processes afterwards.

    A source whose process doesn't come up gives an Absent with the reason. `python` is the interpreter of another
    environment, whose packages the engines then are.
    """
    processes = [EngineProcess(source, time_limit, python) for source in sources]
    try:
        engines: list[SupervisedEngine | Absent] = []
        for process, source in zip(processes, sources, strict=True):
            try:
                engines += process.engines()
            except EngineEnded as error:
                engines.append(Absent(source.name, "cpu", f"its process did not come up: {error}"))
        yield engines
    finally:
        for process in processes:
            process.close()


def serve(connection: Connection[Any, Any]) -> None:
    """Answers the questions of EngineProcess until the connection ends."""
    source: EngineSource = connection.recv()
    engines: list[Engine | Absent] = []
    while True:
        try:
            question, *arguments = connection.recv()
        except EOFError:
            return
        try:
            if question == "engines":
                engines = engines or list(source.engines())
                answer: Any = [one if isinstance(one, Absent) else (one.name, one.device) for one in engines]
            else:
                index, *rest = arguments
                answer = getattr(engines[index], question)(*rest)
            packed = pickle.dumps(("answered", answer))
        except EngineEnded as error:  # the engine has a process of its own
            packed = pickle.dumps(("ended", str(error)))
        except Exception as error:  # the parent reports it for the case
            packed = pickle.dumps(("raised", (type(error).__name__, str(error))))
        connection.send_bytes(packed)


if __name__ == "__main__":
    # The module runs as __main__, and messages name classes of the imported one.
    from opgate.ops_build.verification import supervision  # noqa: PLW0406

    supervision.serve(Connection(int(sys.argv[1])))
