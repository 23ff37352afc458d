"""A model in Python in a worker process. It gets the requests of a batch one by one, as in Triton."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from opgate.service.core.checks import check_result
from opgate.service.core.errors import Kind, ServingError, internal, invalid
from opgate.service.core.request import Array, Options, Request
from opgate.service.core.spec import ModelSpec
from opgate.service.execution.batch import assemble, split
from opgate.service.isolation.calls import Calls
from opgate.service.isolation.channel import encoded
from opgate.service.isolation.process import WorkerDiedError
from opgate.service.isolation.python_model import PythonOpening
from opgate.service.isolation.session import ProcessSession, Run, WorkerLimits
from opgate.service.isolation.tensors import Layout

_SEQUENCE_START, _SEQUENCE_END = 1, 2
# Seconds in which a model may end itself.
_FINALIZE = 10.0


class PythonSession(ProcessSession):
    """A `model.py` in a worker process of its own."""

    takes_requests = True

    def __init__(
        self, name: str, opening: PythonOpening, limits: WorkerLimits, calls: Calls, python: Path | None = None
    ) -> None:
        """Starts the process, which initializes the model. Raises ServingError with what the model raised.

        `calls` runs what the model asks of other models. `python` is the interpreter of another environment.
        """
        self._calls = calls
        # Of the run that is under way.
        self._spec: ModelSpec | None = None
        self._requests: Sequence[Request] = ()
        super().__init__(name, opening, limits, python)

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
        question = encoded(["execute", heads, layout.entries, layout.end])
        with self._runs:
            self._spec, self._requests = spec, requests
            try:
                run, answer = self._ran(layout, question, options)
                if spec.streams:
                    for request in requests:
                        request.result = {}
                    return
                results = self._results(run, answer)
            finally:
                self._requests = ()
        for request, (own, error) in zip(requests, results, strict=True):
            try:
                if error:
                    raise ServingError(Kind(error[0]), error[1])
                split(spec, [request], request.outputs, _checked(spec, request, own))
            except ServingError as failed:
                request.error = ServingError(failed.kind, f"model '{spec.name}': {failed.message}")

    def _ran(self, layout: Layout, question: bytes, options: Any) -> tuple[Run, Any]:
        """Lets the process run, and returns the run and its last message. Raises as `run` does."""
        while True:
            process = self._process or self._running_process()
            self._write(process, layout)
            run = self._begin(process, options)
            try:
                answer = self._last_answer(run, self._asked(run, question))
            except WorkerDiedError as error:
                if error.unread:  # the requests are not to blame
                    continue
                raise
            process.tensors.keep(self.KEPT_BYTES)
            return run, answer

    def _results(self, run: Run, answer: Any) -> list[tuple[dict[str, Array], list[str]]]:
        """Returns the outputs and the error of each request. Raises WorkerDiedError if the process gave others."""
        try:
            _, heads, entries = answer
            if len(heads) != len(self._requests):
                raise ValueError(f"{len(heads)} results, expected {len(self._requests)}")
            counts = [int(count) for count, *_ in heads]
            if min(counts, default=0) < 0 or sum(counts) != len(entries):
                raise ValueError(f"{len(entries)} tensors, expected {counts}")
            errors = [[Kind(error[0]).value, str(error[1])] if error else [] for _, *error in heads]
        except (ValueError, TypeError, IndexError) as failed:
            raise self._unreadable(run, failed) from None
        tensors = iter(self._tensors(run, entries, len(entries)))
        return [(dict(islice(tensors, count)), error) for count, error in zip(counts, errors, strict=True)]

    def close(self) -> None:
        """Lets the model finalize itself, and ends the process."""
        process = self._process
        if process is not None:
            with contextlib.suppress(ServingError), self._runs:
                late = f"finalize took longer than {_FINALIZE:g} s"
                process.ask(encoded(["finalize"]), 0, time.monotonic() + _FINALIZE, late)
        super().close()

    def _reply(self, run: Run, message: Any) -> Any:
        try:
            if message[0] == "call":
                return self._call(run, message)
            if message[0] == "response":
                return self._respond(run, message)
        except ServingError as error:
            if isinstance(error, WorkerDiedError):
                raise
            return ["error", error.kind.value, error.message]
        return super()._reply(run, message)

    def _call(self, run: Run, message: Any) -> Any:
        _, name, version, request_id, outputs, timeout, parameters, entries, free = message
        whole = isinstance(version, int) and isinstance(timeout, int) and timeout >= 0
        if not whole or not isinstance(parameters, dict) or not all(isinstance(output, str) for output in outputs):
            raise invalid("a call: expected a version and a timeout that are integers, and names of outputs")
        inputs = dict(self._tensors(run, entries, self._calls.most_tensors))
        options = Options(timeout_us=timeout, parameters=parameters)
        left = run.until - time.monotonic()
        results = []
        for result in self._calls.call(str(name), version, inputs, outputs, str(request_id), options, left):
            layout = Layout(list(result), list(result.values()), free)
            memory = run.process.tensors
            if not 0 <= free <= layout.end <= memory.size:
                text = f"the response of model '{name}' takes {layout.end - free} bytes, with {free} bytes before it"
                raise ServingError(Kind.TOO_LARGE, f"{text}; a run has {memory.size} (OPGATE_MAX_WORKER_BYTES)")
            layout.write(memory.memory)
            results.append(layout.entries)
            free = layout.end
        return ["results", *results]

    def _respond(self, run: Run, message: Any) -> Any:
        _, index, is_response, final, error, entries, _ = message
        spec, request = self._spec, self._requests[index]
        assert spec is not None
        # A stream may take long, as long as it moves and somebody wants it.
        if not request.unwanted:
            run.begin_anew()
        if error:
            request.error = request.error or ServingError(Kind(error[0]), f"model '{spec.name}': {error[1]}")
        elif is_response and not request.unwanted and request.error is None:
            own = dict(self._tensors(run, entries, len(spec.outputs)))
            outputs = dict(zip(request.outputs, _checked(spec, request, own), strict=True))
            self._calls.respond(request.origin or request, outputs, bool(final))
            if not request.unwanted:
                run.begin_anew()
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
            raise internal(f"it gave the output '{name[:80]}', its config has {', '.join(spec.outputs)}")
        check_result(spec, name, array)
    if missing := [name for name in request.outputs if name not in outputs]:
        raise internal(f"output '{missing[0]}' is missing in the response of the model")
    return [outputs[name] for name in request.outputs]
