"""Runs an ensemble. Each step is a request to the scheduler of its model, so steps of different requests share batches.

A step whose model takes fewer rows at a time than there are is several requests, whose outputs are joined. A step whose
model sends several responses comes when those are done that don't need it. The steps behind it run for each response,
one after the other, and what they give is a response of the whole. The tensors between the steps stay in memory.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter_ns
from typing import Protocol

import numpy as np

from opgate.service.core.checks import Limits, TensorInfo, check_inputs
from opgate.service.core.errors import Kind, ServingError, internal, invalid, unloading
from opgate.service.core.request import Array, Request, Response, StepRun, give, run
from opgate.service.core.spec import ModelSpec, TensorSpec
from opgate.service.core.statistics import ModelStatistics
from opgate.service.execution.batch import row_error

logger = logging.getLogger("opgate.pipeline")

# The event loop prepares all requests of a step in one turn.
_MOST_PARTS = 256


class Executor(Protocol):
    """Runs the requests of a model."""

    def submit(self, request: Request) -> None:
        """Accepts a checked request. Calls `request.done` once, maybe before this returns."""

    def try_out(self, request: Request) -> None:
        """Runs a request on the calling thread, past the queue and the statistics. Raises ServingError."""

    @property
    def overdue(self) -> str:
        """Why the model is not ready, if a run takes too long."""

    @property
    def at_rest(self) -> bool:
        """Whether every accepted request is answered, and no sequence is under way."""

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
    at_rest = True

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

    def __init__(
        self,
        spec: ModelSpec,
        steps: Sequence[Step],
        statistics: ModelStatistics,
        limits: Limits,
        patience: float | None = None,
    ) -> None:
        """`patience` are the seconds in which a client must take one of several responses, None for any number."""
        self.spec = spec
        self.patience = patience
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
        whole = _Run(self, request)
        request.leave = whole.leave
        request.expire_after(request.options.timeout_us)
        whole.advance()

    def try_out(self, request: Request) -> None:
        """Runs a request on the calling thread, past the queues and the statistics. Raises ServingError."""
        if self.spec.streams:
            raise ServingError(Kind.UNSUPPORTED, "an ensemble with a decoupled step can't be tried out")
        steps = [replace(step, executor=_OnThisThread(step.executor)) for step in self._steps]
        Pipeline(self.spec, steps, ModelStatistics(), self._limits).submit(request)
        if request.error is not None:
            raise request.error

    @property
    def at_rest(self) -> bool:
        """Whether every accepted request is answered."""
        return not self._running

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
    """The state of one request in a pipeline, or of one response to a step of it and what follows from that."""

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
        self._left_out_by: dict[str, str] = {}  # the model that left a tensor out
        self._todo = pipeline.steps_for(self._wanted)
        self._ended = False
        self._in_flight: set[Request] = set()
        self._last = True  # whether no response comes behind that of this run
        self._streaming: asyncio.Task[None] | None = None  # takes the responses of a step
        self._branch: _Run | None = None  # what goes on with one of them
        self._branch_ended: asyncio.Future[ServingError | None] | None = None  # of this run, if it is such a branch
        request.started_ns = perf_counter_ns()

    def advance(self) -> None:
        """Starts every step whose inputs are all there. Ends the request if all its outputs are there, or with an error
        if no step can ever run."""
        known = self._tensors.keys() | self._absent
        if known.issuperset(self._wanted):
            self._finish()
            return
        ready = [step for step in self._todo if known.issuperset(step.inputs.values())]
        if not ready and not self._in_flight:
            missing = {name for step in self._todo for name in step.inputs.values()} - known
            self._end(internal(f"no step can run: nothing made {', '.join(sorted(missing)) or 'the outputs'}"))
            return
        if streams := [step for step in ready if step.spec.streams]:
            if len(streams) == len(ready) and not self._in_flight:
                self._begin_stream(streams[0])
                return
            ready = [step for step in ready if not step.spec.streams]
        started: list[tuple[Step, list[Request]]] = []
        for step in ready:
            self._todo.remove(step)
            try:
                parts = self._parts(step)
            except ServingError as error:
                self._end(_in_step(step, error))
                return
            results: list[dict[str, Array] | None] = [None] * len(parts)
            for i, part in enumerate(parts):
                part.done = partial(self._part_done, step, results, i)
            # A part may end before its `submit` returns, and must not look like the last one then.
            self._in_flight.update(parts)
            started.append((step, parts))
        for step, parts in started:
            for part in parts:
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
        self._leave_parts()

    def _leave_parts(self) -> None:
        for part in list(self._in_flight):
            part.cancel()
        if self._branch is not None:
            self._branch._leave_parts()

    def _begin_stream(self, step: Step) -> None:
        """Starts a step whose model sends several responses."""
        self._todo.remove(step)
        try:
            parts = self._parts(step)
            if len(parts) > 1:
                text = f"it takes {step.spec.max_batch_size} rows at a time, and its responses can't be joined"
                raise ServingError(Kind.TOO_LARGE, text)
        except ServingError as error:
            self._end(_in_step(step, error))
            return
        self._in_flight.update(parts)
        self._streaming = asyncio.get_running_loop().create_task(self._stream(step, parts[0]))

    async def _stream(self, step: Step, part: Request) -> None:
        """Runs the steps behind a step for each of its responses, until it ends or something fails."""
        error: ServingError | None = None
        asked = asyncio.ensure_future(run(step.executor.submit, part))
        try:
            async for response in part.responses():
                if response.error is not None:
                    raise response.error
                if response.outputs and (error := await self._go_on(step, response)) is not None:
                    break
            if error is None:
                await asked
        except ServingError as failed:
            error = _in_step(step, failed)
        except Exception as failed:
            logger.exception("a step of pipeline '%s' failed", self._pipeline.spec.name)
            error = internal(f"step '{step.spec.name}': {type(failed).__name__}: {failed}")
        finally:
            asked.cancel()
        self._in_flight.discard(part)
        _note(self._request, step, part, error is not None)
        self._end(error)

    async def _go_on(self, step: Step, response: Response) -> ServingError | None:
        """Runs the steps behind a step with one of its responses. Returns what failed."""
        branch = self._branch = copy.copy(self)
        branch._tensors, branch._absent = dict(self._tensors), set(self._absent)
        branch._left_out_by, branch._todo = dict(self._left_out_by), list(self._todo)
        branch._in_flight, branch._streaming, branch._branch = set(), None, None
        branch._last = self._last and response.final
        branch._branch_ended = asyncio.get_running_loop().create_future()
        branch._keep(step, response.outputs)
        branch.advance()
        return await branch._branch_ended

    def _parts(self, step: Step) -> list[Request]:
        """Returns the requests of a step: one, or several if its model takes fewer rows at a time than there are.

        Raises ServingError: INVALID, TOO_LARGE, and INTERNAL if another step left out what this one needs.
        """
        spec = step.spec
        for name, tensor in step.inputs.items():
            if tensor in self._left_out_by and not spec.inputs[name].optional:
                raise internal(f"input '{name}' is missing: '{self._left_out_by[tensor]}' left out '{tensor}'")
        arrays = {
            name: _fitted(self._tensors[tensor], spec, spec.inputs[name])
            for name, tensor in step.inputs.items()
            if tensor not in self._absent
        }
        # Those with a row for each part: all of a model that batches, and those with a dim too many of another one.
        split = {
            name for name, array in arrays.items() if array.ndim > (0 if spec.batched else len(spec.inputs[name].dims))
        }
        rows = max((arrays[name].shape[0] for name in split), default=1)
        size = max(1, spec.max_batch_size)
        # The requests of a sequence follow each other, so its rows stay together.
        if rows <= size or self._request.options.sequence is not None:
            return [self._sub_request(step, arrays)]
        if rows > size * _MOST_PARTS:
            text = f"{rows} rows are more than {_MOST_PARTS} runs of the step, which takes {size} at a time"
            raise ServingError(Kind.TOO_LARGE, text)
        for name in split:
            if arrays[name].shape[0] != rows:
                raise invalid(f"input '{name}': expected {rows} rows as another input has, got {arrays[name].shape[0]}")
        parts = []
        for begin in range(0, rows, size):
            rows_of = slice(begin, begin + size) if spec.batched else begin
            parts.append(
                self._sub_request(
                    step, {name: array[rows_of] if name in split else array for name, array in arrays.items()}
                )
            )
        return parts

    def _sub_request(self, step: Step, arrays: dict[str, Array]) -> Request:
        infos = [TensorInfo(name, step.spec.inputs[name].datatype.name, array.shape) for name, array in arrays.items()]
        fit = check_inputs(step.spec, infos, self._pipeline.limits)
        # A step has the priority of the whole. The time of the whole ends all its steps, so a step needs none.
        options = self._request.options
        if options.timeout_us:
            options = options._replace(timeout_us=0)
        part = Request(
            arrays, fit.rows, fit.key, tuple(step.outputs), id=self._request.id, options=options, weight=fit.weight
        )
        if self._request.op_calls is not None:
            part.op_calls = ()
        return part

    def _part_done(self, step: Step, results: list[dict[str, Array] | None], index: int, part: Request) -> None:
        """Takes the result of a request of a step, and goes on when `results` has those of all."""
        self._in_flight.discard(part)
        _note(self._request, step, part, part.error is not None)
        if self._ended:
            return
        if part.error is not None or part.result is None:
            self._end(_in_step(step, part.error or internal("no result")))
            return
        results[index] = part.result
        try:
            result = _joined(step.spec, results)
        except ServingError as unfit:
            self._end(_in_step(step, unfit))
            return
        if result is None:
            return
        self._keep(step, result)
        if self._status is not None and self._status in step.outputs.values() and self._status in self._tensors:
            error = row_error(self._pipeline.spec, self._tensors[self._status])
            if error is not None:
                self._end(error)
                return
        self.advance()

    def _keep(self, step: Step, result: Mapping[str, Array]) -> None:
        """Takes the outputs of a step. A model in Python may leave some out."""
        for name, tensor in step.outputs.items():
            if name in result:
                self._tensors[tensor] = result[name]
            else:
                self._absent.add(tensor)
                self._left_out_by[tensor] = step.spec.name

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
        if spec.streams:
            self._streaming = asyncio.get_running_loop().create_task(self._respond(result))
            return
        self._request.outputs = tuple(result)
        self._request.result = result
        self._end(None)

    async def _respond(self, result: dict[str, Array]) -> None:
        """Gives the client one of several responses."""
        await give(self._request, Response(result, self._last), self._pipeline.patience)
        self._end(None)

    def _end(self, error: ServingError | None) -> None:
        if self._ended:
            return
        self._ended = True
        if self._branch_ended is not None:
            self._branch_ended.set_result(error)
            return
        self._request.error = error
        if error is None and self._pipeline.spec.streams:
            self._request.result = {}
        try:
            self._pipeline.ended(self._request)
        except Exception:
            logger.exception("writing the answer of pipeline '%s' failed", self._pipeline.spec.name)


def _fitted(array: Array, spec: ModelSpec, tensor: TensorSpec) -> Array:
    """Returns the array with a leading dimension of 1 added or removed, if only one of two connected models batches.

    Triton does the same.
    """
    rank = len(tensor.dims) + spec.batched
    if spec.batched and array.ndim == rank - 1:
        return array.reshape((1, *array.shape))
    if not spec.batched and array.ndim == rank + 1 and array.shape[0] == 1:
        return array.reshape(array.shape[1:])
    return array


def _joined(spec: ModelSpec, results: Sequence[dict[str, Array] | None]) -> dict[str, Array] | None:
    """Returns the outputs of a step: the rows of each of its requests behind those of the one before. None if a result
    is still missing.

    Raises ServingError (INTERNAL) if they don't fit together.
    """
    if len(results) == 1:
        return results[0]
    known = [result for result in results if result is not None]
    if len(known) != len(results):
        return None
    joined: dict[str, Array] = {}
    for name in {name: None for result in known for name in result}:
        arrays = [result[name] for result in known if name in result]
        if len(arrays) != len(known) or len({array.shape[spec.batched :] for array in arrays}) != 1:
            shapes = sorted({str(list(array.shape)) for array in arrays})
            raise internal(
                f"output '{name}' of {len(known)} runs can't be joined, its shapes are {', '.join(shapes)}: raise "
                "max_batch_size of the step's model to that of the ensemble"
            )
        joined[name] = np.concatenate(arrays) if spec.batched else np.stack(arrays)
    return joined


def _checked(spec: ModelSpec, tensor: TensorSpec, array: Array) -> Array:
    array = _fitted(array, spec, tensor)
    if not spec.batched and array.ndim == len(tensor.dims) + 1:
        rows = array.shape[0]
        raise invalid(f"output '{tensor.name}': expected one row, because the ensemble doesn't batch, got {rows}")
    want = spec.wire_shape(tensor)
    if len(want) != array.ndim or any(size not in (-1, got) for size, got in zip(want, array.shape, strict=True)):
        raise internal(f"output '{tensor.name}': expected shape {want}, got {list(array.shape)}")
    return array


def _note(request: Request, step: Step, part: Request, failed: bool) -> None:
    """Notes for the traces of a request what the request of a step did."""
    calls = part.op_calls or ()
    request.steps = (*request.steps, StepRun(step.spec.name, part.times(), failed, calls))
    if request.op_calls is not None:
        request.op_calls = (*request.op_calls, *calls)


def _in_step(step: Step, error: ServingError) -> ServingError:
    return ServingError(error.kind, f"step '{step.spec.name}': {error.message}")
