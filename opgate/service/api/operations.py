"""Trace and log settings over HTTP and gRPC, as Triton's extensions of these names have them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import Request, Response

from opgate.service.api.kserve_http import answer, check_operator, read_object
from opgate.service.api.openapi import call, model_call
from opgate.service.api.routes import Route, of_models
from opgate.service.core.errors import NotLoadedError
from opgate.service.core.triton_messages import service_pb2
from opgate.service.gateway import Gateway
from opgate.service.wire.kserve_grpc import parameter_values

_MOST_BYTES = 65536


def routes(gateway: Gateway) -> Iterator[Route]:
    """Yields the routes of one gateway."""

    async def trace_setting(request: Request) -> Response:
        model = _model(gateway, request.path_params.get("model", ""), request.path_params.get("version", ""))
        if request.method == "POST":
            check_operator(gateway, request, "trace")
            await gateway.all_processes.run("trace", model, await read_object(gateway, request, _MOST_BYTES))
        return answer(gateway.tracing.settings(model).as_map())

    async def logging(request: Request) -> Response:
        if request.method == "POST":
            check_operator(gateway, request, "logging")
            await gateway.all_processes.run("log", await read_object(gateway, request, _MOST_BYTES))
        return answer(gateway.log_settings().as_map())

    for method, what in (("GET", "The"), ("POST", "Change the")):
        request = {"GET": "", "POST": "Request"}[method]
        trace, log = (f"{name}{request}" if request else "" for name in ("TraceSettings", "LogSettings"))
        of_all = call(f"{what} trace settings of all models", "operation", "TraceSettings", trace)
        yield Route(method, "/v2/trace/setting", trace_setting, "trace", of_all)
        of_one = model_call(f"{what} trace settings of {{}}", "TraceSettings", trace)
        yield from of_models(method, "/trace/setting", trace_setting, "trace", of_one)
        of_log = call(f"{what} settings of the log", "operation", "LogSettings", log)
        yield Route(method, "/v2/logging", logging, "logging", of_log)


async def trace_setting(gateway: Gateway, asked: Any, peer: str) -> Any:
    """Returns the answer to the RPC TraceSetting. A setting without values is taken back. Raises ServingError."""
    model = _model(gateway, asked.model_name)
    changes = {name: list(setting.value) or None for name, setting in asked.settings.items()}
    if changes:
        gateway.check_operator(peer, gateway.grpc_tokens, "trace")
        await gateway.all_processes.run("trace", model, changes)
    response = service_pb2.TraceSettingResponse()
    for name, value in gateway.tracing.settings(model).as_map().items():
        response.settings[name].value.extend(value if isinstance(value, list) else [value])
    return response


async def log_settings(gateway: Gateway, asked: Any, peer: str) -> Any:
    """Returns the answer to the RPC LogSettings. A setting without a value is taken back. Raises ServingError."""
    changes = parameter_values(asked.settings)
    if changes:
        gateway.check_operator(peer, gateway.grpc_tokens, "logging")
        await gateway.all_processes.run("log", changes)
    response = service_pb2.LogSettingsResponse()
    for name, value in gateway.log_settings().as_map().items():
        _set(response.settings[name], value)
    return response


def _set(setting: Any, value: Mapping[str, Any] | bool | int | str) -> None:
    if isinstance(value, bool):
        setting.bool_param = value
    elif isinstance(value, int):
        setting.uint32_param = value
    else:
        setting.string_param = value


def _model(gateway: Gateway, name: str, version: str = "") -> str:
    """Returns the name of a model that serves, "" for all. Raises ServingError as `Catalog.known` does."""
    if name:
        with contextlib.suppress(NotLoadedError):
            gateway.catalog.known(name, version)
    return name
