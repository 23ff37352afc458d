"""The messages of inference over gRPC: how a call's request becomes one of the gateway, and how a unary call ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from opgate.service.api.status import GRPC
from opgate.service.core.errors import ServingError, detached
from opgate.service.core.request import Request
from opgate.service.core.tensors import SMALL, Parts
from opgate.service.core.triton_messages import service_pb2
from opgate.service.exchange import Exchange
from opgate.service.gateway import Gateway, Served
from opgate.service.rpc.server import Call, Code, Message, Metadata, Received
from opgate.service.telemetry.journal import NO_IDS, Ids, grpc_level, ids_of
from opgate.service.wire import kserve_grpc as wire
from opgate.service.wire.kserve_grpc import Decoder
from opgate.service.wire.kserve_json import size_of
from opgate.service.wire.kserve_rules import timeout_of
from opgate.service.wire.responses import refuse_decoupled

# An envelope of so many bytes is parsed on a thread.
_LONG_ENVELOPE = 1 << 17
_OK = Code.OK.name


class GrpcExchange(Exchange[Parts]):
    """A message of a client and its answer."""

    __slots__ = ("_decoder", "_message", "call", "id")

    protocol = "grpc"

    def __init__(self, gateway: Gateway, call: Call, ids: Ids) -> None:
        super().__init__(gateway, ids=ids)
        self.call = call
        self.id = ""  # what the client calls the request, when its envelope has been read
        self._decoder: Decoder | None = None  # until it has kept how the request was read
        self._message: wire.Message | None = None  # until it has been decoded

    @property
    def ended(self) -> bool:
        """Whether the call has ended."""
        return self.call.ended

    @property
    def route(self) -> str:
        """The method."""
        return self.call.method

    @property
    def peer(self) -> str:
        """The address of the client."""
        return self.call.peer

    @property
    def headers(self) -> Metadata:
        """The metadata of the call."""
        return self.call.metadata

    def tell_status(self, code: Code, error: str) -> None:
        """Tells the journal with which status the request ended."""
        self.tell(code.name, grpc_level(code.name), error)

    def take(self, decoder: Decoder, data: Received) -> None:
        """Takes a ModelInferRequest, and does what it asks."""
        try:
            message = self._message = wire.Message(data)
            plan = decoder.known(message)
            if plan is not None:
                self.model, self.version = plan.model, plan.version
                served = self.find(lambda: self.take(decoder, data))
                if served is None:
                    return
                if served.model.spec is plan.spec:
                    self.start(served, plan.cost(message), lambda: decoder.repeat(message, plan))
                    return
            self._decoder = decoder
            if len(message.envelope) < _LONG_ENVELOPE:
                self._parsed(lambda: service_pb2.ModelInferRequest.FromString(message.envelope))
            else:
                self.on_thread(
                    lambda: service_pb2.ModelInferRequest.FromString(message.envelope),
                    lambda parsed: self._parsed(parsed.result),
                )
        except Exception as error:
            self.fail(error)

    def _parsed(self, parse: Callable[[], Any]) -> None:
        if self.ended:
            return  # the client left while its message was read
        try:
            asked = parse()
            self.model, self.version, self.id = asked.model_name, asked.model_version, asked.id
            served, message, decoder = self.find(lambda: self._parsed(lambda: asked)), self._message, self._decoder
            if served is not None and message is not None and decoder is not None:
                spec = served.model.spec
                self.start(served, decoder.cost(message, asked, spec), lambda: decoder.decode(message, asked, spec))
        except DecodeError:
            self.refuse(wire.not_a_message())
        except Exception as error:
            self.fail(error)
        finally:
            del parse  # closure, exception, traceback and this frame would form a reference cycle

    def timeout_us(self) -> int:
        """Returns the timeout among the parameters of the request."""
        message = self._message
        if message is None or len(message.envelope) > _LONG_ENVELOPE:
            return 0
        return timeout_of(wire.parameter_values(service_pb2.ModelInferRequest.FromString(message.envelope).parameters))

    def decoded(self, served: Served, request: Request) -> None:
        """Keeps how the request was read, for others like it, and lets its bytes go."""
        if self._decoder is not None and self._message is not None:
            self._decoder.keep(self._message, request)
        self._decoder = self._message = None
        super().decoded(served, request)


class UnaryExchange(GrpcExchange):
    """A unary call."""

    __slots__ = ()

    def __init__(self, gateway: Gateway, call: Call) -> None:
        ids = ids_of(call.first("x-request-id"), call.first("traceparent")) if call.has_metadata else NO_IDS
        super().__init__(gateway, call, ids)
        call.on_gone = self._gone

    def answer(self, message: Message) -> None:
        """Answers the call with an encoded message."""
        if not self.ended:
            self.call.answer(message, self._trailers())
            self.tell_status(Code.OK, "")

    def end(self, code: Code, text: str) -> None:
        """Ends the call with an error."""
        if not self.ended:
            self.call.fail(code, text, self._trailers())
            self.tell_status(code, text)

    def refuse(self, error: ServingError) -> None:
        """Ends the call with the gateway's error."""
        detached(error)
        self.end(GRPC[error.kind], error.message)

    def _gone(self, call: Call) -> None:
        self.tell_status(*call.why_gone)
        if self.request is not None:
            self.request.cancel()

    def _trailers(self) -> Metadata | None:
        return None if self.ids is NO_IDS else self.ids.pairs()


class Infer(UnaryExchange):
    """One ModelInfer call."""

    __slots__ = ()

    def find(self, again: Callable[[], None]) -> Served | None:
        """Returns the model as `Exchange.find` does. Refuses one that may send several responses."""
        served = super().find(again)
        if served is not None and served.model.spec.decoupled:
            try:
                refuse_decoupled(served.model.spec, "ModelInfer")
            except ServingError as error:
                self.refuse(error)
                return None
        return served

    encoding_cost = staticmethod(wire.encoding_cost)

    def encode(self, request: Request) -> tuple[Parts, int]:
        """Returns the parts of the answer and their bytes."""
        parts = wire.encode(request)
        return parts, size_of(parts)

    def hold(self, size: int) -> bool:
        """Counts the bytes of an answer that is not small."""
        return size <= SMALL or self.call.hold(size)

    def send(self, answer: Parts, size: int) -> None:
        """Answers the call."""
        self.call.answer(answer, self._trailers())
        journal = self.gateway.journal
        if journal.keeps(self.model, self.began_ns):
            self.tell_status(Code.OK, "")
        else:
            journal.counts["grpc", self.call.method, _OK] += 1
