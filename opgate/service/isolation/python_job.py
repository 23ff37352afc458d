"""A batch on its way through a worker process that runs a model in Python: how its requests become messages, and what
the process says becomes their answers.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import numpy as np

from opgate.service.core.checks import check_result, check_result_type
from opgate.service.core.errors import Kind, ServingError, internal
from opgate.service.core.request import Array, Request, Response
from opgate.service.core.spec import ModelSpec
from opgate.service.core.tensors import SMALL
from opgate.service.execution.batch import Batch, answer_alone, as_serving_error, counts_rows, in_stated_shapes

#: The flags of a request of a sequence, as models see them.
SEQUENCE_START, SEQUENCE_END = 1, 2
# Strings of a tensor whose bytes are counted.
_MANY_STRINGS = 256


@dataclass(eq=False)
class Job:
    """A batch on its way through a process. `tell` has the event loop call something, or calls it at once.

    `finished` is called when all of its runs have ended, and then `closed` for each request that they left open.
    """

    batch: Batch
    spec: ModelSpec
    tell: Callable[[Callable[[], None]], None]
    finished: Callable[[], None]
    closed: Callable[[Request], None]
    todo: deque[list[Request]] = field(default_factory=deque)  # runs that are to come
    running: list[Request] = field(default_factory=list)
    message: int = 0  # the number of the message that began the run
    until: float = 0.0
    alone: bool = False  # whether nobody takes responses: it tries a model out
    ended: bool = False
    waits: Callable[[], None] | None = None  # is told that no process runs it now

    @property
    def is_small(self) -> bool:
        """Whether its next run has few bytes."""
        arrays = [array for request in self.todo[0] for array in request.inputs.values()]
        return sum(map(bytes_of, arrays)) <= SMALL

    def end(self, error: ServingError | None = None) -> None:
        """Ends the batch. Requests that have nothing yet get the error."""
        batch = self.batch
        for request in batch.requests:
            if error is not None and request.result is None and not request.open:
                request.error = request.error or as_serving_error(self.spec, error)
                request.again = False
        self.ended = True
        now = perf_counter_ns()
        batch.begun_ns = batch.begun_ns or now
        batch.infer_start_ns = batch.infer_start_ns or now
        batch.infer_end_ns = batch.ended_ns = now
        batch.wall_ns = now - batch.begun_ns
        self.tell(self.finished)


def bytes_of(array: Array) -> int:
    """Returns about how many bytes a tensor has in a message."""
    if array.dtype.kind != "O":
        return array.nbytes
    return (
        SMALL + 1 if array.size > _MANY_STRINGS else sum([len(element) + 4 for element in array.reshape(-1).tolist()])
    )


def envelope_of(request: Request) -> list[Any]:
    """Returns what a message says of a request beside its tensors."""
    sequence, options = request.options.sequence, request.options
    flags = 0 if sequence is None else SEQUENCE_START * sequence.start | SEQUENCE_END * sequence.end
    correlation = 0 if sequence is None else sequence.id
    # As text, because messages have no numbers for NaN and infinities.
    parameters = json.dumps(dict(options.parameters)) if options.parameters else "{}"
    return [request.id, correlation, flags, options.timeout_us, parameters, list(request.outputs)]


def _parameters(given: Any) -> dict[str, bool | int | float | str]:
    """Returns the parameters of a response. Raises ValueError if they are none that every protocol can tell."""
    found = dict(given)
    for value in found.values():
        if isinstance(value, str):
            value.encode()
        elif not isinstance(value, (bool, int, float)) or abs(value) > (1 << 63) - 1:
            raise ValueError("parameters that are none")
    return found


def settle(spec: ModelSpec, request: Request, outputs: dict[str, Array], error: Any, parameters: Any) -> None:
    """Sets the result or the error of a request, unless it has ended."""
    if request.ended:
        return
    if error:
        request.error = _sent(error)
        return
    try:
        own = _checked(spec, request, outputs)
        wanted = request.outputs
        request.outputs = tuple([name for name in wanted if name in own])
        status = spec.row_status
        if status is not None and status.output not in own:
            raise internal(f"it left out the output '{status.output}', which has the statuses of rows")
        answer_alone(spec, request, own)
        request.parameters = _parameters(parameters)
    except ServingError as failed:
        request.error = as_serving_error(spec, failed)
    except UnicodeEncodeError:
        request.error = as_serving_error(spec, internal("a parameter of its response is no text"))


def response_of(
    spec: ModelSpec, request: Request, final: bool, error: Any, parameters: Any, outputs: dict[str, Array]
) -> Response:
    """Returns one of the responses to a request."""
    if error:
        return Response({}, final, _sent(error))
    try:
        own = in_stated_shapes(spec, _checked(spec, request, outputs))
        return Response(own, final, None, _parameters(parameters))
    except ServingError as failed:
        return Response({}, final, as_serving_error(spec, failed))


def _sent(error: Any) -> ServingError:
    """Returns an error that a model has sent. Its text is the model's own, which a client may read by a program."""
    return ServingError(Kind(error[0]), str(error[1]))


def _checked(spec: ModelSpec, request: Request, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the outputs that the request wants, in its order. Others are dropped, and some may be left out, as in
    Triton. Numbers of another type become those of the config: NumPy makes float64 and int64 of what an author doesn't
    think about. Any shape goes, unless rows are counted.

    Raises ServingError (INTERNAL) for one that is not as the config says.
    """
    status = () if spec.row_status is None else (spec.row_status.output,)
    found = {name: outputs[name] for name in (*request.outputs, *status) if name in outputs}
    check = check_result if counts_rows(spec) else check_result_type
    for name, array in found.items():
        stated = spec.outputs[name].datatype
        found[name] = _converted(name, array, stated.name, stated.dtype)
        check(spec, name, found[name])
    return found


def _converted(name: str, array: Array, datatype: str, dtype: np.dtype[Any]) -> Array:
    """Returns integers as other integers, and numbers as floats. What else it is stays as it is. Raises ServingError
    (INTERNAL) for integers that the type doesn't hold."""
    kinds = {array.dtype.kind, dtype.kind}
    bits = datatype == "BF16" or array.dtype == np.uint16  # that may be those of BF16
    if array.dtype == dtype or bits or not kinds <= set("iuf"):
        return array
    if not kinds <= set("iu") and dtype.kind != "f":
        return array
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(converted, array):
        raise internal(f"output '{name}': {array.dtype} has numbers that {datatype} doesn't hold")
    return converted
