"""An ensemble: each step is a request to its model's scheduler, so steps batch, and tensors stay in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

from service.errors import Kind, ServingError, internal, invalid
from service.execution.checks import Head, Limits, check_inputs
from service.execution.request import Array, Request
from service.execution.spec import ModelSpec, TensorSpec
from service.telemetry.statistics import ModelStatistics

logger = logging.getLogger("opgate.pipeline")


@dataclass(frozen=True, slots=True)
class Step:
    """One model of a pipeline. Maps go from the model's tensor names to the pipeline's."""

    spec: ModelSpec
    submit: Callable[[Request], None]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


class Pipeline:
    """Runs a request's steps as their inputs become available. Belongs to the event loop's thread."""

    def __init__(self, spec: ModelSpec, steps: Sequence[Step], statistics: ModelStatistics, limits: Limits) -> None:
        self.spec = spec
        self.statistics = statistics
        self._steps = tuple(steps)
        self._limits = limits
        self._running = 0
        self._closed = False

    @property
    def waiting(self) -> int:
        """Requests that have not ended."""
        return self._running

    def submit(self, request: Request) -> None:
        """Takes a checked request and calls it back when all its outputs are there, or at the first error."""
        if self._closed:
            request.fail(ServingError(Kind.UNAVAILABLE, f"model '{self.spec.name}' is being unloaded"))
            return
        self._running += 1
        _Run(self, request).advance()

    async def close(self) -> None:
        """Refuses new requests. Those that run end with their steps."""
        self._closed = True

    def steps_for(self, outputs: Sequence[str]) -> list[Step]:
        """The steps that the outputs depend on."""
        wanted = set(outputs)
        needed: list[Step] = []
        todo = list(self._steps)
        while found := [step for step in todo if wanted & set(step.outputs.values())]:
            for step in found:
                wanted |= set(step.inputs.values())
                needed.append(step)
                todo.remove(step)
        return needed

    @property
    def limits(self) -> Limits:
        """What a step may be asked for."""
        return self._limits

    def ended(self, request: Request) -> None:
        """Counts a request and calls it back."""
        self._running -= 1
        now = perf_counter_ns()
        request.finished_ns = now
        elapsed = now - request.received_ns
        if request.error is not None:
            self.statistics.failed(request.error.kind.value, elapsed)
        else:
            self.statistics.succeeded(request.rows, elapsed, request.started_ns - request.received_ns)
            self.statistics.executed(request.rows, 1, 0, now - request.started_ns, 0)
        request.done(request)


class _Run:
    """The state of one request in a pipeline."""

    def __init__(self, pipeline: Pipeline, request: Request) -> None:
        self._pipeline = pipeline
        self._request = request
        self._tensors: dict[str, tuple[Array, bool]] = {  # with whether a batch dimension leads
            name: (array, pipeline.spec.batched) for name, array in request.inputs.items()
        }
        self._todo = pipeline.steps_for(request.outputs)
        self._ended = False
        request.started_ns = perf_counter_ns()

    def advance(self) -> None:
        """Starts every step whose inputs are all there."""
        ready = [step for step in self._todo if all(name in self._tensors for name in step.inputs.values())]
        for step in ready:
            self._todo.remove(step)
        for step in ready:
            if self._ended:
                return
            try:
                part = self._sub_request(step)
            except ServingError as error:
                self._end(_in_step(step, error))
                return
            part.done = lambda made, step=step: self._step_done(step, made)  # type: ignore[misc]
            step.submit(part)

    def _sub_request(self, step: Step) -> Request:
        arrays: dict[str, Array] = {}
        for name, tensor in step.inputs.items():
            array, has_batch = self._tensors[tensor]
            arrays[name] = _with_batch(array, has_batch, step.spec.batched, f"step '{step.spec.name}' input '{name}'")
        heads = [Head(name, step.spec.inputs[name].datatype.name, array.shape) for name, array in arrays.items()]
        fit = check_inputs(step.spec, heads, self._pipeline.limits)
        request = Request(arrays, fit.rows, fit.key, tuple(step.outputs), id=self._request.id, weight=fit.weight)
        if self._request.timeout_us:
            spent = (perf_counter_ns() - self._request.received_ns) // 1000
            if spent >= self._request.timeout_us:
                raise ServingError(Kind.DEADLINE, f"the request's timeout ran out after {spent} us")
            request.timeout_us = self._request.timeout_us - spent
        return request

    def _step_done(self, step: Step, part: Request) -> None:
        if self._ended:
            return
        if self._request.cancelled:
            self._end(ServingError(Kind.CANCELED, "the client left"))
            return
        if part.error is not None or part.result is None:
            self._end(_in_step(step, part.error or internal("no result")))
            return
        for name, tensor in step.outputs.items():
            self._tensors[tensor] = (part.result[name], step.spec.batched)
        if all(name in self._tensors for name in self._request.outputs):
            self._finish()
        else:
            self.advance()

    def _finish(self) -> None:
        spec = self._pipeline.spec
        result: dict[str, Array] = {}
        try:
            for name in self._request.outputs:
                array, has_batch = self._tensors[name]
                array = _with_batch(array, has_batch, spec.batched, f"output '{name}'")
                result[name] = _fitting(spec, spec.outputs[name], array)
        except ServingError as error:
            self._end(error)
            return
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


def _with_batch(array: Array, has_batch: bool, wants_batch: bool, where: str) -> Array:
    """Adds or takes away the leading dimension where a batching model meets one that isn't."""
    if has_batch == wants_batch:
        return array
    if wants_batch:
        return array[None]
    if array.shape[0] != 1:
        raise invalid(f"{where}: takes one row at a time, got a batch of {array.shape[0]}")
    return array[0]


def _fitting(spec: ModelSpec, tensor: TensorSpec, array: Array) -> Array:
    inner = array.shape[1:] if spec.batched else array.shape
    if len(inner) != len(tensor.dims) or any(
        want not in (-1, got) for want, got in zip(tensor.dims, inner, strict=True)
    ):
        raise internal(f"output '{tensor.name}': expected shape {spec.wire_shape(tensor)}, got {list(array.shape)}")
    return array


def _in_step(step: Step, error: ServingError) -> ServingError:
    return ServingError(error.kind, f"step '{step.spec.name}': {error.message}")
