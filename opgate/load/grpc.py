"""The side of `opgate load` that speaks gRPC: one channel of grpc.aio that sends the bytes of one message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from opgate.load.run import Answered
from opgate.load.sequences import Sequences, Turn
from opgate.load.target_model import ASK_SECONDS, FIRST_SECONDS, Input, LoadError, RefusedError, one_line, read_model
from opgate.service.core.spec import ModelSpec

_INFER = "/inference.GRPCInferenceService/ModelInfer"
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
#: The codes that say that the request is wrong.
_REFUSED = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
)


class GrpcClient:
    """Sends calls to one server, all of them on one connection."""

    wire = "gRPC"

    def __init__(self, address: str) -> None:
        """`address` is HOST:PORT. Must be called while the event loop runs."""
        self.name = address
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._call: Any = self._channel.unary_unary(_INFER)  # takes and returns bytes
        self._tasks: set[asyncio.Task[None]] = set()
        self._message = service_pb2.ModelInferRequest()
        self.serves_sequences = False
        self._request = b""
        self._sequences: Sequences | None = None
        self._on_answer: Answered = lambda due, error: None

    async def model(self, name: str, version: str) -> ModelSpec:
        """Asks for the metadata and the config of a model. Raises LoadError."""
        stub: Any = GRPCInferenceServiceStub(self._channel)
        request = {"name": name, "version": version}
        try:
            metadata = await stub.ModelMetadata(service_pb2.ModelMetadataRequest(**request), timeout=ASK_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                reason = one_line(error.details())
                raise LoadError(f"no answer from {self.name} ({reason}): is a server running there?") from None
            raise LoadError(f"{self.name} has no model '{name}' to load: {_error(error)}") from None
        try:
            config = (await stub.ModelConfig(service_pb2.ModelConfigRequest(**request), timeout=ASK_SECONDS)).config
        except grpc.aio.AioRpcError:
            config = None
        self._message = service_pb2.ModelInferRequest(model_name=name, model_version=version)
        self.serves_sequences = config is not None and config.HasField("sequence_batching")
        return read_model(metadata, config)

    def prepare(self, inputs: Sequence[Input], sequence_length: int = 0) -> None:
        """Makes the bytes of the message. A request of a sequence has its parameters behind them."""
        message = self._message
        for tensor in inputs:
            message.inputs.add(name=tensor.name, datatype=tensor.datatype.name, shape=tensor.array.shape)
            message.raw_input_contents.append(tensor.content)
        self._request = message.SerializeToString()
        self._sequences = Sequences(sequence_length) if sequence_length else None

    async def first(self) -> tuple[str, set[str]]:
        """Sends one call. Returns its error, empty if there is none, and the names of the outputs.

        Raises RefusedError if the server says that the request is wrong.
        """
        request = self._request if self._sequences is None else self._request + _parameters(Sequences(1).take())
        try:
            answer = service_pb2.ModelInferResponse.FromString(await self._call(request, timeout=FIRST_SECONDS))
        except grpc.aio.AioRpcError as error:
            if error.code() in _REFUSED:
                raise RefusedError(_error(error)) from None
            return _error(error), set()
        return "", {output.name for output in answer.outputs}

    def start(self, answered: Answered) -> None:
        """Says what is called with each answer: when its request was due, and its error or None."""
        self._on_answer = answered
        if self._sequences is not None:
            self._sequences = Sequences(self._sequences.length)

    def send(self, due: float) -> None:
        """Sends the message."""
        task = asyncio.get_running_loop().create_task(self._send(due))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end_sequences(self) -> int:
        """Makes the next request of each sequence that waits its last one. Returns how many are to be sent for it."""
        return 0 if self._sequences is None else self._sequences.end()

    def drop(self) -> None:
        """Gives up the calls under way. Nothing is called for them."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Gives up the calls under way and closes the channel."""
        self.drop()
        await self._channel.close()

    async def _send(self, due: float) -> None:
        error = None
        turn = None if self._sequences is None else self._sequences.take()
        try:
            await self._call(self._request if turn is None else self._request + _parameters(turn))
        except grpc.aio.AioRpcError as failure:
            error = _error(failure)
        if turn is not None and self._sequences is not None:
            self._sequences.answered(turn, error)
        self._on_answer(due, error)


def _parameters(turn: Turn) -> bytes:
    """Returns the parameters of a request of a sequence: protobuf joins messages whose bytes follow each other."""
    message = service_pb2.ModelInferRequest()
    message.parameters["sequence_id"].int64_param = turn.id
    message.parameters["sequence_start"].bool_param = turn.start
    message.parameters["sequence_end"].bool_param = turn.end
    return bytes(message.SerializeToString())


def _error(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {one_line(error.details())}"
