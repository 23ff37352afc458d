"""ModelStreamInfer: the requests of a stream run at the same time. Those of decoupled models are answered as their
responses come, and all others in their order, as in Triton."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from functools import partial

from opgate.service.api.grpc_exchange import GrpcExchange
from opgate.service.api.status import GRPC
from opgate.service.core.errors import Kind, ServingError, detached, internal
from opgate.service.core.request import Array, Request
from opgate.service.gateway import Gateway, Served
from opgate.service.rpc.server import Call, Code, Message, Received, RpcError
from opgate.service.telemetry.journal import Ids, ids_of
from opgate.service.wire import kserve_grpc as wire
from opgate.service.wire.kserve_grpc import Decoder

logger = logging.getLogger("opgate.grpc")

# Requests of a stream that run or whose answers wait. The next one is read when the client has taken an answer.
_MOST_AT_ONCE = 64
# Answers of a decoupled model that are encoded at once.
_MOST_ENCODED = 64
# Messages of a stream that wait for the client to take those before them.
_MOST_READY = 8
# A client that sends this metadata gets the first error as the status of the call, which ends it.
_STATUS = "triton_grpc_error"


class _Asked(GrpcExchange):
    """One request of a stream, until it is answered."""

    __slots__ = ("changed", "done", "error", "size", "told", "turn")

    def __init__(self, gateway: Gateway, call: Call, ids: Ids, size: int, changed: asyncio.Event) -> None:
        super().__init__(gateway, call, ids)
        self.changed = changed  # is set when it is done
        self.size = size  # of its message, and of its result
        self.turn = asyncio.Event()  # set when the model has got it: then the next request is read
        self.done = asyncio.Event()
        self.error: ServingError | None = None
        self.told = False  # whether the journal knows how it ended

    def hand_over(self, served: Served, request: Request) -> None:
        """Gives the model the request, and lets the next one be read."""
        super().hand_over(served, request)
        self.turn.set()

    def refuse(self, error: ServingError) -> None:
        """Ends the request with an error."""
        self.error = detached(error)
        self.done.set()
        self.changed.set()
        self.turn.set()

    def finish(self, request: Request) -> None:
        """Notes that the request has a result or an error. A result counts as held until the client has taken it."""
        self.error = request.error
        size = request.result_bytes
        if size and self.call.hold(size):
            self.size += size
        elif size and not self.ended:
            request.result = None
            self.error = ServingError(Kind.OVERLOADED, "the answers that the client has not taken hold too much memory")
        self.done.set()
        self.changed.set()

    def tell_status(self, code: Code, error: str) -> None:
        """Tells the journal with which status the request ended."""
        self.told = True
        super().tell_status(code, error)


class InferStream:
    """One call."""

    def __init__(self, gateway: Gateway, decoder: Decoder, call: Call) -> None:
        self._gateway = gateway
        self._decoder = decoder
        self._call = call
        self._ids = ids_of(call.first("x-request-id"), call.first("traceparent"))
        self._room = asyncio.Semaphore(_MOST_AT_ONCE)
        self._open: set[_Asked] = set()
        self._in_order: deque[_Asked] = deque()  # that are answered one after the other
        self._tasks: set[asyncio.Task[None]] = set()  # which answer the others
        self._messages: deque[Message] = deque()  # of these tasks
        self._places = asyncio.Semaphore(_MOST_READY)  # for them
        self._failed: Exception | None = None  # what one of these tasks ends the call with
        self._changed = asyncio.Event()

    async def answers(self, messages: AsyncIterator[Received]) -> AsyncGenerator[Message, None]:
        """Yields the answers. Raises RpcError if the client wants errors as statuses, and if it sends no request."""
        reading = asyncio.create_task(self._read(messages))
        reading.add_done_callback(lambda _: self._changed.set())
        try:
            while True:
                if self._messages:
                    yield self._messages.popleft()
                    self._places.release()
                elif self._failed is not None:
                    raise self._failed
                elif self._in_order and self._in_order[0].done.is_set():
                    asked = self._in_order.popleft()
                    async with contextlib.aclosing(self._answers(asked)) as found:
                        async for message in found:
                            yield message
                            del message
                    self._end(asked)
                    del asked  # an idle stream keeps no data
                elif reading.done() and not self._open:
                    break
                else:
                    self._changed.clear()
                    await self._changed.wait()
            await reading  # it raises what ended it
        finally:
            reading.cancel()
            for task in self._tasks:
                task.cancel()
            for left in self._open:  # the client has left
                if left.request is not None:
                    left.request.cancel()
                if not left.told:
                    left.tell_status(*self._call.why_gone)
            self._open.clear()

    async def _read(self, messages: AsyncIterator[Received]) -> None:
        async for data in messages:
            await self._room.acquire()
            if not self._call.hold(len(data)):
                raise RpcError(Code.RESOURCE_EXHAUSTED, "the requests of the stream hold too much memory")
            asked = _Asked(self._gateway, self._call, self._ids, len(data), self._changed)
            self._open.add(asked)
            asked.take(self._decoder, data)
            del data
            await asked.turn.wait()
            if asked.request is not None and asked.request.context.spec.decoupled:
                task = asyncio.create_task(self._answer_as_they_come(asked))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                self._in_order.append(asked)
                self._changed.set()
            del asked

    async def _answer_as_they_come(self, asked: _Asked) -> None:
        try:
            async with contextlib.aclosing(self._answers(asked)) as found:
                async for message in found:
                    await self._places.acquire()
                    self._messages.append(message)
                    del message
                    self._changed.set()
        except Exception as error:
            self._failed = error
        finally:
            self._end(asked)
            self._changed.set()

    def _end(self, asked: _Asked) -> None:
        """Lets another request in for one that is answered."""
        if asked in self._open:
            self._open.discard(asked)
            self._call.hold(-asked.size)
            self._room.release()

    async def _answers(self, asked: _Asked) -> AsyncGenerator[Message, None]:
        """Yields the messages that answer a request. Raises RpcError."""
        request = asked.request
        if request is not None and request.context.spec.streams:
            async with contextlib.aclosing(self._parts(asked, request)) as parts:
                async for message in parts:
                    yield message
                    del message
            if asked.error is None:
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
                asked.tell_status(Code.OK, "")
                return
            except ServingError as failed:
                error = failed
            except Exception as failed:
                logger.exception("an answer of ModelStreamInfer could not be written")
                error = internal(f"{type(failed).__name__}: {failed}")
        assert error is not None
        code, text = GRPC[error.kind], error.message
        del error
        asked.tell_status(code, text)
        if self._call.first(_STATUS) == "true":
            raise RpcError(code, text)
        yield wire.stream_error(text, asked.id, None if request is None else True)

    async def _parts(self, asked: _Asked, request: Request) -> AsyncGenerator[Message, None]:
        """Yields the responses to a request of a model that sends several, until it has ended. The error that ends it
        is that of `asked`. Others have messages of their own."""
        final, error = False, None
        try:
            async for response in request.responses():
                final, error = response.final, response.error or error
                if error is not None and self._call.first(_STATUS) == "true":
                    raise error
                cost = _size(response.outputs)
                yield await self._gateway.work(cost, partial(wire.encode_part, request, response))
                del response
        except ServingError as failed:
            request.cancel()
            asked.refuse(failed)
        await asked.done.wait()
        if asked.error is None:
            if not final and request.options.empty_final_response:
                yield wire.encode_end(request)
            if error is None:
                asked.tell_status(Code.OK, "")
            else:
                asked.tell_status(GRPC[error.kind], error.message)
                detached(error)


def _size(outputs: Mapping[str, Array]) -> int:
    """Returns what writing a response costs, as `wire.encoding_cost` does."""
    return sum(array.nbytes for array in outputs.values() if array.dtype.kind == "O")
