"""The KServe v2 routes as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from opgate.service.api.asgi_exchange import AsgiExchange, found, model_and_version
from opgate.service.api.openapi import call, infer_operation, model_call, profile_operation
from opgate.service.api.routes import Route, of_models
from opgate.service.api.statistics import read_statistics
from opgate.service.api.status import HTTP, error_body, error_headers
from opgate.service.core.errors import Kind, NotLoadedError, ServingError, invalid, json_kind, too_large
from opgate.service.core.op_times import rows_of, sum_of
from opgate.service.core.request import Request as InferRequest
from opgate.service.core.spec import TensorSpec
from opgate.service.deflate import deflate
from opgate.service.gateway import Gateway, Reading, Served, extensions, package_version
from opgate.service.repository.loader import LoadedModel
from opgate.service.repository.profiling import check_profiled
from opgate.service.settings import smallest
from opgate.service.wire.compression import decompress, wanted_encoding
from opgate.service.wire.kserve_json import encode_counted, encoding_cost, size_of, timeout_of
from opgate.service.wire.kserve_rules import flag
from opgate.service.wire.proto_json import to_plain

T = TypeVar("T")

JSON = "application/json"
# Bytes of the body of a request for the index of models.
_MAX_INDEX_BYTES = 65536
_REPOSITORY = "model-repository"
_OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")
# A compressed body can become this many times its size.
_MOST_RATIO = 1040
# A body that is packed counts as this many times its size, because that is about what it costs.
_COMPRESSION_COST = 8
# So many bytes are copied for what one byte of JSON costs.
_COPIES_COST = 8


def answer(content: Any, status: int = 200) -> Response:
    """Returns a JSON response."""
    return Response(orjson.dumps(content), status, media_type=JSON)


def error_response(error: ServingError, retry_after: int) -> Response:
    """Returns the response for an error."""
    headers = dict(error_headers(error, retry_after))
    return Response(error_body(error.message), HTTP[error.kind], headers, media_type=JSON)


class PartsResponse(Response):
    """A response whose body is sent in parts, without joining them."""

    def __init__(self, parts: Sequence[bytes | memoryview], headers: Mapping[str, str], media_type: str) -> None:
        super().__init__(None, 200, {**headers, "content-length": str(size_of(parts))}, media_type)
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@dataclass(frozen=True, slots=True)
class Body:
    """A body as it came, and the encoding that it is packed with, "" for none."""

    data: bytes
    encoding: str
    limit: int  # bytes that it may have when it is unpacked
    setting: str  # of that limit

    @property
    def most(self) -> int:
        """The most bytes that it can have when it is unpacked, 0 if it is not packed."""
        return min(self.limit, len(self.data) * _MOST_RATIO) if self.encoding else 0

    @property
    def size(self) -> int:
        """The most bytes that it can have."""
        return self.most or len(self.data)

    def unpacked(self) -> bytes | bytearray:
        """Returns the body unpacked. Raises the errors of `decompress`."""
        return decompress(self.data, self.encoding, self.limit, self.setting) if self.encoding else self.data


async def read_body(gateway: Gateway, request: Request, limit: int, setting: str = "") -> Body:
    """Reads a body of at most `limit` bytes, which `setting` sets if one does.

    Raises ServingError: TOO_LARGE over a limit, before reading if the announced length is over it, CANCELED if the
    client leaves.
    """
    announced = request.headers.get("content-length")
    if announced is not None and announced.isdecimal() and int(announced) > limit:
        raise too_large("the body", limit, setting)
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise too_large("the body", limit, setting)
            parts.append(part)
    except ClientDisconnect:
        raise ServingError(Kind.CANCELED, "the client left while it sent the body") from None
    encoding = request.headers.get("content-encoding", "").strip().lower()
    encoding = "" if encoding == "identity" else encoding
    unpacked = smallest(gateway.settings, "max_decompressed_bytes")
    data = await gateway.work(size // _COPIES_COST, lambda: b"".join(parts))
    return Body(data, encoding, *min((limit, setting), unpacked))


async def read_object(gateway: Gateway, request: Request, limit: int, setting: str = "") -> dict[str, Any]:
    """Returns the JSON object in the body of a request, an empty one if there is no body. Raises ServingError."""
    with contextlib.ExitStack() as stack:
        body = await read_body(gateway, request, limit, setting)
        stack.enter_context(gateway.holding(body.most))
        try:
            found = await gateway.work(body.size, lambda: orjson.loads(body.unpacked() or b"{}"))
        except orjson.JSONDecodeError as error:
            raise invalid(f"the request is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise invalid(f"the request: expected a JSON object, got {json_kind(found)}")
    return found


def _metadata(tensor: TensorSpec, shape: list[int]) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype.name, "shape": shape}


class _Routes:
    """The endpoints of one gateway. Each returns the response to a request."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def _model(self, request: Request) -> LoadedModel:
        return await self._gateway.known(*model_and_version(request))

    async def live(self) -> Response:
        """Answers 200: the process is alive."""
        return Response(status_code=200)

    async def ready(self) -> Response:
        """Answers 200 if clients should send requests to this gateway, else 400 with the reason."""
        if self._gateway.is_ready():
            return Response(status_code=200)
        failed = ", ".join(self._gateway.catalog.unavailable())
        text = "the server is shutting down" if self._gateway.draining else f"not every model is available: {failed}"
        return Response(error_body(text), 400, media_type=JSON)

    async def server_metadata(self) -> Response:
        """Answers with the name and version of the server and the protocol extensions."""
        announced = extensions(self._gateway.settings)
        return answer({"name": "opgate", "version": package_version(), "extensions": announced})

    async def model_metadata(self, request: Request) -> Response:
        """Answers with the names, types and shapes of a model's inputs and outputs."""
        spec = (await self._model(request)).spec
        return answer(
            {
                "name": spec.name,
                "versions": self._gateway.catalog.listed(spec.name, request.path_params.get("version", "")),
                "platform": spec.platform,
                "inputs": [_metadata(tensor, spec.wire_shape(tensor)) for tensor in spec.inputs.values()],
                "outputs": [_metadata(tensor, spec.wire_shape(tensor)) for tensor in spec.outputs.values()],
            }
        )

    async def model_ready(self, request: Request) -> Response:
        """Answers 200 if a model can serve, else 400 with the reason. Answers 404 if the repository doesn't have it."""
        await self._gateway.check_ready(*model_and_version(request))
        return Response(status_code=200)

    async def model_config(self, request: Request) -> Response:
        """Answers with the completed config of a model."""
        return answer(to_plain((await self._model(request)).config, with_defaults=True))

    async def statistics(self, request: Request) -> Response:
        """Answers with the counts and durations of one model, or of all models."""
        message = await read_statistics(self._gateway, *model_and_version(request))
        return await asyncio.to_thread(lambda: answer(to_plain(message, with_defaults=True)))

    async def ops(self, request: Request) -> Response:
        """Answers with how long the calls of a model's custom ops took, by node."""
        spec = (await self._model(request)).spec
        found = await self._gateway.all_processes.run("op_times", spec.name, spec.version)
        rows = await asyncio.to_thread(lambda: rows_of(sum_of(found)))
        return answer({"name": spec.name, "version": spec.version, "ops": rows})

    async def index(self, request: Request) -> Response:
        """Answers with all models of the repository, their state and its reason."""
        options = await read_object(self._gateway, request, _MAX_INDEX_BYTES)
        rows = await self._gateway.control.index(flag(options, "ready"))
        fields = ("name", "version", "state", "reason")
        return answer([{key: text for key, text in zip(fields, row, strict=True) if text} for row in rows])

    async def load(self, request: Request) -> Response:
        """Loads a model as its files are now, or with the config and the files of the request."""
        check_operator(self._gateway, request, _REPOSITORY)
        self._gateway.control.check_explicit()
        name = request.path_params["model"]
        parameters = await self._parameters(request, smallest(self._gateway.settings, "max_body_bytes"))
        await self._gateway.all_processes.load(name, parameters)
        return Response(status_code=200)

    async def unload(self, request: Request) -> Response:
        """Unloads a model, and with `unload_dependents` the models of its steps."""
        check_operator(self._gateway, request, _REPOSITORY)
        parameters = await self._parameters(request, (_MAX_INDEX_BYTES, ""))
        dependents = flag(parameters, "unload_dependents")
        await self._gateway.all_processes.unload(request.path_params["model"], dependents)
        return Response(status_code=200)

    async def _parameters(self, request: Request, limit: tuple[int, str]) -> dict[str, Any]:
        parameters = (await read_object(self._gateway, request, *limit)).get("parameters", {})
        if not isinstance(parameters, dict):
            raise invalid(f"parameters: expected an object, got {json_kind(parameters)}")
        return parameters

    async def infer(self, request: Request) -> Response:
        """Runs a model and answers with its outputs."""
        gateway = self._gateway
        with contextlib.ExitStack() as stack:
            try:
                reading: contextlib.AbstractContextManager[object] = Reading(gateway.find(*model_and_version(request)))
            except NotLoadedError:  # its body says how long it waits for the model
                reading = contextlib.nullcontext()
            with reading:
                header_length, body = await self._tensors(request, stack)
            served = await self._found(request, header_length, body)
            decoder = served.decoder
            exchange = AsgiExchange(gateway, request, encoding_cost, encode_counted)
            header_length, parts = await exchange.run(
                served,
                decoder.cost(body.size, header_length),
                lambda: decoder.decode(body.unpacked(), header_length),
            )
        headers = {}
        if header_length is not None:
            headers["Inference-Header-Content-Length"] = str(header_length)
        media = JSON if header_length is None else "application/octet-stream"
        encoding = wanted_encoding(request.headers.get("accept-encoding", ""))
        if encoding:
            headers["Content-Encoding"] = encoding
            size = size_of(parts)
            parts = [*await gateway.work(size * _COMPRESSION_COST, lambda: deflate(parts, encoding))]
        return PartsResponse(parts, headers, media)

    async def _found(self, request: Request, header_length: int | None, body: Body) -> Served:
        """Returns the model of a request. It may have come or gone while the body was read."""
        gateway = self._gateway
        try:
            return gateway.find(*model_and_version(request))
        except NotLoadedError:
            timeout_us = await gateway.work(body.size, lambda: timeout_of(memoryview(body.unpacked())[:header_length]))
            return await found(gateway, request, timeout_us=timeout_us)

    async def _tensors(self, request: Request, stack: contextlib.ExitStack) -> tuple[int | None, Body]:
        """Returns the bytes of the JSON in a body with tensors, None if it is all of it, and the body. `stack` holds
        its bytes."""
        gateway = self._gateway
        header_length = _header_length(request)
        limits = ("max_body_bytes", "max_json_bytes") if header_length is None else ("max_body_bytes",)
        body = await read_body(gateway, request, *smallest(gateway.settings, *limits))
        stack.enter_context(gateway.holding(body.most))
        return header_length, body

    async def profile(self, request: Request) -> Response:
        """Runs a request in a session that ONNX Runtime's profiler watches, and answers with each operator's time."""
        gateway = self._gateway
        check_operator(gateway, request, "trace")
        with contextlib.ExitStack() as stack:
            check_profiled((await gateway.found(*model_and_version(request))).model)
            header_length, body = await self._tensors(request, stack)
            served = await gateway.found(*model_and_version(request))  # another may have taken its place meanwhile
            decoder = served.decoder

            def decode() -> InferRequest:
                asked = decoder.decode(body.unpacked(), header_length)
                if asked.shared is not None and asked.shared.unread:
                    asked.shared.read(asked)
                return asked

            asked = await gateway.work(decoder.cost(body.size, header_length), decode)
            operators = await gateway.profile(served.model, asked)
        return await asyncio.to_thread(lambda: answer({"operators": [operator._asdict() for operator in operators]}))


def routes(gateway: Gateway) -> Iterator[Route]:
    """Yields the routes of one gateway."""
    endpoints = _Routes(gateway)
    yield Route("GET", "/v2", endpoints.server_metadata, "metadata", call("Server metadata", "server", "Server"))
    yield Route("GET", "/v2/health/live", endpoints.live, "health", call("Whether the process answers", "server"))
    yield Route("GET", "/v2/health/ready", endpoints.ready, "health", call("Whether every model is ready", "server"))
    stats = call("Statistics of all models", "server", "Statistics")
    yield Route("GET", "/v2/models/stats", endpoints.statistics, "statistics", stats)
    yield from of_models("POST", "/infer", endpoints.infer, "inference", infer_operation)
    yield from of_models("POST", "/profile", endpoints.profile, "trace", profile_operation)
    for rest, endpoint, group, summary, schema in (
        ("", endpoints.model_metadata, "metadata", "Inputs and outputs of {}", "Model"),
        ("/ready", endpoints.model_ready, "health", "Whether {} is ready", ""),
        ("/config", endpoints.model_config, "model-config", "The config of {}", "Config"),
        ("/stats", endpoints.statistics, "statistics", "Statistics of {}", "Statistics"),
        ("/ops", endpoints.ops, "statistics", "How long the custom ops of {} take", "Ops"),
    ):
        yield from of_models("GET", rest, endpoint, group, model_call(summary, schema))
    index = call("All models of the repository with their state", "repository", "Index", "IndexRequest")
    for prefix in ("/v2/repository", "/v2/repository/{repository}"):
        yield Route("POST", f"{prefix}/index", endpoints.index, _REPOSITORY, index)
    load = call("Load a model", "repository", request="LoadRequest")
    yield Route("POST", "/v2/repository/models/{model}/load", endpoints.load, _REPOSITORY, load)
    unload = call("Unload a model", "repository", request="UnloadRequest")
    yield Route("POST", "/v2/repository/models/{model}/unload", endpoints.unload, _REPOSITORY, unload)


def check_operator(gateway: Gateway, request: Request, group: str) -> None:
    """Raises ServingError as `Gateway.check_operator` does, also for what a page in a browser sends. The console that a
    browser on this machine has from here may do what its user may."""
    if not _is_own_page(request):
        refuse_pages(gateway, request, group)
    gateway.check_operator(request.client.host if request.client else "", gateway.http_tokens, group)


def refuse_pages(gateway: Gateway, request: Request, group: str) -> None:
    """Raises ServingError (FORBIDDEN) for what a page in a browser sends, unless the group needs a token: it may be
    anybody's."""
    if group not in gateway.http_tokens and ("origin" in request.headers or "sec-fetch-site" in request.headers):
        rule = "pages in a browser (headers Origin, Sec-Fetch-Site) may not do that"
        raise ServingError(Kind.FORBIDDEN, f"{rule}, unless the group '{group}' needs a token")


def _is_own_page(request: Request) -> bool:
    """Returns whether a page of this gateway sends the request, under a name that only this machine can have: another
    name may have been given to anybody's page before it was given to this address."""
    host = request.headers.get("host", "").lower()
    origin = request.headers.get("origin")  # browsers send it with every POST
    fits = origin is None or origin.lower().partition("://")[2] == host
    return request.headers.get("sec-fetch-site") == "same-origin" and fits and name_of(host) in _OWN_NAMES


def name_of(host: str) -> str:
    """Returns a Host header without its port."""
    return re.sub(r":\d+$", "", host)


def _header_length(request: Request) -> int | None:
    text = request.headers.get("inference-header-content-length")
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise invalid(f"Inference-Header-Content-Length: expected a number of bytes, got '{text[:40]}'")
    return int(text)
