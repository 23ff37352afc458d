"""Runs kernels in a host program without an engine, for verification."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from opgate.child_process import tied
from opgate.ops_build.case import Array, Case
from opgate.ops_build.engines.engine import EngineEnded
from opgate.ops_build.engines.process_end import how_ended, last_words
from opgate.ops_build.op_table import Op, parse_table
from opgate.ops_build.runner.cases_file import Result, case_bytes, read_result

_PIPE_BYTES = 1 << 20


class KernelsEngine:
    """Runs kernels in a host program: runner/runner.cpp.

    One process runs many cases. After a case that ends the process, the next case starts a new one.
    """

    def __init__(
        self,
        program: Path,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        name: str = "kernels",
        device: str = "cuda",
        in_python: Collection[str] = (),
    ) -> None:
        """`in_python` are the ops that the program lacks because their kernels are functions in Python."""
        self.name, self.device, self._in_python = name, device, in_python
        self._command = [str(program), *arguments]
        self._environment = environment
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 (stays open as long as the engine exists)
        self._process: subprocess.Popen[bytes] | None = None

    def ops(self) -> list[Op]:
        """Returns the ops of the program, sorted by name."""
        command = [self._command[0], "--table"]
        finished = subprocess.run(command, capture_output=True, text=True, check=True, env=self._environment)
        return parse_table(finished.stdout, self._command[0])

    def refusal(self, op: Op, types: Mapping[str, str]) -> str | None:
        if self.device == "cuda" and "str" in (types.get(name, name) for name in op.tensor_types):
            return "a GPU has no strings"
        return "its kernel is a function in Python" if op.name in self._in_python else None

    def run(self, op: Op, case: Case, types: Mapping[str, str]) -> dict[str, Array]:
        """Returns the outputs by name. Raises CaseFailed if the op refuses the case, and ProgramEnded if the case ends
        the program."""
        names = [output.name for output in op.outputs]
        outputs = self.run_wanted(op, case, names).outputs
        return {name: array for name, array in zip(names, outputs, strict=True) if array is not None}

    def run_wanted(self, op: Op, case: Case, outputs: Sequence[str]) -> Result:
        """Runs a case that asks for the named outputs. Raises as `run` does."""
        return self.run_packed(case_bytes(op, case, outputs))

    def run_packed(self, packed: bytes) -> Result:
        """Runs a case that case_bytes has packed. Raises as `run` does.

        If "--time" is among the arguments of the program, the result has the time and no outputs.
        """
        if self._process is None:
            self._messages.seek(0)
            self._messages.truncate()
            self._process = subprocess.Popen(
                tied(self._command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._messages,
                env=self._environment,
            )
            for pipe in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(OSError):  # a large tensor goes through in fewer pieces, if the system lets it
                    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)  # type: ignore[arg-type]
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(packed)
            process.stdin.flush()
            return read_result(process.stdout)
        except (EOFError, BrokenPipeError):
            code = self._stop()
            self._messages.seek(0)
            messages = last_words(self._messages.read().decode(errors="replace"))
            raise ProgramEnded(f"{how_ended(code)}: {messages}") from None

    def close(self) -> None:
        """Ends the program. Raises ProgramEnded if it ends with an error."""
        if self._process is not None and (code := self._stop()):
            self._messages.seek(0)
            raise ProgramEnded(f"{how_ended(code)}: {last_words(self._messages.read().decode(errors='replace'))}")

    def _stop(self) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        process.communicate()
        return process.returncode


class ProgramEnded(EngineEnded):
    """The program ended during a case or with an error. The message has what it wrote to its standard error."""
