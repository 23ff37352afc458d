"""Makes the OpenAPI document. It has paths for each model, described by its config."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote

import numpy as np

from opgate.service.api.routes import Operation, Route
from opgate.service.core.errors import ServingError
from opgate.service.core.spec import ModelSpec, TensorSpec
from opgate.service.gateway import Gateway, package_version
from opgate.service.repository.loader import LoadedModel
from opgate.service.wire.friendly import file_input

_JSON = "application/json"
_TEXT = {"type": "string"}
_SIZE = {"type": "integer", "minimum": 0}
_SECONDS = {"type": "number", "minimum": 0}
_SIZES = {"type": "array", "items": {"type": "integer", "minimum": -1}}


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _changes(settings: dict[str, Any]) -> dict[str, Any]:
    """Describes a request that changes some settings. Null takes a change back."""
    values = {name: {"anyOf": [value, {"type": "null"}]} for name, value in settings.items()}
    return {**_object({}, **values), "additionalProperties": False}


_METADATA = _list(_object({"name": _TEXT, "datatype": _TEXT, "shape": _SIZES}))
_OUTPUT = _object(
    {"name": _TEXT, "datatype": _TEXT, "shape": _SIZES}, data={"type": "array"}, parameters={"type": "object"}
)
_FLAG = {"type": "boolean"}
_LEVEL = {"enum": ["TIMESTAMPS", "OFF"]}


def _number(least: int) -> dict[str, Any]:
    """Describes a whole number of 62 bits, as a number, as text, or as a list of one of them."""
    pattern = f"^({'' if least > 0 else f'{least}|0|'}[1-9][0-9]{{0,18}})$"
    forms = [{"type": "integer", "minimum": least, "maximum": 2**62 - 1}, {**_TEXT, "pattern": pattern}]
    return {"anyOf": [*forms, {"type": "array", "items": {"anyOf": forms}, "minItems": 1, "maxItems": 1}]}


_TRACE = {
    "trace_level": {"anyOf": [_LEVEL, {"type": "array", "items": _LEVEL, "minItems": 1, "maxItems": 1}]},
    "trace_rate": _number(1),
    "trace_count": _number(-1),
    "log_frequency": _number(0),
}
_LOG = {
    "log_info": _FLAG,
    "log_warning": _FLAG,
    "log_error": _FLAG,
    "log_verbose_level": {**_SIZE, "maximum": 2**31 - 1},
    "log_format": {"enum": ["default", "ISO8601"]},
}
_BYTES = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_REGION_BYTES = {**_BYTES, "minimum": 1}
_REGION = {"key": _TEXT, "byte_size": _REGION_BYTES}
_CUDA_REGION = {"device_id": _SIZE, "byte_size": _REGION_BYTES}
_SCHEMAS = {
    "Error": _object({"error": _TEXT}),
    "Server": _object({"name": _TEXT, "version": _TEXT, "extensions": _list(_TEXT)}),
    "Model": _object(
        {"name": _TEXT, "versions": _list(_TEXT), "platform": _TEXT, "inputs": _METADATA, "outputs": _METADATA}
    ),
    "Config": _object({"name": _TEXT, "max_batch_size": {"type": "integer"}}),
    "Statistics": _object({"model_stats": _list(_object({"name": _TEXT, "version": _TEXT}))}),
    "Ops": _object(
        {
            "name": _TEXT,
            "version": _TEXT,
            "ops": _list(
                _object(
                    {"op": _TEXT, "node": _TEXT, "count": _SIZE, "seconds": _SECONDS, "p50": _SECONDS, "p99": _SECONDS}
                )
            ),
        }
    ),
    "Profile": _object(
        {
            "operators": _list(
                _object(
                    {
                        "name": _TEXT,
                        "op": _TEXT,
                        "domain": {"type": ["string", "null"]},
                        "provider": _TEXT,
                        "begin_us": _SIZE,
                        "duration_us": _SIZE,
                        "inputs": _list(_TEXT),
                        "outputs": _list(_TEXT),
                    }
                )
            )
        }
    ),
    "Index": _list(_object({"name": _TEXT}, version=_TEXT, state=_TEXT, reason=_TEXT)),
    "IndexRequest": _object({}, ready=_FLAG),
    "LoadRequest": _object({}, parameters=_object({}, config={**_TEXT, "contentMediaType": _JSON})),
    "UnloadRequest": _object({}, parameters=_object({}, unload_dependents=_FLAG)),
    "TraceSettings": _object({**_TRACE, "trace_file": _TEXT, "trace_mode": _TEXT}),
    "TraceSettingsRequest": _changes(_TRACE),
    "LogSettings": _object({**_LOG, "log_file": _TEXT}),
    "LogSettingsRequest": _changes(_LOG),
    "SystemRegions": _list(_object({"name": _TEXT, **_REGION, "offset": _BYTES})),
    "SystemRegion": _object(_REGION, offset=_BYTES),
    "CudaRegions": _list(_object({"name": _TEXT, **_CUDA_REGION})),
    "CudaRegion": _object({"raw_handle": _object({"b64": {**_TEXT, "contentEncoding": "base64"}}), **_CUDA_REGION}),
    "Answer": _object({"model_name": _TEXT, "model_version": _TEXT, "outputs": _list(_OUTPUT)}, id=_TEXT),
    "ConsoleRequests": _object({"requests": _list({"type": "object"}), "slowest": _list({"type": "object"})}),
    "ConsoleOps": _object({"ops": _list(_object({"name": _TEXT, "domain": _TEXT, "signature": _TEXT}))}),
    "Generated": _object({"model_name": _TEXT, "model_version": _TEXT}),
}
# The largest numbers that don't round to infinity. A request may not have larger ones, an answer may have Infinity.
_LARGEST = {"FP16": 65519.99999999999, "BF16": 3.39617752923046e38, "FP32": 3.4028235677973366e38}
_EXAMPLE_ELEMENTS = 64
_RUN_LENGTHS = _object(
    {"size": {"type": "array", "items": _SIZE, "minItems": 2, "maxItems": 2}, "counts": _list(_SIZE)}
)


def schema(gateway: Gateway, routes: Iterable[Route]) -> dict[str, Any]:
    """Returns the whole document. What clients may not do on this gateway is in it, too."""
    paths: dict[str, Any] = {}
    for route in routes:
        for path, operation in _operations(gateway, route):
            names = re.findall(r"{(\w+)}", path)
            paths.setdefault(path, _with_names({}, *names))[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "opgate", "version": package_version(), "description": "Models with their custom ops."},
        "paths": paths,
        "components": {"schemas": _SCHEMAS},
    }


def _operations(gateway: Gateway, route: Route) -> Iterator[tuple[str, Operation]]:
    """Yields the paths of a route, one for each model or version that it may name, and what they do."""
    if not callable(route.described):
        if route.described is not None:
            yield route.path, route.described
        return
    for name in dict.fromkeys(model.spec.name for model in gateway.catalog.models()):
        versions = gateway.catalog.versions(name)
        if "{version}" not in route.path:
            operation = _described(gateway, route, name)
            if operation is not None:
                yield route.path.format(model=quote(name, safe="")), operation
            continue
        # A path for each version would tell nothing new of a model that has one.
        for version in versions if len(versions) > 1 else ():
            operation = _described(gateway, route, name, str(version))
            if operation is None:
                continue
            operation.pop("operationId", None)  # with a version the name could be that of another model
            yield route.path.format(model=quote(name, safe=""), version=version), operation


def _described(gateway: Gateway, route: Route, name: str, version: str = "") -> Operation | None:
    """Returns what a route does for a model, None if nothing or if nothing is known of the model yet."""
    assert callable(route.described)
    try:
        return route.described(gateway.catalog.known(name, version))
    except ServingError:
        return None


def _with_names(operations: dict[str, Any], *names: str) -> dict[str, Any]:
    """Adds the names that a path has."""
    parameters = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names]
    return {**operations, "parameters": parameters} if names else operations


def _named(schema: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{schema}"}


def call(summary: str, tag: str, schema: str = "", request: str = "", media: str = _JSON) -> dict[str, Any]:
    """Describes a call that answers with this schema, with something else than JSON, or else with an empty body.
    `request` is the schema of its body. One without required members may be left out."""
    good: dict[str, Any] = {"description": "OK"}
    if schema or media != _JSON:
        good["content"] = {media: {"schema": _named(schema)} if schema else {}}
    described = {"summary": summary, "tags": [tag], "responses": {"200": good, **_errors()}}
    if not request:
        return described
    body = {"required": bool(_SCHEMAS[request]["required"]), "content": {_JSON: {"schema": _named(request)}}}
    return described | {"requestBody": body}


def model_call(summary: str, schema: str = "", request: str = "") -> Callable[[LoadedModel], Operation]:
    """Describes a call for each model, with its name in place of {} in the summary, as `call` does."""
    return lambda model: call(summary.format(model.spec.name), model.spec.name, schema, request)


def _errors() -> dict[str, Any]:
    content = {_JSON: {"schema": _named("Error")}}
    return {
        "4XX": {"description": "A mistake in the request", "content": content},
        "5XX": {"description": "The model or the server failed, or is overloaded", "content": content},
    }


def _values(spec: ModelSpec) -> dict[str, Any]:
    """Describes an object that has a value for each input."""
    return {
        "type": "object",
        "properties": {tensor.name: _value(tensor) for tensor in spec.inputs.values()},
        "required": [tensor.name for tensor in spec.inputs.values() if not tensor.optional],
        "additionalProperties": False,
    }


def _example_values(spec: ModelSpec) -> dict[str, Any]:
    return {tensor.name: _example(tensor, tensor.dims) for tensor in spec.inputs.values()}


def generate_operation(schema: str, media: str) -> Callable[[LoadedModel], Operation]:
    """Describes a call that takes values as /predict does, and parameters beside them."""

    def described(model: LoadedModel) -> Operation:
        spec = model.spec
        values = _values(spec)
        parameter = {"type": ["string", "number", "boolean"]}
        others = {"id": _TEXT, "parameters": {"type": "object", "additionalProperties": parameter}}
        request = {**values, "properties": {**others, **values["properties"]}, "additionalProperties": parameter}
        body = {"required": True, "content": {_JSON: {"schema": request, "example": _example_values(spec)}}}
        return call(f"Run {spec.name} on plain JSON", spec.name, schema, media=media) | {"requestBody": body}

    return described


def predict_operation(model: LoadedModel) -> Operation:
    """Describes /predict for a model."""
    spec = model.spec
    values = _values(spec)
    body: dict[str, Any] = {}
    file = file_input(spec)
    if file is not None:
        for media in (*model.presentation.media_types, "application/octet-stream"):
            body[media] = {"schema": {"type": "string", "format": "binary"}}
        several = {"type": "array", "items": {"type": "string", "format": "binary"}}
        body["multipart/form-data"] = {"schema": {"type": "object", "properties": {file.name: several}}}
        text = {"type": "string", "description": "base64, alone or as a data: URL"}
        values["properties"][file.name] = {
            "anyOf": [text, {"type": "array", "items": text}, values["properties"][file.name]]
        }
    several = {"type": "array", "items": values}
    body[_JSON] = {"schema": {"anyOf": [values, several]}, "example": _example_values(spec)}
    if file is None:
        body["multipart/form-data"] = {"schema": _form(values)}
        rows = "A line with names of inputs, and a line with values for each row."
        body["text/csv"] = {"schema": {"type": "string", "description": rows}}
    answer = _answer(model)
    each = {"anyOf": [answer, _object({"error": {"type": "string"}})]}
    answer = {"anyOf": [answer, _object({"results": {"type": "array", "items": each}})]}
    answers: dict[str, Any] = {"application/json": {"schema": answer}}
    if model.presentation.picture_model:
        answers["image/jpeg"] = {"schema": {"type": "string", "format": "binary"}}
    return {
        "operationId": f"predict_{spec.name}",
        "summary": f"Run {spec.name}",
        "tags": [spec.name],
        "requestBody": {"required": True, "content": body},
        "responses": {"200": {"description": "The answer of the model", "content": answers}, **_errors()},
    }


def _form(values: dict[str, Any]) -> dict[str, Any]:
    """Describes a form whose fields are the JSON of the values: one field for a tensor, not one for each element."""
    texts = {
        name: {"type": "string", "contentMediaType": _JSON, "contentSchema": value}
        for name, value in values["properties"].items()
    }
    return {**values, "properties": texts}


def _answer(model: LoadedModel) -> dict[str, Any]:
    outputs = model.spec.outputs
    properties: dict[str, Any] = {"model_name": {"type": "string"}, "model_version": {"type": "string"}}
    if model.presentation.has_records:
        fields = {field: _array(outputs[name], outputs[name].dims[1:]) for field, name in model.presentation.fields}
        fields |= {
            field: _RUN_LENGTHS for field, name in model.presentation.fields if name in model.presentation.masks[:1]
        }
        fields |= {field: {"type": "string"} for field, _ in model.presentation.spans}
        fields |= {"text": {"type": "string"}} if model.presentation.text else {}
        properties["predictions"] = {"type": "array", "items": {"type": "object", "properties": fields}}
    else:
        values = {tensor.name: _array(tensor, tensor.dims) for tensor in outputs.values()}
        properties["outputs"] = {"type": "object", "properties": values}
    return _object(properties)


def _value(tensor: TensorSpec) -> dict[str, Any]:
    """Describes what /predict takes for an input. Where one element is enough, it needs no list."""
    nested = _array(tensor, tensor.dims, of_request=True)
    if not tensor.dims or any(size not in (1, -1) for size in tensor.dims):
        return nested
    shorter = [_array(tensor, (1,) * rank, of_request=True) for rank in range(len(tensor.dims))]
    return {"anyOf": [nested, *shorter]}


def _array(tensor: TensorSpec, dims: tuple[int, ...], of_request: bool = False) -> dict[str, Any]:
    nested = _element(tensor, of_request)
    for place, size in reversed(list(enumerate(dims))):
        nested = {"type": "array", "items": nested}
        if size >= 0:
            nested |= {"minItems": size, "maxItems": size}
        elif of_request and place < len(dims) - 1:
            nested["minItems"] = 1  # an empty list doesn't say how many dims it has
    return nested


def _element(tensor: TensorSpec, of_request: bool) -> dict[str, Any]:
    name = tensor.datatype.name
    if tensor.labels and tensor.datatype.dtype.kind in "iu":
        return {"type": ["string", "integer"], "description": f"one of {len(tensor.labels)} labels"}
    if name == "BYTES":
        return {"type": "string"}
    if name == "BOOL":
        return {"type": "boolean"}
    if name.startswith(("FP", "BF")):
        limits = {}
        if of_request and name in _LARGEST:
            limits = {"minimum": -_LARGEST[name], "maximum": _LARGEST[name]}
        return {"type": "number", "description": name, **limits}
    whole = np.iinfo(tensor.datatype.dtype)
    return {
        "type": "integer",
        "description": f"{name}, without a fraction",
        "minimum": int(whole.min),
        "maximum": int(whole.max),
    }


def _example(tensor: TensorSpec, dims: tuple[int, ...]) -> Any:
    """Returns zeros in nested lists of the smallest shape that fits, or a single element if that shape has many."""
    sizes = [1 if size == -1 else size for size in dims]
    if math.prod(sizes) > _EXAMPLE_ELEMENTS:
        sizes = [1] * len(sizes)
    nested: Any = {"BYTES": "text", "BOOL": False}.get(tensor.datatype.name, 0)
    for size in reversed(sizes):
        nested = [nested] * size
    return nested


def infer_operation(model: LoadedModel) -> Operation:
    """Describes the KServe v2 protocol's inference for a model."""
    spec = model.spec
    inputs = []
    for tensor in spec.inputs.values():
        sizes = [1 if size == -1 else size for size in spec.wire_shape(tensor)]
        data: Any = [] if math.prod(sizes) > _EXAMPLE_ELEMENTS else _example(tensor, tuple(sizes))
        inputs.append({"name": tensor.name, "datatype": tensor.datatype.name, "shape": sizes, "data": data})
    tensors = [
        _object(
            {"name": {"const": tensor.name}, "datatype": {"const": tensor.datatype.name}, "shape": _list(_SIZE)},
            parameters={"type": ["object", "null"]},
        )
        for tensor in spec.inputs.values()
    ]
    required = [tensor for tensor in spec.inputs.values() if not tensor.optional]
    outputs = {"type": ["array", "null"], "items": _object({"name": {"enum": list(spec.outputs)}})}
    request = _object(
        {"inputs": {"type": "array", "items": {"anyOf": tensors}, "minItems": len(required)}}, id=_TEXT, outputs=outputs
    )
    return {
        "operationId": f"infer_{spec.name}",
        "summary": f"Run {spec.name} by the KServe v2 protocol",
        "tags": [spec.name],
        "requestBody": {"required": True, "content": {_JSON: {"schema": request, "example": {"inputs": inputs}}}},
        "responses": {
            "200": {"description": "The outputs", "content": {_JSON: {"schema": _named("Answer")}}},
            **_errors(),
        },
    }


def profile_operation(model: LoadedModel) -> Operation | None:
    """Describes the profile of a request, whose body is that of an inference. None if the model can't be profiled."""
    if model.try_on is None:
        return None
    operation = infer_operation(model)
    content = {_JSON: {"schema": _named("Profile")}}
    return {
        **operation,
        "operationId": f"profile_{model.spec.name}",
        "summary": f"How long each operator of ONNX Runtime takes in a run of {model.spec.name}",
        "responses": {"200": {"description": "The operators", "content": content}, **_errors()},
    }
