"""The KServe v2 service over gRPC, with health checks and reflection. It shares the event loop of the HTTP server."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from time import perf_counter_ns
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from tritonclient.grpc import service_pb2, service_pb2_grpc

from service.api.status import GRPC
from service.errors import Kind, ServingError
from service.execution.request import Request
from service.execution.spec import ModelSpec, TensorSpec
from service.gateway import EXTENSIONS, Gateway, package_version
from service.telemetry.journal import NO_IDS, Answer, grpc_level, ids_of
from service.telemetry.statistics_message import model_statistics
from service.wire.kserve_grpc import decode, decoding_cost, encode, encoding_cost

logger = logging.getLogger("opgate.grpc")
SERVICE = "inference.GRPCInferenceService"
# Where a handler leaves its inference request for the journal. Each call runs in a context of its own.
_DECODED: ContextVar[list[Request]] = ContextVar("decoded")


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: ServingError) -> None:
    await context.abort(GRPC[error.kind], error.message)


class InferenceService(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """The RPCs that the gateway serves. `_refuse_others` makes the others answer UNIMPLEMENTED, with their name."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def ServerLive(self, request: Any, context: Any) -> Any:
        """Answers that the process is alive."""
        return service_pb2.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:
        """Answers whether clients should send requests to this gateway."""
        return service_pb2.ServerReadyResponse(ready=self._gateway.is_ready())

    async def ModelReady(self, request: Any, context: Any) -> Any:
        """Answers whether a model can serve. Aborts with NOT_FOUND if the repository has no such model."""
        try:
            self._gateway.check_ready(request.name, request.version)
        except ServingError as error:
            if error.kind is not Kind.NOT_READY:
                await _abort(context, error)
            return service_pb2.ModelReadyResponse(ready=False)
        return service_pb2.ModelReadyResponse(ready=True)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        """Answers with the name and version of the server and the protocol extensions."""
        return service_pb2.ServerMetadataResponse(name="opgate", version=package_version(), extensions=EXTENSIONS)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        """Answers with the names, types and shapes of a model's inputs and outputs."""
        spec = await self._spec(request, context)
        return service_pb2.ModelMetadataResponse(
            name=spec.name,
            versions=[str(number) for number in self._gateway.catalog.versions(spec.name)],
            platform=spec.platform,
            inputs=[_tensor(spec, tensor) for tensor in spec.inputs.values()],
            outputs=[_tensor(spec, tensor) for tensor in spec.outputs.values()],
        )

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        """Answers with the completed config of a model."""
        try:
            model = self._gateway.find(request.name, request.version).model
        except ServingError as error:
            await _abort(context, error)
        return service_pb2.ModelConfigResponse(config=model.config)

    async def ModelStatistics(self, request: Any, context: Any) -> Any:
        """Answers with the counts and durations of one model, or of all models."""
        catalog = self._gateway.catalog
        try:
            if not request.name:
                models = list(catalog.models())
            elif request.version:
                models = [self._gateway.find(request.name, request.version).model]
            else:
                self._gateway.find(request.name)
                models = [self._gateway.find(request.name, str(n)).model for n in catalog.versions(request.name)]
        except ServingError as error:
            await _abort(context, error)
        return service_pb2.ModelStatisticsResponse(model_stats=[model_statistics(model) for model in models])

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        """Answers with all models of the repository, their state and its reason."""
        response = service_pb2.RepositoryIndexResponse()
        for name, version, state, reason in self._gateway.catalog.index():
            if state == "READY" or not request.ready:
                response.models.add(name=name, version=version, state=state, reason=reason)
        return response

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        """Runs a model and answers with its outputs."""
        gateway = self._gateway
        try:
            with gateway.reading(request.model_name, request.model_version) as served:
                spec = served.model.spec
                decoded = await gateway.work(decoding_cost(request), lambda: decode(request, spec, gateway.limits))
            _DECODED.get([]).append(decoded)
            await gateway.infer(served.model, decoded)
            return await gateway.work(encoding_cost(decoded), lambda: encode(decoded, spec))
        except ServingError as error:
            await _abort(context, error)
        except Exception as error:
            logger.exception("a ModelInfer call failed")
            await context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")

    async def _spec(self, request: Any, context: Any) -> ModelSpec:
        try:
            return self._gateway.find(request.name, request.version).model.spec
        except ServingError as error:
            await _abort(context, error)
            raise


def _tensor(spec: ModelSpec, tensor: TensorSpec) -> Any:
    return service_pb2.ModelMetadataResponse.TensorMetadata(
        name=tensor.name, datatype=tensor.datatype.name, shape=spec.wire_shape(tensor)
    )


def _refuse_others(service: InferenceService) -> None:
    """Makes every RPC that isn't served answer that it is not supported."""
    methods = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    for name in (method.name for method in methods):
        if getattr(type(service), name) is getattr(service_pb2_grpc.GRPCInferenceServiceServicer, name):
            setattr(service, name, _refusal(name))


def _refusal(name: str) -> Any:
    text = f"{name} is not supported by this server"

    async def refuse(request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, text)

    async def refuse_stream(request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, text)
        yield  # makes this function an async generator, as a streaming RPC must be

    return refuse_stream if name == "ModelStreamInfer" else refuse


class JournalInterceptor(grpc.aio.ServerInterceptor):
    """Counts and logs the answers to unary calls, and sends the client's names of a request back."""

    def __init__(self, gateway: Gateway) -> None:
        self._journal = gateway.journal

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Wraps the handler of a call."""
        handler = await continuation(details)
        if handler is None or handler.unary_unary is None:
            return handler
        method = details.method

        async def answer(request: Any, context: Any) -> Any:
            began = perf_counter_ns()
            metadata = dict(context.invocation_metadata() or ())
            ids = ids_of(*(_text(metadata.get(name, "")) for name in ("x-request-id", "traceparent")))
            if ids is not NO_IDS:
                context.set_trailing_metadata(ids.pairs())
            code = grpc.StatusCode.CANCELLED
            decoded: list[Request] = []
            _DECODED.set(decoded)
            try:
                response = await handler.unary_unary(request, context)
                code = grpc.StatusCode.OK
                return response
            except grpc.aio.AbortError:
                code = context.code()
                raise
            except Exception:
                code = grpc.StatusCode.UNKNOWN
                raise
            finally:
                failed = code is not grpc.StatusCode.OK
                done = Answer(
                    "grpc",
                    method,
                    code.name,
                    perf_counter_ns() - began,
                    _text(getattr(request, "model_name", "") or getattr(request, "name", ""))[:256],
                    _text(getattr(request, "model_version", "") or getattr(request, "version", ""))[:32],
                    ids,
                    context.peer(),
                )
                error = (context.details() or code.name) if failed else ""
                level = grpc_level(code.name)
                self._journal.answered(done, decoded[0] if decoded else None, error, level)

        return grpc.unary_unary_rpc_method_handler(answer, handler.request_deserializer, handler.response_serializer)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


class GrpcServer:
    """The gRPC server of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        self._gateway = gateway
        self._server = grpc.aio.server(
            interceptors=[JournalInterceptor(gateway)],
            options=[
                ("grpc.max_receive_message_length", settings.max_body_bytes),
                ("grpc.max_send_message_length", -1),
                # Without this option a second server on the same port would silently get half of the connections.
                ("grpc.so_reuseport", 0),
            ],
        )
        service = InferenceService(gateway)
        _refuse_others(service)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(service, self._server)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        host = settings.grpc_host or settings.http_host
        address = f"{f'[{host}]' if ':' in host else host}:{settings.grpc_port}"
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError:
            raise OSError(f"gRPC can't listen on {address}: name another with --grpc-port") from None

    async def start(self) -> None:
        """Starts to listen. Sets the health status by whether the gateway is ready."""
        state = health_pb2.HealthCheckResponse.SERVING
        if not self._gateway.is_ready():
            state = health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", SERVICE):
            await self._health.set(name, state)
        await self._server.start()

    async def stop(self, seconds: float) -> None:
        """Sets the health status to NOT_SERVING, refuses new calls, and gives the calls under way `seconds` to end."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(seconds)
