"""ModelStreamInfer: the requests of a stream run at the same time, and are answered in their order."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from functools import partial
from time import perf_counter_ns

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from opgate.service.api.status import GRPC
from opgate.service.core.errors import Kind, ServingError, detached, internal
from opgate.service.core.request import Array, Request
from opgate.service.gateway import Gateway, Reading
from opgate.service.rpc.server import Call, Code, Message, RpcError
from opgate.service.telemetry.journal import Answer, grpc_level, ids_of
from opgate.service.wire import kserve_grpc as wire
from opgate.service.wire.kserve_grpc import Decoder

logger = logging.getLogger("opgate.grpc")

# Requests of a stream that run or whose answers wait. The next one is read when the client has taken an answer.
_MOST_AT_ONCE = 64
# Answers of a decoupled model that are encoded before the client has taken those before them.
_MOST_ENCODED = 64
# A client that sends this metadata gets the first error as the status of the call, which ends it.
_STATUS = "triton_grpc_error"


class _Asked:
    """One request of a stream, until it is answered."""

    def __init__(self, size: int) -> None:
        self.size = size  # of its message
        self.began_ns = perf_counter_ns()
        self.model = self.version = ""
        self.request: Request | None = None
        self.submitted = asyncio.Event()
        self.done = asyncio.Event()
        self.error: ServingError | None = None
        self.told = False  # whether the journal knows how it ended

    def refuse(self, error: ServingError) -> None:
        """Ends the request with an error."""
        self.error = detached(error)
        self.done.set()
        self.submitted.set()


class InferStream:
    """One call."""

    def __init__(self, gateway: Gateway, decoder: Decoder, call: Call) -> None:
        self._gateway = gateway
        self._decoder = decoder
        self._call = call
        self._ids = ids_of(call.first("x-request-id"), call.first("traceparent"))
        self._asked: asyncio.Queue[_Asked | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(_MOST_AT_ONCE)
        self._open: set[_Asked] = set()

    async def answers(self, messages: AsyncIterator[bytes]) -> AsyncGenerator[Message, None]:
        """Yields the answers. Raises RpcError if the client wants errors as statuses, and if it sends no request."""
        reading = asyncio.create_task(self._read(messages))
        try:
            while (asked := await self._asked.get()) is not None:
                await asked.submitted.wait()
                async with contextlib.aclosing(self._answers(asked)) as found:
                    async for message in found:
                        yield message
                        del message
                self._open.discard(asked)
                self._call.hold(-asked.size)
                self._room.release()
                del asked  # an idle stream keeps no data
            await reading  # it raises what ended it
        finally:
            reading.cancel()
            for left in self._open:  # the client has left
                if left.request is not None:
                    left.request.cancel()
                if not left.told:
                    self._tell(left, *self._call.why_gone)

    async def _read(self, messages: AsyncIterator[bytes]) -> None:
        try:
            async for data in messages:
                await self._room.acquire()
                if not self._call.hold(len(data)):
                    raise RpcError(Code.RESOURCE_EXHAUSTED, "the requests of the stream hold too much memory")
                asked = _Asked(len(data))
                self._open.add(asked)
                self._asked.put_nowait(asked)
                try:
                    await self._submit(asked, data)
                except ServingError as error:
                    asked.refuse(error)
                except Exception as error:
                    logger.exception("a request of ModelStreamInfer failed")
                    asked.refuse(internal(f"{type(error).__name__}: {error}"))
                del asked, data
        finally:
            self._asked.put_nowait(None)

    async def _submit(self, asked: _Asked, data: bytes) -> None:
        """Reads a request and hands it to its model. Raises ServingError."""
        gateway, decoder = self._gateway, self._decoder
        message = wire.Message(data)
        plan = decoder.known(message)
        if plan is not None:
            asked.model, asked.version = plan.model, plan.version
            served = gateway.find(plan.model, plan.version)
            if served.model.spec is not plan.spec:
                plan = None
        if plan is None:
            try:
                parsed = await gateway.work(
                    len(message.head), lambda: service_pb2.ModelInferRequest.FromString(message.head)
                )
            except DecodeError:
                raise wire.not_a_message() from None
            asked.model, asked.version = parsed.model_name, parsed.model_version
            served = gateway.find(asked.model, asked.version)
        spec = served.model.spec
        with served.model.held():
            with Reading(served):
                if plan is not None:
                    known = plan
                    cost = known.cost(message)
                    asked.request = await gateway.work(cost, lambda: decoder.repeat(message, known))
                else:
                    cost = decoder.cost(message, parsed, spec)
                    asked.request = await gateway.work(cost, lambda: decoder.decode(message, parsed, spec))
                    decoder.keep(message, asked.request)
                request = asked.request
                if (shared := request.shared) is not None and shared.unread:
                    await gateway.work(shared.cost, lambda: shared.read(request))
            gateway.submit(served.model, asked.request, lambda request: self._finish(asked, request))
        asked.submitted.set()

    def _finish(self, asked: _Asked, request: Request) -> None:
        """Notes that a request has a result or an error. A result counts as held until the client has taken it."""
        asked.error = request.error
        size = sum(array.nbytes for array in (request.result or {}).values())
        if size and self._call.hold(size):
            asked.size += size
        elif size and not self._call.ended:
            request.result = None
            asked.error = ServingError(
                Kind.OVERLOADED, "the answers that the client has not taken hold too much memory"
            )
        asked.done.set()

    async def _answers(self, asked: _Asked) -> AsyncGenerator[Message, None]:
        """Yields the messages that answer a request. Raises RpcError."""
        request = asked.request
        if request is not None and request.context.spec.streams:
            final = False
            try:
                async for outputs, final in request.responses():
                    yield await self._gateway.work(_size(outputs), partial(wire.encode_part, request, outputs, final))
                    del outputs
            except ServingError as failed:
                request.cancel()
                asked.refuse(failed)
            await asked.done.wait()
            if asked.error is None:
                if not final and request.options.empty_final_response:
                    yield wire.encode_end(request)
                self._tell(asked, Code.OK, "")
                return
        await asked.done.wait()
        error = asked.error
        if error is None and request is not None:
            try:
                cost, found = wire.encoding_cost(request), wire.encode_stream(request)
                count = _MOST_ENCODED
                while count == _MOST_ENCODED:
                    some = await self._gateway.work(cost, lambda: list(itertools.islice(found, _MOST_ENCODED)))
                    count = len(some)
                    for message in some:
                        yield message
                self._tell(asked, Code.OK, "")
                return
            except ServingError as failed:
                error = failed
            except Exception as failed:
                logger.exception("an answer of ModelStreamInfer could not be written")
                error = internal(f"{type(failed).__name__}: {failed}")
        assert error is not None
        code, text = GRPC[error.kind], error.message
        del error
        self._tell(asked, code, text)
        if self._call.first(_STATUS) == "true":
            raise RpcError(code, text)
        yield wire.stream_error(text, request.id if request is not None else "")

    def _tell(self, asked: _Asked, code: Code, error: str) -> None:
        asked.told = True
        ns = perf_counter_ns() - asked.began_ns
        answer = Answer(
            "grpc", self._call.method, code.name, ns, asked.model[:256], asked.version[:32], self._ids, self._call.peer
        )
        self._gateway.journal.answered(answer, asked.request, error, grpc_level(code.name))


def _size(outputs: Mapping[str, Array]) -> int:
    """Returns what writing a response costs, as `wire.encoding_cost` does."""
    return sum(array.nbytes for array in outputs.values() if array.dtype.kind == "O")
