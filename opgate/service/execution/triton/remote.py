"""Runs the requests of a model on a pool of Triton servers. Triton forms the batches."""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter_ns

from opgate.service.core.checks import Limits
from opgate.service.core.datatypes import DATATYPES
from opgate.service.core.errors import Kind, ServingError, internal, queue_full, too_late, unloading
from opgate.service.core.request import Array, Request
from opgate.service.core.spec import ModelSpec
from opgate.service.core.statistics import ModelStatistics
from opgate.service.core.tensors import from_raw, to_raw
from opgate.service.core.triton_messages import service_pb2 as messages
from opgate.service.execution.batch import row_error
from opgate.service.execution.triton.pool import TritonPool

logger = logging.getLogger("opgate.triton")

# Messages of more bytes are written and read on a thread.
_LARGE = 1 << 20
# Where a parameter of a client's own lies in a message.
_FIELDS = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
# What a string of a tensor with many is taken to have.
_STRING = 256


class RemoteModel:
    """One model version on Triton servers. Every method runs on the event loop's thread, unless it says otherwise."""

    def __init__(
        self, spec: ModelSpec, pool: TritonPool, statistics: ModelStatistics, limits: Limits,
        *, max_queue_size: int, call_timeout: float,
    ) -> None:  # fmt: skip
        """`max_queue_size` bounds the requests without an answer. `call_timeout` seconds bound a call whose request has
        no timeout of its own."""
        self.spec = spec
        self.statistics = statistics
        self._pool, self._limits = pool, limits
        self._max_queue, self._call_timeout = max_queue_size, call_timeout
        self._calls: dict[Request, asyncio.Task[None]] = {}
        self._closed = False

    def try_out(self, request: Request) -> None:
        """Raises ServingError (UNSUPPORTED): only Triton can try its models out."""
        raise ServingError(Kind.UNSUPPORTED, f"model '{self.spec.name}' runs on Triton, which warms up and tries it")

    @property
    def overdue(self) -> str:
        """Why the model is not ready, if no server is there."""
        return self._pool.down()

    def submit(self, request: Request) -> None:
        """Accepts a checked request. Calls `request.done` when the answer of a server or an error is there."""
        if self._closed:
            self._fail(request, unloading(self.spec.name))
            return
        if len(self._calls) >= self._max_queue:
            self._fail(request, queue_full(self.spec.name, len(self._calls)))
            return
        if request.options.timeout_us and perf_counter_ns() - request.received_ns >= request.options.timeout_us * 1000:
            self._fail(request, too_late(self.spec.name, request.options.timeout_us))
            return
        request.started_ns = perf_counter_ns()
        self._calls[request] = asyncio.get_running_loop().create_task(self._run(request))
        self.statistics.pending = len(self._calls)
        request.leave = self._let_go
        request.expire_after(request.options.timeout_us)

    @property
    def at_rest(self) -> bool:
        """Whether every accepted request is answered."""
        return not self._calls

    async def close(self) -> None:
        """Refuses new requests, and waits for the answers of the others."""
        self._closed = True
        while self._calls:
            await asyncio.wait(self._calls.values())

    def _let_go(self, request: Request, error: ServingError) -> None:
        """Ends a request whose client left or whose time ran out, and its call."""
        task = self._calls.pop(request, None)
        self.statistics.pending = len(self._calls)
        if task is not None:
            task.cancel()
        self._fail(request, error)

    async def _run(self, request: Request) -> None:
        error: ServingError | None = None
        try:
            error = await self._call(request)
        except ServingError as failed:
            if failed.kind is Kind.DEADLINE and not request.options.timeout_us:
                self.statistics.overdue += 1
            error = ServingError(failed.kind, f"model '{self.spec.name}': {failed.message}")
        except asyncio.CancelledError:
            error = ServingError(Kind.CANCELED, "the client left")
        except Exception as failed:
            logger.exception("a call of model '%s' failed", self.spec.name)
            error = internal(f"model '{self.spec.name}' failed: {type(failed).__name__}: {failed}")
        self._calls.pop(request, None)
        self.statistics.pending = len(self._calls)
        if request.ended:
            return
        begin, end = request.run_ns
        now = perf_counter_ns()
        if end:
            self.statistics.executed(request.rows, 1, (begin - request.started_ns, end - begin, now - end))
        try:
            if error is not None:
                self._fail(request, error)
            else:
                queue_ns = request.started_ns - request.received_ns
                self.statistics.succeeded(request.rows, now - request.received_ns, queue_ns)
                request.end()
        except Exception:
            logger.exception("writing the answer of a request for model '%s' failed", self.spec.name)

    def _fail(self, request: Request, error: ServingError) -> None:
        self.statistics.failed(error.kind.value, perf_counter_ns() - request.received_ns)
        request.fail(error)

    async def _call(self, request: Request) -> ServingError | None:
        """Sets the result of a request, or returns the error of one of its rows. Raises ServingError."""
        large = sum([_bytes(array) for array in request.inputs.values()]) > _LARGE
        message = await asyncio.to_thread(self._message, request) if large else self._message(request)
        waited = (perf_counter_ns() - request.received_ns) / 1e9
        # The request's own timer fires first, and says what ran out.
        timeout = request.options.timeout_us / 1e6 - waited + 1 if request.options.timeout_us else self._call_timeout
        begin = perf_counter_ns()
        answer = await self._pool.infer(message, timeout)
        request.run_ns = (begin, perf_counter_ns())
        if len(answer) > _LARGE:
            tensors = await asyncio.to_thread(self._tensors, answer)
        else:
            tensors = self._tensors(answer)
        self._check(request, tensors)
        status = self.spec.row_status
        if status is not None and (error := row_error(self.spec, tensors[status.output].reshape(request.rows, -1))):
            return error
        request.result = {name: tensors[name] for name in request.outputs}
        return None

    def _wanted(self, request: Request) -> tuple[str, ...]:
        status = self.spec.row_status
        if status is None or status.output in request.outputs:
            return request.outputs
        return (*request.outputs, status.output)

    def _message(self, request: Request) -> bytes:
        """Returns the ModelInferRequest. A thread may call it."""
        spec = self.spec
        message = messages.ModelInferRequest(model_name=spec.name, model_version=spec.version, id=request.id)
        if request.options.priority:
            message.parameters["priority"].uint64_param = request.options.priority
        for name, value in request.options.parameters.items():
            large = type(value) is int and value >= 1 << 63
            setattr(message.parameters[name], "uint64_param" if large else _FIELDS[type(value)], value)
        for name, array in request.inputs.items():
            datatype = spec.inputs[name].datatype
            message.inputs.add(name=name, datatype=datatype.name, shape=array.shape)
            message.raw_input_contents.append(bytes(to_raw(array, datatype)))
        for name in self._wanted(request):
            message.outputs.add(name=name)
        serialized: bytes = message.SerializeToString()
        return serialized

    def _tensors(self, answer: bytes) -> dict[str, Array]:
        """Returns the tensors of a ModelInferResponse. A thread may call it."""
        message = messages.ModelInferResponse.FromString(answer)
        tensors = {}
        for output, raw in zip(message.outputs, message.raw_output_contents, strict=True):
            stated = self.spec.outputs.get(output.name)
            if stated is None or DATATYPES.get(output.datatype) is not stated.datatype:
                raise internal(f"Triton answered with an output '{output.name}' of type {output.datatype}")
            shape = tuple(output.shape)
            try:
                tensors[output.name] = from_raw(raw, 0, len(raw), stated.datatype, shape, output.name, self._limits)
            except ServingError as error:
                raise internal(f"an output of Triton can't be read: {error.message}") from None
        return tensors

    def _check(self, request: Request, tensors: dict[str, Array]) -> None:
        """Raises ServingError (INTERNAL) if an output is missing or doesn't have a row for each of the request."""
        for name in self._wanted(request):
            if name not in tensors:
                raise internal(f"Triton answered without output '{name}'")
            if self.spec.batched and tensors[name].shape[:1] != (request.rows,):
                raise internal(f"output '{name}' has shape {list(tensors[name].shape)}, expected {request.rows} rows")


def _bytes(array: Array) -> int:
    """Returns about how many bytes a tensor has in a message."""
    if array.dtype != object:
        return array.nbytes
    return array.size * _STRING if array.size > _STRING else sum([len(text) for text in array.reshape(-1)])
