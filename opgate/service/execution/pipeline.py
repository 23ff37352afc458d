"""Runs an ensemble. Each step is a request to the scheduler of its model, so steps of different requests share batches.

The tensors between the steps stay in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Protocol

from opgate.service.core.checks import Head, Limits, check_inputs
from opgate.service.core.errors import Kind, ServingError, internal, invalid, unloading
from opgate.service.core.request import Array, Request
from opgate.service.core.spec import ModelSpec, TensorSpec
from opgate.service.core.statistics import ModelStatistics
from opgate.service.execution.batch import row_error

logger = logging.getLogger("opgate.pipeline")


class Executor(Protocol):
    """Runs the requests of a model."""

    def submit(self, request: Request) -> None:
        """Accepts a checked request. Calls `request.done` once, maybe before this returns."""

    def try_out(self, request: Request) -> None:
        """Runs a request on the calling thread, past the queue and the statistics. Raises ServingError."""

    @property
    def overdue(self) -> str:
        """Why the model is not ready, if a run takes too long."""

    async def close(self) -> None:
        """Refuses new requests, waits for the accepted ones, and frees what the model holds."""


@dataclass(frozen=True, slots=True)
class Step:
    """One model of a pipeline. `inputs` and `outputs` map the tensor names of the model to those of the pipeline."""

    spec: ModelSpec
    executor: Executor
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


class _OnThisThread:
    """Runs the requests of a model at once, on the thread that submits them."""

    overdue = ""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, request: Request) -> None:
        try:
            self._executor.try_out(request)
        except ServingError as error:
            request.error = error
        request.end()

    def try_out(self, request: Request) -> None:
        self._executor.try_out(request)

    async def close(self) -> None:
        return None


class Pipeline:
    """Runs the steps of each request as their inputs become available. Every method runs on the event loop's thread."""

    def __init__(self, spec: ModelSpec, steps: Sequence[Step], statistics: ModelStatistics, limits: Limits) -> None:
        self.spec = spec
        self.statistics = statistics
        self._steps = tuple(steps)
        self._limits = limits
        self._closed = False
        self._running = 0  # requests that are not answered yet
        self._rest: asyncio.Event | None = None

    def submit(self, request: Request) -> None:
        """Accepts a checked request. Calls `request.done` when all its outputs are there, or at the first error."""
        if self._closed:
            self.statistics.failed(Kind.UNAVAILABLE.value, perf_counter_ns() - request.received_ns)
            request.fail(unloading(self.spec.name))
            return
        self._running += 1
        run = _Run(self, request)
        request.leave = run.leave
        request.expire_after(request.options.timeout_us)
        run.advance()

    def try_out(self, request: Request) -> None:
        """Runs a request on the calling thread, past the queues and the statistics. Raises ServingError."""
        steps = [replace(step, executor=_OnThisThread(step.executor)) for step in self._steps]
        Pipeline(self.spec, steps, ModelStatistics(), self._limits).submit(request)
        if request.error is not None:
            raise request.error

    async def close(self) -> None:
        """Refuses new requests, and waits until the accepted ones are answered: their steps must last as long."""
        self._closed = True
        if self._running:
            self._rest = asyncio.Event()
            await self._rest.wait()

    def steps_for(self, outputs: Sequence[str]) -> list[Step]:
        """Returns the steps that the outputs depend on."""
        wanted = set(outputs)
        needed: list[Step] = []
        todo = list(self._steps)
        while producers := [step for step in todo if wanted & set(step.outputs.values())]:
            for step in producers:
                wanted |= set(step.inputs.values())
                needed.append(step)
                todo.remove(step)
        return needed

    @property
    def overdue(self) -> str:
        """Why the pipeline is not ready, if a run of one of its models takes too long."""
        return next((reason for step in self._steps if (reason := step.executor.overdue)), "")

    @property
    def limits(self) -> Limits:
        """The limits on the request of one step."""
        return self._limits

    def ended(self, request: Request) -> None:
        """Counts a finished request and calls `request.done`."""
        self._running -= 1
        if self._rest is not None and not self._running:
            self._rest.set()
        now = perf_counter_ns()
        elapsed = now - request.received_ns
        if request.error is not None:
            self.statistics.failed(request.error.kind.value, elapsed)
        else:
            self.statistics.succeeded(request.rows, elapsed, request.started_ns - request.received_ns)
            self.statistics.executed(request.rows, 1, (0, now - request.started_ns, 0))
        request.end()


class _Run:
    """The state of one request in a pipeline."""

    def __init__(self, pipeline: Pipeline, request: Request) -> None:
        self._pipeline = pipeline
        self._request = request
        status = pipeline.spec.row_status
        self._status = None if status is None else status.output
        self._wanted = request.outputs if status is None else (*request.outputs, status.output)
        self._tensors: dict[str, Array] = dict(request.inputs)
        # Optional inputs that the client doesn't send, and outputs that a model in Python leaves out. Steps run without
        # them.
        self._absent = set(pipeline.spec.inputs) - set(request.inputs)
        self._todo = pipeline.steps_for(self._wanted)
        self._ended = False
        self._in_flight: set[Request] = set()
        request.started_ns = perf_counter_ns()

    def advance(self) -> None:
        """Starts every step whose inputs are all there. Ends the request with an error if no step can ever run."""
        known = self._tensors.keys() | self._absent
        ready = [step for step in self._todo if known.issuperset(step.inputs.values())]
        if not ready and not self._in_flight:
            missing = {name for step in self._todo for name in step.inputs.values()} - known
            self._end(internal(f"no step can run: nothing made {', '.join(sorted(missing)) or 'the outputs'}"))
            return
        parts: list[tuple[Step, Request]] = []
        for step in ready:
            self._todo.remove(step)
            try:
                part = self._sub_request(step)
            except ServingError as error:
                self._end(_in_step(step, error))
                return
            part.done = lambda finished, step=step: self._step_done(step, finished)  # type: ignore[misc]
            parts.append((step, part))
        # A part may end before its `submit` returns, and must not look like the last one then.
        self._in_flight.update(part for _, part in parts)
        for step, part in parts:
            if self._ended:
                return
            try:
                step.executor.submit(part)
            except Exception as error:
                logger.exception("submitting a step of pipeline '%s' failed", self._pipeline.spec.name)
                self._end(internal(f"step '{step.spec.name}': {type(error).__name__}: {error}"))

    def leave(self, request: Request, error: ServingError) -> None:
        """Ends the request and the steps that run for it."""
        self._end(error)
        for part in list(self._in_flight):
            part.cancel()

    def _sub_request(self, step: Step) -> Request:
        arrays: dict[str, Array] = {}
        for name, tensor in step.inputs.items():
            if tensor in self._absent:
                continue
            arrays[name] = _fitted(self._tensors[tensor], step.spec, step.spec.inputs[name], f"input '{name}'")
        heads = [Head(name, step.spec.inputs[name].datatype.name, array.shape) for name, array in arrays.items()]
        fit = check_inputs(step.spec, heads, self._pipeline.limits)
        # A step has the priority of the whole. The time of the whole ends all its steps, so a step needs none.
        options = self._request.options
        if options.timeout_us:
            options = options._replace(timeout_us=0)
        return Request(
            arrays, fit.rows, fit.key, tuple(step.outputs), id=self._request.id, options=options, weight=fit.weight
        )

    def _step_done(self, step: Step, part: Request) -> None:
        self._in_flight.discard(part)
        self._request.steps = (*self._request.steps, (step.spec.name, part.times(), part.error is not None))
        if self._ended:
            return
        if part.error is not None or part.result is None:
            self._end(_in_step(step, part.error or internal("no result")))
            return
        for name, tensor in step.outputs.items():
            if name in part.result:
                self._tensors[tensor] = part.result[name]
            else:
                self._absent.add(tensor)
        if self._status is not None and self._status in step.outputs.values() and self._status in self._tensors:
            error = row_error(self._pipeline.spec, self._tensors[self._status])
            if error is not None:
                self._end(error)
                return
        if all(name in self._tensors or name in self._absent for name in self._wanted):
            self._finish()
        else:
            self.advance()

    def _finish(self) -> None:
        spec = self._pipeline.spec
        result: dict[str, Array] = {}
        try:
            for name in self._request.outputs:
                if name in self._tensors:
                    result[name] = _checked(spec, spec.outputs[name], self._tensors[name])
        except ServingError as error:
            self._end(error)
            return
        self._request.outputs = tuple(result)
        self._request.result = result
        self._end(None)

    def _end(self, error: ServingError | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._request.error = error
        try:
            self._pipeline.ended(self._request)
        except Exception:
            logger.exception("writing the answer of pipeline '%s' failed", self._pipeline.spec.name)


def _fitted(array: Array, spec: ModelSpec, tensor: TensorSpec, where: str) -> Array:
    """Returns the array with a leading dimension of 1 added or removed, if only one of two connected models batches.

    Triton does the same. Raises ServingError (INVALID) if a model that doesn't batch would get several rows.
    """
    rank = len(tensor.dims) + spec.batched
    if spec.batched and array.ndim == rank - 1:
        return array.reshape((1, *array.shape))
    if not spec.batched and array.ndim == rank + 1:
        if array.shape[0] != 1:
            raise invalid(f"{where}: takes one row at a time, got a batch of {array.shape[0]}")
        return array.reshape(array.shape[1:])
    return array


def _checked(spec: ModelSpec, tensor: TensorSpec, array: Array) -> Array:
    array = _fitted(array, spec, tensor, f"output '{tensor.name}'")
    want = spec.wire_shape(tensor)
    if len(want) != array.ndim or any(size not in (-1, got) for size, got in zip(want, array.shape, strict=True)):
        raise internal(f"output '{tensor.name}': expected shape {want}, got {list(array.shape)}")
    return array


def _in_step(step: Step, error: ServingError) -> ServingError:
    return ServingError(error.kind, f"step '{step.spec.name}': {error.message}")
