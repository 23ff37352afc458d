"""Runs several requests as one: joins their inputs, splits the outputs, finds the request at fault if the run fails."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from time import perf_counter_ns, thread_time_ns
from typing import Any

import numpy as np

from opgate.service.core.checks import check_result
from opgate.service.core.errors import Kind, ServingError, internal, invalid
from opgate.service.core.request import Array, OpCall, Request
from opgate.service.core.spec import PYTHON, BatchInputSpec, ModelSpec, TensorSpec
from opgate.service.core.tensors import join_rows
from opgate.service.execution.cost import CostCurve, HandOver
from opgate.service.execution.padding import cut, element_counts, mask, pad, padded_sizes
from opgate.service.execution.session import FileSession, ModelSession

# The kind of a batch input that has as many elements as the longest row of a ragged input.
_LONGEST_ROW = "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"


class Batch:
    """Requests that run together, and the times of their run.

    The thread of the run fills it in. The event loop reads it after the run.
    """

    __slots__ = (
        "begun_ns", "cpu_ns", "curve", "ended_ns", "executions", "formed_ns", "infer_end_ns", "infer_start_ns",
        "on_loop", "options", "overdue", "requests", "rows", "stopped", "wall_ns",
    )  # fmt: skip

    def __init__(self, requests: list[Request], rows: int, curve: CostCurve) -> None:
        self.curve = curve  # the measured costs of runs like this one
        self.requests = requests
        self.rows = rows
        self.formed_ns = perf_counter_ns()
        self.infer_start_ns = 0
        self.infer_end_ns = 0
        self.wall_ns = 0
        self.cpu_ns = 0
        self.executions = 0
        self.on_loop = False
        self.begun_ns = 0  # when the thread began, and when it had ended
        self.ended_ns = 0
        self.options: Any = None  # of the engine's run, if another thread can stop it
        self.stopped = False  # whether nobody waits for the result
        self.overdue = False  # whether the run outlived its limit

    def stop_if_unwanted(self) -> None:
        """Stops the run if nobody waits for any of its requests."""
        if all(request.unwanted for request in self.requests):
            self.stopped = True
            if self.options is not None:
                self.options.terminate = True


def execute(session: ModelSession, spec: ModelSpec, batch: Batch) -> None:
    """Runs a batch and sets the result or the error of each request. Raises nothing.

    If a batch of several requests fails, each request runs again alone, so that only the request at fault fails.
    """
    cpu = thread_time_ns()
    batch.begun_ns = perf_counter_ns()
    requests = batch.requests
    try:
        _run(session, spec, batch, requests)
    except Exception as error:
        if len(requests) == 1 or spec.streams:  # responses of another run would come twice
            for request in requests:
                if not request.ended:  # one that left or ran out of time has its error, and its run was stopped
                    request.error = as_serving_error(spec, error)
        else:
            for request in requests:
                if request.ended:
                    continue
                try:
                    _run(session, spec, batch, [request])
                except Exception as alone:
                    request.error = as_serving_error(spec, alone)
    end = perf_counter_ns()
    if not batch.infer_end_ns:
        batch.infer_start_ns = batch.infer_start_ns or end
        batch.infer_end_ns = end
    batch.ended_ns = end
    batch.wall_ns = end - batch.begun_ns
    batch.cpu_ns = thread_time_ns() - cpu


def try_out(session: ModelSession, spec: ModelSpec, request: Request) -> None:
    """Runs a single request and sets its result. Another thread may cancel it. Raises ServingError."""
    batch = Batch([request], request.rows, CostCurve(HandOver(0)))
    options = batch.options = session.run_options()

    def stop(request: Request, error: ServingError) -> None:
        if options is not None:
            options.terminate = True

    request.leave = stop
    execute(session, spec, batch)
    request.leave = None
    if request.error is not None:
        raise request.error


def as_serving_error(spec: ModelSpec, error: Exception) -> ServingError:
    """Returns the error of a request whose run failed: it names the model."""
    if isinstance(error, ServingError):
        return ServingError(error.kind, f"model '{spec.name}': {error.message}")
    return internal(f"model '{spec.name}' failed: {type(error).__name__}: {error}")


def _run(session: ModelSession, spec: ModelSpec, batch: Batch, requests: list[Request]) -> None:
    if session.takes_requests:
        batch.executions += 1
        batch.infer_start_ns = perf_counter_ns()
        session.execute(spec, requests, batch.options)
        batch.infer_end_ns = perf_counter_ns()
        return
    feeds = assemble(spec, requests)
    rows = size = sum([request.rows for request in requests]) if spec.pad_batch else 0
    if spec.pad_batch:
        size = next(size for size in spec.pad_batch if size >= rows)
        feeds = fill_up(feeds, rows, size)
    wanted = requests[0].outputs
    status = spec.row_status
    names = wanted if status is None or status.output in wanted else (*wanted, status.output)
    batch.executions += 1
    recorded = [request for request in requests if request.op_calls is not None]
    batch.infer_start_ns = perf_counter_ns()
    arrays = _recorded(session, names, feeds, batch, recorded) if recorded else session.run(names, feeds, batch.options)
    batch.infer_end_ns = perf_counter_ns()
    if size != rows:
        arrays = [_without_padding(name, array, rows, size) for name, array in zip(names, arrays, strict=True)]
    if session.isolated:
        for name, array in zip(names, arrays, strict=True):
            check_result(spec, name, array)
    split(spec, requests, names, arrays)


def _recorded(
    session: FileSession, names: Sequence[str], feeds: dict[str, Array], batch: Batch, requests: Sequence[Request]
) -> list[Array]:
    """Runs, and gives the requests the calls of ops in the run."""
    calls: list[OpCall] = []
    try:
        return session.run(names, feeds, batch.options, calls)
    finally:
        for request in requests:
            request.op_calls = calls


def assemble(spec: ModelSpec, requests: Sequence[Request]) -> dict[str, Array]:
    """Returns the model's inputs: the rows of all requests in order. The arrays of a single request are not copied.

    Ragged inputs are flat, but for a model in Python: it gets each request for itself, in the shape that it has.
    """
    feeds: dict[str, Array] = {}
    first = requests[0]
    padding = spec.padding
    for name in first.inputs:
        tensor = spec.inputs[name]
        if tensor.ragged and spec.platform != PYTHON:
            flat = [request.inputs[name].reshape(-1) for request in requests]
            feeds[name] = flat[0] if len(flat) == 1 else join_rows(flat)
        else:
            if padding is not None and name in padding.inputs:
                array = pad(padding, name, requests)
            elif len(requests) == 1:
                array = first.inputs[name]
            else:
                array = join_rows([request.inputs[name] for request in requests])
            feeds[name] = array if tensor.reshape is None else array.reshape(_inner_shape(spec, tensor, array.shape))
    for batch_input in spec.batch_inputs:
        feeds[batch_input.name] = _batch_input(batch_input, requests)
    if padding is not None:
        for target in padding.masks:
            feeds[target.name] = mask(padding, target, requests)
    return feeds


def _without_padding(name: str, array: Array, rows: int, size: int) -> Array:
    """Returns the first rows of an output that has `size`. Raises ServingError (INTERNAL) if it has others."""
    if not array.ndim or array.shape[0] != size:
        raise internal(f"output '{name}' has shape {list(array.shape)}, expected {size} rows for a batch of {size}")
    return array[:rows]


def fill_up(feeds: dict[str, Array], rows: int, size: int) -> dict[str, Array]:
    """Returns the inputs of a run with more rows. The last row is repeated, because a model may take no other
    values."""
    if size == rows:
        return feeds
    return {name: join_rows([array, np.repeat(array[-1:], size - rows, axis=0)]) for name, array in feeds.items()}


def _inner_shape(spec: ModelSpec, tensor: TensorSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape in which the model file has an input with `reshape`.

    The variable sizes of `reshape` get the values of the variable sizes of `dims`, in order.
    """
    inner = shape[1:] if spec.batched else shape
    variable = iter([size for want, size in zip(tensor.dims, inner, strict=True) if want == -1])
    new = tuple(next(variable) if size == -1 else size for size in tensor.reshape or ())
    return (shape[0], *new) if spec.batched else new


def _row_sizes(requests: Sequence[Request], source: str) -> list[int]:
    """Returns the number of elements in each row of a ragged input."""
    sizes: list[int] = []
    for request in requests:
        shape = request.inputs[source].shape
        sizes.extend([math.prod(shape[1:])] * shape[0])
    return sizes


def padding(spec: ModelSpec, requests: Sequence[Request]) -> tuple[int, int]:
    """Returns how many elements the requests brought of inputs that are padded, and how many the padding adds.

    The gateway pads the inputs of `spec.padding`. A model pads a ragged input to the longest row if a batch input tells
    it that length.
    """
    brought = added = 0
    if spec.padding is not None:
        brought, padded = element_counts(spec.padding, requests)
        added = padded - brought
    for target in spec.batch_inputs:
        if target.kind == _LONGEST_ROW:
            sizes = _row_sizes(requests, target.source)
            brought += sum(sizes)
            added += len(sizes) * max(sizes) - sum(sizes)
    return brought, added


def _batch_input(target: BatchInputSpec, requests: Sequence[Request]) -> Array:
    dtype = target.datatype.dtype
    if target.kind.startswith("BATCH_ITEM_SHAPE"):
        rows = [r.inputs[target.source].shape[1:] for r in requests for _ in range(r.inputs[target.source].shape[0])]
        shapes = np.array(rows, dtype=dtype)
        return shapes.reshape(-1) if target.kind == "BATCH_ITEM_SHAPE_FLATTEN" else shapes
    sizes = _row_sizes(requests, target.source)
    if target.kind == _LONGEST_ROW:
        return np.zeros(max(sizes), dtype=dtype)
    total = sum(sizes)
    if dtype.kind == "i" and total > np.iinfo(dtype).max:
        raise invalid(f"input '{target.source}': a batch of {total} elements doesn't fit '{target.name}' ({dtype})")
    if target.kind == "BATCH_ELEMENT_COUNT":
        return np.array(sizes, dtype=dtype)
    ends = np.cumsum([0, *sizes] if target.kind.endswith("WITH_ZERO") else sizes)
    return ends.astype(dtype)


def split(spec: ModelSpec, requests: Sequence[Request], names: Sequence[str], arrays: Sequence[Array]) -> None:
    """Gives each request its rows of the outputs, as views. A row with a nonzero status fails only its own request.

    Raises ServingError (INTERNAL) if an output doesn't have a row for each row of the batch, or if one that is
    scattered or cut doesn't have the size that the inputs say.
    """
    rows = 0
    for request in requests:
        rows += request.rows
    if spec.batched:
        for name, array in zip(names, arrays, strict=True):
            if (not array.ndim or array.shape[0] != rows) and name not in spec.scattered:
                raise internal(
                    f"output '{name}' has shape {list(array.shape)}, expected {rows} rows for a batch of {rows}"
                )
    outputs = dict(zip(names, arrays, strict=True))
    states = None if spec.row_status is None else outputs[spec.row_status.output].reshape(rows, -1)
    results = _results(spec, requests, outputs) if spec.scattered or spec.padding is not None else None
    begin = 0
    for i, request in enumerate(requests):
        end = begin + request.rows
        error = None if states is None else row_error(spec, states[begin:end])
        if error is not None:
            request.error = error
        elif results is not None:
            request.result = results[i]
        else:
            request.result = {
                name: _outer(spec, spec.outputs[name], outputs[name], begin, end) for name in request.outputs
            }
        begin = end


def answer_alone(spec: ModelSpec, request: Request, outputs: dict[str, Array]) -> None:
    """Gives a request the outputs that a model in Python computed for it alone.

    Raises ServingError (INTERNAL) as `split` does where rows are counted.
    """
    if counts_rows(spec):
        split(spec, [request], list(outputs), list(outputs.values()))
    else:
        request.result = in_stated_shapes(spec, outputs)


def in_stated_shapes(spec: ModelSpec, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Returns outputs of a model in Python with the dims that the config states, where it has a `reshape`. As in Triton
    they have any shape otherwise: a row for each thing that a picture shows, or no batch dim."""
    return {
        name: array
        if name in spec.scattered or spec.outputs[name].reshape is None
        else _outer(spec, spec.outputs[name], array, 0, len(array) if array.ndim and spec.batched else 0)
        for name, array in outputs.items()
    }


def counts_rows(spec: ModelSpec) -> bool:
    """Returns whether the gateway must find the rows of the outputs: of those with statuses, and of those that are
    scattered or cut."""
    return spec.row_status is not None or bool(spec.scattered) or spec.padding is not None


def _results(spec: ModelSpec, requests: Sequence[Request], outputs: dict[str, Array]) -> list[dict[str, Array]]:
    """Returns the result of each request of a model with outputs that are scattered or cut."""
    scattered = {name: _scatter(spec, name, requests, outputs[name]) for name in outputs if name in spec.scattered}
    padding = spec.padding
    cuts = padding.cuts if padding is not None else {}
    sizes = {name: padded_sizes(padding, name, requests) for name in padding.inputs} if padding is not None else {}
    results: list[dict[str, Array]] = []
    begin = 0
    for i, request in enumerate(requests):
        end = begin + request.rows
        result: dict[str, Array] = {}
        for name in request.outputs:
            if name in scattered:
                result[name] = scattered[name][i]
                continue
            result[name] = _outer(spec, spec.outputs[name], outputs[name], begin, end)
            if name in cuts:
                result[name] = cut(cuts[name], spec.outputs[name], result[name], request, sizes)
        results.append(result)
        begin = end
    return results


def _scatter(spec: ModelSpec, name: str, requests: Sequence[Request], array: Array) -> list[Array]:
    """Returns the part of each request of a flat output. The request's input that shapes it says how large it is."""
    dims, source = spec.outputs[name].dims, spec.scattered[name]
    shapes: list[tuple[int, ...]] = []
    for request in requests:
        own = request.inputs[source].shape[1:]
        shapes.append((request.rows, *(own[i] if size == -1 else size for i, size in enumerate(dims))))
    total = sum(map(math.prod, shapes))
    if array.size != total:
        raise internal(f"output '{name}' has shape {list(array.shape)}, expected {total} elements for input '{source}'")
    flat = array.reshape(-1)
    ends = [0, *accumulate(map(math.prod, shapes))]
    return [flat[begin:end].reshape(shape) for begin, end, shape in zip(ends, ends[1:], shapes, strict=False)]


def _outer(spec: ModelSpec, tensor: TensorSpec, array: Array, begin: int, end: int) -> Array:
    if spec.batched and end - begin != len(array):
        array = array[begin:end]
    if tensor.reshape is None:
        # A model file that states no shape of an output may give a scalar, for which dims of size 1 stand.
        return array if array.ndim or any(size != 1 for size in tensor.dims) else array.reshape(tensor.dims)
    inner = array.shape[1:] if spec.batched else array.shape
    if len(inner) != len(tensor.reshape):
        raise internal(f"output '{tensor.name}' has shape {list(array.shape)}, expected {list(tensor.reshape)} a row")
    variable = iter([size for want, size in zip(tensor.reshape, inner, strict=True) if want == -1])
    new = tuple(next(variable) if size == -1 else size for size in tensor.dims)
    return array.reshape((array.shape[0], *new) if spec.batched else new)


def row_error(spec: ModelSpec, states: Array) -> ServingError | None:
    """Returns the error of the first row whose status is not zero, None if all are zero.

    The text is that of `row_status_messages` in the model's config. Unless it begins with the name of an input, the
    error names the inputs that every request has.
    """
    if not states.any():
        return None
    states = states.reshape(len(states), -1)
    row, column = (int(i) for i in np.argwhere(states)[0])
    code = int(states[row, column])
    text = spec.row_status.messages.get(code, f"status {code}") if spec.row_status else ""
    required = [name for name, tensor in spec.inputs.items() if not tensor.optional]
    names = ", ".join(f"'{name}'" for name in required or spec.inputs)
    subject = "" if text.partition(" ")[0] in spec.inputs else f"input {names} of "
    where = f" (row {row})" if len(states) > 1 else ""
    return ServingError(Kind.INVALID, f"{subject}model '{spec.name}'{where}: {text}")
