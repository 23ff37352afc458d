"""Sequence batching: requests of one sequence run one after the other, with control tensors and the state that the
model left. See https://github.com/triton-inference-server/server/blob/main/docs/user_guide/architecture.md#stateful-models.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np

from opgate.service.core.datatypes import DataType
from opgate.service.core.errors import Kind, ServingError, in_queue, internal, invalid, queue_full, too_late, unloading
from opgate.service.core.request import Array, Options, Request
from opgate.service.core.request import Sequence as Place
from opgate.service.core.spec import PYTHON, Batching, ModelSpec, TensorSpec
from opgate.service.core.statistics import ModelStatistics
from opgate.service.core.tensors import join_rows
from opgate.service.execution.scheduler import Scheduler

logger = logging.getLogger("opgate.sequences")

START, END, READY, CORRELATION_ID = "START", "END", "READY", "CORRID"


@dataclass(frozen=True, slots=True)
class Control:
    """A tensor that tells the model where a request stands in its sequence: one element for each row.

    `false` and `true` are its values; CORRID has the id of the sequence instead.
    """

    kind: str
    name: str
    datatype: DataType
    false: float = 0
    true: float = 1


@dataclass(frozen=True, slots=True)
class State:
    """A tensor that the model hands from one request of a sequence to the next. `initial` is that of the first one,
    without the batch dim."""

    input: str
    output: str
    datatype: DataType
    dims: tuple[int, ...]
    initial: Array


@dataclass(frozen=True, slots=True)
class SequenceBatching:
    """A `sequence_batching` block.

    With `oldest` the requests of different sequences share batches by its rules, for at most `candidates` sequences at
    once. Without it a sequence has a row of an instance for itself as long as it lasts, and a batch waits up to
    `max_delay_ns` until a part `least_used` of the rows has requests.

    With `iterative` each request is a sequence of its own, and a model in Python may ask for it again and again.
    """

    idle_ns: int
    controls: tuple[Control, ...] = ()
    states: tuple[State, ...] = ()
    oldest: Batching | None = None
    candidates: int = 0
    max_delay_ns: int = 0
    least_used: float = 0.0
    iterative: bool = False


def engine_spec(spec: ModelSpec, sequences: SequenceBatching) -> ModelSpec:
    """Returns the spec of the model file, which has the control tensors and the states too."""
    inputs, outputs = dict(spec.inputs), dict(spec.outputs)
    for control in sequences.controls:
        inputs[control.name] = TensorSpec(control.name, control.datatype, (1,))
    for state in sequences.states:
        inputs[state.input] = TensorSpec(state.input, state.datatype, state.dims)
        outputs.setdefault(state.output, TensorSpec(state.output, state.datatype, state.dims))
    batching = sequences.oldest
    if batching is None and spec.platform == PYTHON:  # a model in Python gets the requests of a batch one by one
        batching = Batching(adaptive=False, max_delay_ns=sequences.max_delay_ns)
    return replace(spec, inputs=inputs, outputs=outputs, batching=batching if spec.batched else None)


class Sequencer:
    """Makes the requests to the model file from those of clients."""

    def __init__(self, spec: ModelSpec, sequences: SequenceBatching) -> None:
        self._spec = spec
        self._sequences = sequences
        self._leading = (1, 1) if spec.batched else (1,)
        self._states = tuple(state.output for state in sequences.states)

    def initial(self) -> dict[str, Array]:
        """Returns the state of a sequence that begins, by the inputs that get it."""
        return {s.input: s.initial[None] if self._spec.batched else s.initial for s in self._sequences.states}

    def part(self, request: Request, state: dict[str, Array]) -> Request:
        """Returns the request to the model file. It has the place in the queue that the client's one has."""
        place = request.options.sequence
        assert place is not None
        inputs = {**request.inputs, **self.controls(place.id, place.start, place.end, True), **state}
        # Requests of sequences whose states differ in shape can't share a batch.
        key = (request.key, tuple(array.shape for array in state.values()))
        wanted = (*request.outputs, *(name for name in self._states if name not in request.outputs))
        part = Request(inputs, 1, key, wanted, id=request.id, options=request.options, weight=request.weight)
        part.received_ns = request.received_ns
        part.origin = request
        part.op_calls = request.op_calls

        def renew() -> None:
            part.inputs.update(self.controls(place.id, False, place.end, True))

        part.renew = renew
        return part

    def controls(self, id: int | str, start: bool, end: bool, ready: bool) -> dict[str, Array]:
        """Returns the control tensors of a row."""
        flags = {START: start, END: end, READY: ready}
        found = self.correlation_id(id)
        for control in self._sequences.controls:
            if control.kind != CORRELATION_ID:
                value = control.true if flags[control.kind] else control.false
                found[control.name] = np.full(self._leading, value, control.datatype.dtype)
        return found

    def correlation_id(self, id: int | str) -> dict[str, Array]:
        """Returns the control tensor with the id of a sequence, if the model file has one.

        Raises ServingError (INVALID) if its type doesn't have that id.
        """
        for control in self._sequences.controls:
            if control.kind == CORRELATION_ID:
                tensor = np.empty(self._leading, control.datatype.dtype)
                try:
                    tensor.fill(str(id) if control.datatype.name == "BYTES" else id)  # np.full drops zeros of a text
                except (OverflowError, ValueError):
                    name, expected = self._spec.name, control.datatype.name
                    raise invalid(f"sequence_id {str(id)[:40]!r}: model '{name}' takes {expected} for it") from None
                return {control.name: tensor}
        return {}

    def next_state(self, state: dict[str, Array], result: dict[str, Array]) -> dict[str, Array]:
        """Returns the state that a run left, by the inputs that get it. What a model in Python leaves out stays as it
        was. It is copied, because a result can be a view on that of a whole batch."""
        left = {one.input: result[one.output].copy() for one in self._sequences.states if one.output in result}
        return {**state, **left}

    def alone(self, request: Request) -> Request:
        """Returns the part of a request that is a sequence of its own."""
        request.options = Options(sequence=Place(1, start=True, end=True))
        return self.part(request, self.initial())

    def try_out(self, request: Request, run: Callable[[Request], None]) -> None:
        """Runs a request as a sequence of its own. `run` runs a part on the calling thread. Raises ServingError."""
        part = self.alone(request)
        run(part)
        result = part.result or {}
        request.result = {name: result[name] for name in request.outputs}


class Executions(ModelStatistics):
    """The statistics of a scheduler that runs parts: what it says of runs and of its queue counts for the model.

    The requests of clients are counted by the SequenceScheduler.
    """

    def __init__(self, model: ModelStatistics, runs: bool) -> None:
        """With `runs` its runs count for the model."""
        self._model = model
        self._runs = runs
        super().__init__()

    @property
    def overdue(self) -> int:
        """Runs that outlived their limit, which count for the model."""
        return self._model.overdue

    @overdue.setter
    def overdue(self, count: int) -> None:
        self._model.overdue = count

    @property
    def pending(self) -> int:
        """Parts that wait in the queue of the scheduler, which count for the model."""
        return self._model.pending

    @pending.setter
    def pending(self, count: int) -> None:
        self._model.pending = count

    def executed(self, rows: int, requests: int, durations: tuple[int, int, int], times: int = 1) -> None:
        """Counts a run."""
        if self._runs:
            self._model.executed(rows, requests, durations, times)


class _Sequence:
    """The requests of one sequence that wait, and the state that the last one left."""

    __slots__ = ("id", "idle_since_ns", "open", "part", "place", "running", "state", "waiting")

    def __init__(self, id: int | str) -> None:
        self.id = id
        self.waiting: deque[Request] = deque()
        self.running = False
        self.part: Request | None = None  # what runs for a request, if it doesn't share a batch
        self.open = False  # whether more requests may come without the flag START
        self.place: int | None = None
        self.state: dict[str, Array] | None = None  # None until a request with the flag START has run
        self.idle_since_ns = 0

    @property
    def idle(self) -> bool:
        """Whether no request of the sequence waits or runs."""
        return not self.waiting and not self.running


class SequenceScheduler:
    """Accepts requests for one model version with sequences and calls each back.

    Each sequence has at most one request in the engine. Every method runs on the event loop's thread.

    It is long, because the requests of a sequence, its place and its state change together.
    """

    def __init__(
        self,
        spec: ModelSpec,
        sequences: SequenceBatching,
        instances: Sequence[Scheduler],
        statistics: ModelStatistics,
        *,
        max_queue_size: int = 1024,
    ) -> None:
        """`instances` run the requests to the model file: one for each instance of the model, or with `oldest` one for
        all, unless the model is in Python."""
        self.spec = spec
        self.statistics = statistics
        self.sequencer = Sequencer(spec, sequences)
        self.instances = instances
        self._max_queue = max_queue_size
        self._idle_ns = sequences.idle_ns
        # Each request is a sequence of its own, in which the model asks for it again and again.
        self._iterative = sequences.iterative
        self._free_ids = (id for id in itertools.count(1) if id not in self._sequences)
        self._sequences: dict[int | str, _Sequence] = {}
        self._backlog: dict[int | str, _Sequence] = {}  # sequences that wait for a place, in order of arrival
        self._rows = max(1, spec.max_batch_size)
        # The rows of each instance, if the requests of a batch are joined to tensors with a row for each sequence.
        joined = sequences.oldest is None and spec.platform != PYTHON
        self._direct = [_Rows(self, instance, sequences) for instance in instances] if joined else None
        places = (sequences.candidates if sequences.oldest is not None else self._rows) * len(instances)
        self._free = list(range(places - 1, -1, -1))
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._rest: asyncio.Event | None = None

    def submit(self, request: Request) -> None:
        """Accepts a checked request. `request.done` is called on this thread, maybe before this method returns."""
        if self._iterative and request.options.sequence is None:
            request.options = request.options._replace(sequence=Place(next(self._free_ids), True, False))
        error = self._refusal(request)
        if error is not None:
            self._fail(request, error)
            return
        place = request.options.sequence
        assert place is not None
        sequence = self._sequences.get(place.id)
        if sequence is None:
            sequence = self._sequences[place.id] = _Sequence(place.id)
            self._backlog[place.id] = sequence
        sequence.open = not place.end and not self._iterative
        sequence.waiting.append(request)
        self.statistics.held += 1
        request.leave = self._let_go
        request.expire_after(request.options.timeout_us)
        if sequence.place is None:
            self._give_places()
        else:
            self._advance(sequence)

    def _refusal(self, request: Request) -> ServingError | None:
        """Returns why a request can't be accepted."""
        name, place = self.spec.name, request.options.sequence
        if self._closed:
            return unloading(name)
        if self.statistics.held >= self._max_queue:
            return queue_full(name, self.statistics.held)
        timeout = request.options.timeout_us
        if timeout and perf_counter_ns() - request.received_ns >= timeout * 1000:
            return too_late(name, timeout)
        if self.overdue:
            return ServingError(Kind.UNAVAILABLE, self.overdue)
        if place is None:
            return invalid(f"inference request to model '{name}' must specify a non-zero or non-empty correlation ID")
        if request.rows != 1:
            return invalid(f"model '{name}' has sequences: expected a batch size of 1, got {request.rows}")
        sequence = self._sequences.get(place.id)
        if not place.start and (sequence is None or not sequence.open):
            return _not_begun(place.id, name)
        try:
            self.sequencer.correlation_id(place.id)
        except ServingError as error:
            return error
        return None

    def _give_places(self) -> None:
        """Lets sequences begin that wait for others to end."""
        while self._backlog and self._free:
            sequence = self._backlog.pop(next(iter(self._backlog)))
            sequence.place = self._free.pop()
            if self._direct is not None:
                self._rows_for(sequence).sequences[self.row_of(sequence)] = sequence
            self._advance(sequence)

    def _advance(self, sequence: _Sequence) -> None:
        """Has the next request of a sequence run if nothing stands in its way."""
        if self._direct is not None:
            self._rows_for(sequence).advance()
            return
        if (request := self.next_of(sequence)) is None:
            self.leave_if_over(sequence)
            return
        part = sequence.part = self.part_of(sequence, request)
        part.done = lambda finished: self.ended(sequence, request, finished.result, finished.error, finished)
        self._instance_of(sequence).submit(part)

    def _instance_of(self, sequence: _Sequence) -> Scheduler:
        assert sequence.place is not None
        return self.instances[sequence.place % len(self.instances)]

    def row_of(self, sequence: _Sequence) -> int:
        """Returns the row of its instance that a sequence has."""
        assert sequence.place is not None
        return sequence.place // len(self.instances)

    def _rows_for(self, sequence: _Sequence) -> _Rows:
        assert self._direct is not None and sequence.place is not None
        return self._direct[sequence.place % len(self._direct)]

    def next_of(self, sequence: _Sequence) -> Request | None:
        """Takes the next request of a sequence out of its queue, None if none can run now."""
        while not sequence.running and sequence.waiting:
            request = sequence.waiting.popleft()
            self.statistics.held -= 1
            place = request.options.sequence
            assert place is not None
            if place.start or sequence.state is not None:
                sequence.running = True
                return request
            self._fail(request, _not_begun(sequence.id, self.spec.name))  # the first one left before its turn
        return None

    def part_of(self, sequence: _Sequence, request: Request) -> Request:
        """Returns the request to the model file for one of a sequence."""
        place = request.options.sequence
        assert place is not None
        if place.start or sequence.state is None:
            sequence.state = self.sequencer.initial()
        return self.sequencer.part(request, sequence.state)

    def empty_row(self, part: Request) -> dict[str, Array]:
        """Returns inputs of the shapes of another part for a row without a request."""
        found = {
            name: np.full(array.shape, "", np.object_) if array.dtype == object else np.zeros_like(array)
            for name, array in part.inputs.items()
        }
        return {**found, **self.sequencer.controls(0, False, False, False)}

    def ended(
        self,
        sequence: _Sequence,
        request: Request,
        result: dict[str, Array] | None,
        error: ServingError | None,
        part: Request | None = None,
    ) -> None:
        """Takes what came of a request, answers it, and has the next one run."""
        place = request.options.sequence
        assert place is not None
        if not request.ended:  # otherwise its end has been counted
            self._count(request, error, part)
        sequence.running, sequence.part = False, None
        if result is not None:
            assert sequence.state is not None
            sequence.state = self.sequencer.next_state(sequence.state, result)
            # The client's request got the responses of a stream as they came.
            found = {} if self.spec.streams else {name: result[name] for name in request.outputs if name in result}
            request.result = found
            if not self.spec.streams:
                request.outputs = tuple(found)  # a model in Python may leave some out
        if part is not None:
            request.started_ns, request.run_ns = part.started_ns, part.run_ns
            request.parameters = part.parameters
            if request.op_calls is not None:
                request.op_calls = part.op_calls or ()
        if place.end:
            sequence.state = None
        self.leave_if_over(sequence)
        if not request.ended:  # its client may have left meanwhile
            request.error = error
            try:
                request.end()
            except Exception:
                logger.exception("writing the answer of a request for model '%s' failed", self.spec.name)
        if sequence.waiting and self._direct is None:
            _soon(lambda: self._advance(sequence))
        self.rested()

    def _count(self, request: Request, error: ServingError | None, part: Request | None) -> None:
        elapsed = perf_counter_ns() - request.received_ns
        if error is not None:
            self.statistics.failed(error.kind.value, elapsed)
        elif part is not None:
            self.statistics.succeeded(request.rows, elapsed, part.started_ns - request.received_ns)

    def leave_if_over(self, sequence: _Sequence) -> None:
        """Gives the place of a sequence to another one if it has ended, and watches it if it is idle."""
        if not sequence.idle or self._sequences.get(sequence.id) is not sequence:
            return
        if not sequence.open or sequence.place is None:
            self._drop(sequence)
            return
        sequence.idle_since_ns = perf_counter_ns()
        if self._timer is None:
            self._watch(self._idle_ns)

    def _drop(self, sequence: _Sequence) -> None:
        del self._sequences[sequence.id]
        self._backlog.pop(sequence.id, None)
        if sequence.place is not None:
            if self._direct is not None:
                del self._rows_for(sequence).sequences[self.row_of(sequence)]
            self._free.append(sequence.place)
            self._free.sort(reverse=True)  # the first rows are taken first, so that batches are short
            sequence.place = None
            _soon(self._give_places)

    def _watch(self, ns: int) -> None:
        self._timer = asyncio.get_running_loop().call_later(ns / 1e9 + 0.001, self._look_for_idle)

    def _look_for_idle(self) -> None:
        """Ends the sequences that have been idle for too long."""
        self._timer = None
        now = perf_counter_ns()
        left: list[int] = []
        for sequence in list(self._sequences.values()):
            if sequence.idle:
                age = now - sequence.idle_since_ns
                if age >= self._idle_ns:
                    id = str(sequence.id)[:80]
                    logger.info("sequence %s of model '%s' was idle and has ended", id, self.spec.name)
                    self._drop(sequence)
                else:
                    left.append(self._idle_ns - age)
        if left:
            self._watch(min(left))

    def _let_go(self, request: Request, error: ServingError) -> None:
        """Ends a request whose client left or whose time ran out. One that runs goes on, because the next ones of its
        sequence need the state that it leaves; a model in Python can ask whether it is wanted."""
        place = request.options.sequence
        assert place is not None
        sequence = self._sequences.get(place.id)
        if sequence is not None and request in sequence.waiting:
            self._leave_queue(sequence, request, in_queue(error))
            self.leave_if_over(sequence)
            self.rested()
            return
        self._fail(request, error)
        if sequence is not None and sequence.part is not None and self.spec.platform == PYTHON:
            self._instance_of(sequence).stop_if_unwanted(sequence.part)

    def _leave_queue(self, sequence: _Sequence, request: Request, error: ServingError) -> None:
        """Takes a request out of the queue. Without the first request of a sequence the ones behind it can't run."""
        place = request.options.sequence
        assert place is not None
        behind = list(sequence.waiting)[sequence.waiting.index(request) + 1 :]
        lost: list[Request] = []
        if place.start:
            for other in behind:
                if other.options.sequence is None or other.options.sequence.start:
                    break
                lost.append(other)
        for gone in (request, *lost):
            sequence.waiting.remove(gone)
            self.statistics.held -= 1
        if len(lost) == len(behind) and (place.start or place.end):
            sequence.open = False
        self._fail(request, error)
        for other in lost:
            self._fail(other, _not_begun(sequence.id, self.spec.name))

    def _fail(self, request: Request, error: ServingError) -> None:
        self.statistics.failed(error.kind.value, perf_counter_ns() - request.received_ns)
        try:
            request.fail(error)
        except Exception:
            logger.exception("writing an error of model '%s' failed", self.spec.name)

    @property
    def overdue(self) -> str:
        """Why the model is not ready, if a run takes too long."""
        return next((reason for instance in self.instances if (reason := instance.overdue)), "")

    def try_out(self, request: Request) -> None:
        """Runs a request on the calling thread, past the queue and the statistics. Raises ServingError."""
        self.sequencer.try_out(request, self.instances[0].try_out)

    def rested(self) -> None:
        """Tells `close` when no request waits or runs any more."""
        if self._rest is not None and all(sequence.idle for sequence in self._sequences.values()):
            self._rest.set()

    @property
    def at_rest(self) -> bool:
        """Whether no sequence is under way."""
        return not self._sequences and all(instance.at_rest for instance in self.instances)

    async def close(self) -> None:
        """Refuses new requests, waits until the accepted ones are answered, and ends the threads."""
        self._closed = True
        for sequence in list(self._sequences.values()):
            if sequence.idle:  # it gets no more requests, and another one may wait for its place
                self._drop(sequence)
        if not all(sequence.idle for sequence in self._sequences.values()):
            self._rest = asyncio.Event()
            await self._rest.wait()
        if self._timer is not None:
            self._timer.cancel()
        for instance in self.instances:
            await instance.close()


def _soon(step: Callable[[], None]) -> None:
    """Goes on in the next turn of the event loop, because parts may end before their `submit` returns."""
    asyncio.get_running_loop().call_soon(step)


def _not_begun(id: int | str, model: str) -> ServingError:
    return invalid(
        f"inference request for sequence {str(id)[:80]} to model '{model}' must specify the START flag on the first "
        "request of the sequence"
    )


class _Member(NamedTuple):
    """A request in a batch: the client's, and the part of the batch that it becomes."""

    sequence: _Sequence
    request: Request
    part: Request


class _Rows:
    """The rows of one instance. A batch has a row for each sequence up to the last one that has a request."""

    def __init__(self, owner: SequenceScheduler, instance: Scheduler, sequences: SequenceBatching) -> None:
        self._owner = owner
        self._instance = instance
        self._max_delay_ns = sequences.max_delay_ns
        self._least_used = sequences.least_used
        self.sequences: dict[int, _Sequence] = {}  # by row
        self._running = False
        self._timer: asyncio.TimerHandle | None = None

    def advance(self) -> None:
        """Runs a batch if the instance is idle and enough requests wait."""
        if self._running:
            return
        ready = [sequence for sequence in self.sequences.values() if not sequence.running and sequence.waiting]
        if not ready:
            return
        oldest = min((sequence.waiting[0] for sequence in ready), key=lambda request: request.received_ns)
        wait = oldest.received_ns + self._max_delay_ns - perf_counter_ns()
        if wait > 0 and len(ready) < self._least_used * len(self.sequences):
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(wait / 1e9 + 0.0005, self._waited)
            return
        batches: dict[Hashable, list[_Member]] = {}  # by what the parts of a batch must share
        for sequence in ready:
            if sequence.waiting[0].key != oldest.key or sequence.waiting[0].outputs != oldest.outputs:
                continue
            request = self._owner.next_of(sequence)
            if request is None:
                self._owner.leave_if_over(sequence)
            else:
                part = self._owner.part_of(sequence, request)
                batches.setdefault((part.key, part.outputs), []).append(_Member(sequence, request, part))
        if batches:
            self._running = True
            self._run(list(batches.values()))
        self._owner.rested()

    def _waited(self) -> None:
        self._timer = None
        self.advance()

    def _run(self, batches: Sequence[Sequence[_Member]]) -> None:
        """Runs one batch after the other. If one fails, each of its parts runs alone, so that only the one at fault
        fails."""
        members, *rest = batches

        def done(finished: Request) -> None:
            left = rest
            if finished.error is not None and len(members) > 1:
                left = [*([member] for member in members), *rest]
            else:
                self._answer(members, finished)
            _soon((lambda: self._run(left)) if left else self._rest)

        try:
            batch = self._joined(members)
        except Exception as error:  # nobody else would answer the requests
            logger.exception("a batch of sequences of model '%s' can't be formed", self._owner.spec.name)
            batch = Request({}, 1, None, ())
            batch.error = internal(f"{type(error).__name__}: {error}")
            done(batch)
            return
        batch.done = done
        self._instance.submit(batch)

    def _rest(self) -> None:
        self._running = False
        self.advance()

    def _joined(self, members: Sequence[_Member]) -> Request:
        part = members[0].part
        if not self._owner.spec.batched:
            return _copy(part, part.inputs, 1, part.op_calls is not None)
        by_row = {self._owner.row_of(sequence): one for sequence, _, one in members}
        empty = self._owner.empty_row(part)
        rows = [by_row[i].inputs if i in by_row else empty for i in range(max(by_row) + 1)]
        inputs = {name: join_rows([row[name] for row in rows]) for name in part.inputs}
        recorded = any(one.op_calls is not None for _, _, one in members)
        return _copy(part, inputs, len(rows), recorded)

    def _answer(self, members: Sequence[_Member], batch: Request) -> None:
        begin, end = batch.run_ns
        self._owner.statistics.executed(len(members), len(members), (0, end - begin, 0))
        for sequence, request, _ in members:
            row = self._owner.row_of(sequence)
            result = batch.result
            if result is not None and self._owner.spec.batched:
                result = {name: array[row : row + 1] for name, array in result.items()}
            self._owner.ended(sequence, request, result, batch.error, batch)


def _copy(part: Request, inputs: dict[str, Array], rows: int, recorded: bool) -> Request:
    request = Request(inputs, rows, part.key, part.outputs, id=part.id, weight=part.weight)
    request.received_ns = part.received_ns
    request.op_calls = () if recorded else None
    return request
