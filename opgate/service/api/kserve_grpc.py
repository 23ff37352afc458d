"""The KServe v2 service over gRPC, with health checks and reflection. It shares the event loop of the HTTP server."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from google.protobuf.message import DecodeError

from opgate.service.api import operations
from opgate.service.api.grpc_exchange import Infer, UnaryExchange
from opgate.service.api.infer_stream import InferStream
from opgate.service.api.shared_memory import SharedMemoryCalls
from opgate.service.api.statistics import read_statistics
from opgate.service.core.errors import Kind, ServingError, invalid
from opgate.service.core.spec import ModelSpec, TensorSpec
from opgate.service.core.triton_messages import service_pb2
from opgate.service.gateway import Gateway, extensions, package_version
from opgate.service.listening import listen
from opgate.service.rpc import health, reflection
from opgate.service.rpc.server import (
    Call,
    Code,
    Message,
    Method,
    Options,
    Received,
    RpcError,
    Server,
    Stream,
    Unary,
    tls,
)
from opgate.service.settings import Settings
from opgate.service.telemetry.journal import Answer
from opgate.service.tokens import group_of_rpc
from opgate.service.wire.kserve_grpc import Decoder, parameter_values
from opgate.service.wire.kserve_rules import flag

SERVICE = "inference.GRPCInferenceService"

# Bytes of a message of another RPC.
_MOST_BYTES = 1 << 16
# RPCs that change the server. Not every client may call them.
_OPERATORS = frozenset(("RepositoryModelUnload", "TraceSetting", "LogSettings"))


class InferenceService:
    """The RPCs that the gateway serves. The others answer UNIMPLEMENTED, with their name."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._waiting: set[asyncio.Task[Any]] = set()  # calls whose answers take a while

    def methods(self) -> dict[str, Method]:
        """Returns the methods for a server."""
        gateway, decoder = self._gateway, Decoder(self._gateway.limits, self._gateway.regions)

        def infer(call: Call, message: Received) -> None:
            Infer(gateway, call).take(decoder, message)

        def stream(call: Call, messages: AsyncIterator[Received]) -> AsyncGenerator[Message, None]:
            return InferStream(gateway, decoder, call).answers(messages)

        shared = None if gateway.regions is None else SharedMemoryCalls(gateway.all_processes, gateway.regions)
        # A client that may load models may send their files.
        largest_load = gateway.settings.max_body_bytes if gateway.control.is_explicit else _MOST_BYTES
        special: dict[str, Method] = {
            "ModelInfer": Unary(infer),
            "ModelStreamInfer": Stream(stream),
            "RepositoryModelLoad": Unary(self._load, largest_load),
        }
        found: dict[str, Method] = {}
        for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
            name = method.name
            if name not in special:
                request = getattr(service_pb2, method.input_type.name)
                function = getattr(self, f"_{name}", None) or getattr(shared, name, None)
                special[name] = Unary(self._unary(request, function, name), _MOST_BYTES)
            found[f"/{SERVICE}/{name}"] = with_token(gateway, group_of_rpc(name), special[name])
        return found

    def _unary(self, kind: Any, function: Callable[..., Any] | None, name: str) -> Callable[[Call, Received], None]:
        def handle(call: Call, message: Received) -> None:
            exchange = UnaryExchange(self._gateway, call)
            if function is None:
                exchange.end(Code.UNIMPLEMENTED, f"{name} is not supported by this server")
                return
            try:
                asked = kind.FromString(message)
                if name.startswith("Model"):
                    exchange.model, exchange.version = asked.name, asked.version
                answer = function(asked, call) if name in _OPERATORS else function(asked)
                if asyncio.iscoroutine(answer):
                    self._wait(exchange, answer, name)
                else:
                    exchange.answer(answer.SerializeToString())
            except DecodeError:
                exchange.end(Code.INVALID_ARGUMENT, f"the message is not a {kind.DESCRIPTOR.name}")
            except Exception as error:
                exchange.fail(error, name)

        return handle

    def _wait(self, exchange: UnaryExchange, answer: Coroutine[Any, Any, Any], name: str) -> None:
        """Answers a call when its answer is there."""
        task = asyncio.get_running_loop().create_task(answer)
        self._waiting.add(task)

        def done(task: asyncio.Task[Any]) -> None:
            self._waiting.discard(task)
            try:
                exchange.answer(task.result().SerializeToString())
            except Exception as error:
                exchange.fail(error, name)

        task.add_done_callback(done)

    def _ServerLive(self, asked: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    def _ServerReady(self, asked: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=self._gateway.is_ready())

    async def _ModelReady(self, asked: Any) -> Any:
        try:
            await self._gateway.check_ready(asked.name, asked.version)
        except ServingError as error:
            if error.kind not in (Kind.NOT_READY, Kind.NOT_FOUND):
                raise
            return service_pb2.ModelReadyResponse(ready=False)
        return service_pb2.ModelReadyResponse(ready=True)

    def _ServerMetadata(self, asked: Any) -> Any:
        return service_pb2.ServerMetadataResponse(
            name="opgate", version=package_version(), extensions=extensions(self._gateway.settings)
        )

    async def _ModelMetadata(self, asked: Any) -> Any:
        spec = (await self._gateway.known(asked.name, asked.version)).spec
        return service_pb2.ModelMetadataResponse(
            name=spec.name,
            versions=self._gateway.catalog.listed(spec.name, asked.version),
            platform=spec.platform,
            inputs=[_tensor(spec, tensor) for tensor in spec.inputs.values()],
            outputs=[_tensor(spec, tensor) for tensor in spec.outputs.values()],
        )

    async def _ModelConfig(self, asked: Any) -> Any:
        model = await self._gateway.known(asked.name, asked.version)
        return service_pb2.ModelConfigResponse(config=model.config)

    async def _ModelStatistics(self, asked: Any) -> Any:
        return await read_statistics(self._gateway, asked.name, asked.version)

    async def _RepositoryIndex(self, asked: Any) -> Any:
        response = service_pb2.RepositoryIndexResponse()
        for name, version, state, reason in await self._gateway.control.index(asked.ready):
            response.models.add(name=name, version=version, state=state, reason=reason)
        return response

    def _load(self, call: Call, message: Received) -> None:
        """Handles RepositoryModelLoad. Its message may be large, so it is read on a thread if the client may load."""
        exchange, gateway = UnaryExchange(self._gateway, call), self._gateway
        try:
            gateway.check_operator(call.peer, gateway.grpc_tokens, "model-repository")
            gateway.control.check_explicit()
        except ServingError as error:
            exchange.refuse(error)
            return
        self._wait(exchange, self._loaded(message), "RepositoryModelLoad")

    async def _loaded(self, message: Received) -> Any:
        def read() -> tuple[str, Mapping[str, Any]]:
            try:
                asked = service_pb2.RepositoryModelLoadRequest.FromString(message)
            except DecodeError:
                raise invalid("the message is not a RepositoryModelLoadRequest") from None
            return asked.model_name, parameter_values(asked.parameters)

        await self._gateway.all_processes.load(*await asyncio.to_thread(read))
        return service_pb2.RepositoryModelLoadResponse()

    async def _RepositoryModelUnload(self, asked: Any, call: Call) -> Any:
        self._gateway.check_operator(call.peer, self._gateway.grpc_tokens, "model-repository")
        parameters = parameter_values(asked.parameters)
        await self._gateway.all_processes.unload(asked.model_name, flag(parameters, "unload_dependents"))
        return service_pb2.RepositoryModelUnloadResponse()

    async def _TraceSetting(self, asked: Any, call: Call) -> Any:
        return await operations.trace_setting(self._gateway, asked, call.peer)

    async def _LogSettings(self, asked: Any, call: Call) -> Any:
        return await operations.log_settings(self._gateway, asked, call.peer)


def _tensor(spec: ModelSpec, tensor: TensorSpec) -> Any:
    return service_pb2.ModelMetadataResponse.TensorMetadata(
        name=tensor.name, datatype=tensor.datatype.name, shape=spec.wire_shape(tensor)
    )


def with_token(gateway: Gateway, group: str, method: Method) -> Method:
    """Returns a method that asks for the token of a group, or the method itself if the group has none."""
    token = gateway.grpc_tokens.get(group)
    if token is None:
        return method
    refusal = token.refusal("protocol")
    if isinstance(method, Stream):

        def stream(call: Call, messages: AsyncIterator[Received]) -> AsyncGenerator[Message, None]:
            if token.is_in(call.first):
                return method.handler(call, messages)
            UnaryExchange(gateway, call).tell_status(Code.UNAVAILABLE, refusal)
            raise RpcError(Code.UNAVAILABLE, refusal)

        return replace(method, handler=stream)

    def unary(call: Call, message: Received) -> None:
        if token.is_in(call.first):
            method.handler(call, message)
        else:
            UnaryExchange(gateway, call).end(Code.UNAVAILABLE, refusal)

    return replace(method, handler=unary)


class GrpcServer:
    """The gRPC server of one gateway."""

    def __init__(self, gateway: Gateway, listener: socket.socket | None = None) -> None:
        """`listener` is a socket with a port, if there is one already. Raises OSError if the port is taken."""
        settings = gateway.settings
        self._gateway = gateway
        self._health = health.Health(("", SERVICE), gateway.is_ready)
        services = (SERVICE, health.SERVICE)

        def restricted(group: str, methods: Mapping[str, Method]) -> dict[str, Method]:
            return {path: with_token(gateway, group, method) for path, method in methods.items()}

        methods = {
            **InferenceService(gateway).methods(),
            **restricted("health", self._health.methods()),
            **restricted("metadata", reflection.methods(services)),
        }
        self._server = Server(
            methods,
            Options(
                max_message_bytes=settings.max_body_bytes,
                max_unpacked_bytes=settings.max_decompressed_bytes,
                budget=gateway.budget,
                max_header_bytes=settings.max_header_bytes,
                max_streams=settings.max_grpc_calls,
                read_timeout=settings.body_timeout,
                write_timeout=settings.write_timeout,
                tls=_tls(settings),
            ),
            refused=self._refused,
        )
        host, option = settings.http_host, "--http-host"
        if settings.grpc_host:
            host, option = settings.grpc_host, "--grpc-host"
        self._listener = listener or listen("gRPC", host, settings.grpc_port, option)
        self.port = self._listener.getsockname()[1]
        self.lost = 0  # calls that the stop cut off

    @property
    def connections(self) -> Collection[object]:
        """The open connections."""
        return self._server.connections

    def _refused(self, code: Code, text: str, path: str, peer: str) -> None:
        """Counts and logs a call that was answered before a handler saw it, or a connection that its client broke."""
        route = path if path in self._server.numbers else "none"
        self._gateway.journal.answered(Answer("grpc", route, code.name, 0, client=peer), error=text)

    async def start(self) -> None:
        """Starts to listen."""
        self._gateway.catalog.on_change(self._health.look)
        await self._server.start(self._listener)

    async def listen_too(self, listener: socket.socket) -> asyncio.AbstractServer:
        """Takes the connections of one more socket too."""
        return await self._server.start(listener)

    async def stop(self, seconds: float) -> None:
        """Says that nothing serves any more, refuses new calls, and gives the calls under way `seconds` to end."""
        self._health.close()
        self.lost = await self._server.stop(seconds)


def _tls(settings: Settings) -> ssl.SSLContext | None:
    certificate, key = settings.grpc_tls_certificate, settings.grpc_tls_key
    if certificate is None and key is None and settings.grpc_tls_client_ca is None:
        return None
    if certificate is None or key is None:
        raise OSError("gRPC with TLS needs both OPGATE_GRPC_TLS_CERTIFICATE and OPGATE_GRPC_TLS_KEY")
    try:
        return tls(certificate, key, settings.grpc_tls_client_ca)
    except OSError as error:
        files = ", ".join(str(path) for path in (certificate, key, settings.grpc_tls_client_ca) if path is not None)
        raise OSError(f"the TLS files of gRPC can't be used ({files}): {error}") from None
