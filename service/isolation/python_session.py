"""A model in Python in a worker process. It gets the requests of a batch one by one, as in Triton."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opgate.service.errors import Kind, ServingError, internal
from opgate.service.execution.batch import assemble, split
from opgate.service.execution.request import Array, Options, Request
from opgate.service.execution.spec import ModelSpec
from opgate.service.isolation.calls import Calls
from opgate.service.isolation.channel import encoded
from opgate.service.isolation.process import WorkerDiedError, WorkerProcess
from opgate.service.isolation.python_model import PythonOpening
from opgate.service.isolation.segments import View
from opgate.service.isolation.session import ProcessSession
from opgate.service.isolation.tensors import Layout

_SEQUENCE_START, _SEQUENCE_END = 1, 2
# Seconds in which a model may end itself.
_FINALIZE = 10.0


class PythonSession(ProcessSession):
    """A `model.py` in a worker process of its own."""

    takes_requests = True

    def __init__(
        self, name: str, opening: PythonOpening, run_timeout: float, calls: Calls, python: Path | None = None
    ) -> None:
        """Starts the process, which initializes the model. Raises ServingError with what the model raised.

        `calls` runs what the model asks of other models. `python` is the interpreter of another environment.
        """
        self._calls = calls
        super().__init__(name, opening, run_timeout, python)

    def execute(self, spec: ModelSpec, requests: Sequence[Request], options: Any = None) -> None:
        """Runs requests and sets the result or the error of each. A decoupled model gives its responses meanwhile.

        Raises as `run` does, if the whole batch failed.
        """
        names: list[str] = []
        arrays: list[Array] = []
        heads: list[Any] = []
        for request in requests:
            feeds = assemble(spec, [request])
            names += feeds
            arrays += feeds.values()
            heads.append([len(feeds), *_head(request)])
        layout = Layout(names, arrays)
        with self._runs:
            process, answer, held = self._ask("execute", [heads, layout.entries], layout, options, (spec, requests))
        if spec.streams:
            for request in requests:
                request.result = {}
            return
        _, results, number, entries = answer
        tensors = self._tensors(process, entries, held, number) if entries else []
        for request, (count, *error) in zip(requests, results, strict=True):
            own, tensors = dict(tensors[:count]), tensors[count:]
            try:
                if error:
                    raise ServingError(Kind(error[0]), error[1])
                split(spec, [request], request.outputs, _checked(spec, request, own))
            except ServingError as failed:
                request.error = ServingError(failed.kind, f"model '{spec.name}': {failed.message}")

    def close(self) -> None:
        """Lets the model finalize itself, and ends the process."""
        process = self._process
        if process is not None:
            with contextlib.suppress(WorkerDiedError), self._runs:
                process.ask(encoded(["finalize", []]), _FINALIZE)
        super().close()

    def _reply(self, process: WorkerProcess, message: Any, held: dict[int, View], context: Any) -> Any:
        try:
            if message[0] == "call":
                return self._call(process, message, held)
            if message[0] == "response":
                return self._respond(process, message, held, *context)
        except ServingError as error:
            if isinstance(error, WorkerDiedError):
                raise
            return ["error", error.kind.value, error.message]
        return super()._reply(process, message, held, context)

    def _call(self, process: WorkerProcess, message: Any, held: dict[int, View]) -> Any:
        _, name, version, request_id, outputs, timeout, parameters, entries, number = message
        inputs = dict(self._tensors(process, entries, held, number)) if entries else {}
        options = Options(timeout_us=int(timeout), parameters=parameters)
        results = []
        for result in self._calls.call(str(name), int(version), inputs, outputs, str(request_id), options):
            layout = Layout(list(result), list(result.values()))
            answer = super()._reply(process, ["segment", layout.size], held, None)
            if answer[0] == "error":
                return answer
            layout.write(held[answer[1]].lease.segment)
            results.append([layout.entries, answer[1]])
        return ["results", results]

    def _respond(
        self,
        process: WorkerProcess,
        message: Any,
        held: dict[int, View],
        spec: ModelSpec,
        requests: Sequence[Request],
    ) -> Any:
        _, index, is_response, entries, number, final, error = message
        request = requests[index]
        if error:
            request.error = request.error or ServingError(Kind(error[0]), f"model '{spec.name}': {error[1]}")
        elif is_response and not request.ended and request.error is None:
            own = dict(self._tensors(process, entries, held, number)) if entries else {}
            held.pop(number, None)
            outputs = dict(zip(request.outputs, _checked(spec, request, own), strict=True))
            self._calls.respond(request, outputs, bool(final))
        return ["taken"]


def _head(request: Request) -> list[Any]:
    sequence, options = request.options.sequence, request.options
    flags = 0 if sequence is None else _SEQUENCE_START * sequence.start | _SEQUENCE_END * sequence.end
    correlation = 0 if sequence is None else sequence.id
    return [request.id, correlation, flags, options.timeout_us, dict(options.parameters), list(request.outputs)]


def _checked(spec: ModelSpec, request: Request, outputs: Mapping[str, Array]) -> list[Array]:
    """Returns the outputs that the request wants. Raises ServingError (INTERNAL) if the model gave something else."""
    for name, array in outputs.items():
        if name not in spec.outputs:
            raise internal(f"it gave the output '{name}', its config has {', '.join(spec.outputs)}")
        expected = spec.outputs[name].datatype
        if array.dtype != expected.dtype:
            raise internal(f"output '{name}': expected {expected.name}, the model gave {array.dtype}")
    if missing := [name for name in request.outputs if name not in outputs]:
        raise internal(f"output '{missing[0]}' is missing in the response of the model")
    return [outputs[name] for name in request.outputs]
