"""Makes the OpenAPI document. It has paths for each model, described by its config."""

from __future__ import annotations

import math
from typing import Any

from opgate.service.execution.spec import ModelSpec, TensorSpec
from opgate.service.gateway import Gateway, package_version
from opgate.service.repository.loader import LoadedModel
from opgate.service.wire.friendly import file_input

_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
_EXAMPLE_ELEMENTS = 64


def schema(gateway: Gateway) -> dict[str, Any]:
    """Returns the whole document."""
    paths: dict[str, Any] = {
        "/v2": {"get": _plain("Server metadata", "server")},
        "/v2/health/live": {"get": _plain("Whether the process answers", "server")},
        "/v2/health/ready": {"get": _plain("Whether every model is ready", "server")},
        "/v2/models/stats": {"get": _plain("Statistics of all models", "server")},
        "/v2/repository/index": {"post": _plain("All models of the repository with their state", "server")},
        "/metrics": {"get": _plain("Prometheus metrics", "server")},
    }
    for name in dict.fromkeys(model.spec.name for model in gateway.catalog.models()):
        model = gateway.find(name).model
        paths[f"/predict/{name}"] = {"post": _predict(model)}
        prefix = f"/v2/models/{name}"
        paths[prefix] = {"get": _plain(f"Inputs and outputs of {name}", name)}
        paths[f"{prefix}/ready"] = {"get": _plain(f"Whether {name} is ready", name)}
        paths[f"{prefix}/config"] = {"get": _plain(f"The config of {name}", name)}
        paths[f"{prefix}/stats"] = {"get": _plain(f"Statistics of {name}", name)}
        paths[f"{prefix}/infer"] = {"post": _infer(model.spec)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "opgate", "version": package_version(), "description": "Models with their custom ops."},
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR}},
    }


def _plain(summary: str, tag: str) -> dict[str, Any]:
    return {"summary": summary, "tags": [tag], "responses": {"200": {"description": "OK"}, **_errors()}}


def _errors() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "4XX": {"description": "A mistake in the request", "content": content},
        "5XX": {"description": "The model or the server failed, or is overloaded", "content": content},
    }


def _predict(model: LoadedModel) -> dict[str, Any]:
    spec = model.spec
    values = {
        "type": "object",
        "properties": {tensor.name: _array(tensor, tensor.dims) for tensor in spec.inputs.values()},
        "required": [tensor.name for tensor in spec.inputs.values() if not tensor.optional],
        "additionalProperties": False,
    }
    body: dict[str, Any] = {}
    file = file_input(spec)
    if file is not None:
        for media in (*model.presentation.media_types, "application/octet-stream"):
            body[media] = {"schema": {"type": "string", "format": "binary"}}
        form = {"type": "object", "properties": {file.name: {"type": "string", "format": "binary"}}}
        body["multipart/form-data"] = {"schema": form}
    body["application/json"] = {
        "schema": values,
        "example": {tensor.name: _example(tensor, tensor.dims) for tensor in spec.inputs.values()},
    }
    if file is None:
        body["multipart/form-data"] = {"schema": values}
    answers: dict[str, Any] = {"application/json": {"schema": _answer(model)}}
    if model.presentation.picture_model:
        answers["image/jpeg"] = {"schema": {"type": "string", "format": "binary"}}
    return {
        "summary": f"Run {spec.name}",
        "tags": [spec.name],
        "operationId": f"predict_{spec.name}",
        "requestBody": {"required": True, "content": body},
        "responses": {"200": {"description": "The answer of the model", "content": answers}, **_errors()},
    }


def _answer(model: LoadedModel) -> dict[str, Any]:
    outputs = model.spec.outputs
    properties: dict[str, Any] = {"model_name": {"type": "string"}, "model_version": {"type": "string"}}
    if model.presentation.fields:
        fields = {field: _array(outputs[name], outputs[name].dims[1:]) for field, name in model.presentation.fields}
        properties["predictions"] = {"type": "array", "items": {"type": "object", "properties": fields}}
    else:
        values = {tensor.name: _array(tensor, tensor.dims) for tensor in outputs.values()}
        properties["outputs"] = {"type": "object", "properties": values}
    return {"type": "object", "properties": properties}


def _array(tensor: TensorSpec, dims: tuple[int, ...]) -> dict[str, Any]:
    nested = _element(tensor)
    for size in reversed(dims):
        nested = {"type": "array", "items": nested}
        if size >= 0:
            nested |= {"minItems": size, "maxItems": size}
    return nested


def _element(tensor: TensorSpec) -> dict[str, Any]:
    name = tensor.datatype.name
    if tensor.labels and tensor.datatype.dtype.kind in "iu":
        return {"type": ["string", "integer"], "description": f"one of {len(tensor.labels)} labels"}
    if name == "BYTES":
        return {"type": "string"}
    if name == "BOOL":
        return {"type": "boolean"}
    if name.startswith(("FP", "BF")):
        return {"type": "number", "description": name}
    return {"type": "integer", "description": name}


def _example(tensor: TensorSpec, dims: tuple[int, ...]) -> Any:
    """Returns zeros in nested lists of the smallest shape that fits, or a single element if that shape has many."""
    sizes = [1 if size == -1 else size for size in dims]
    if math.prod(sizes) > _EXAMPLE_ELEMENTS:
        sizes = [1] * len(sizes)
    nested: Any = {"BYTES": "text", "BOOL": False}.get(tensor.datatype.name, 0)
    for size in reversed(sizes):
        nested = [nested] * size
    return nested


def _infer(spec: ModelSpec) -> dict[str, Any]:
    inputs = []
    for tensor in spec.inputs.values():
        sizes = [1 if size == -1 else size for size in spec.wire_shape(tensor)]
        data: Any = [] if math.prod(sizes) > _EXAMPLE_ELEMENTS else _example(tensor, tuple(sizes))
        inputs.append({"name": tensor.name, "datatype": tensor.datatype.name, "shape": sizes, "data": data})
    return {
        "summary": f"Run {spec.name} by the KServe v2 protocol",
        "tags": [spec.name],
        "operationId": f"infer_{spec.name}",
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"type": "object"}, "example": {"inputs": inputs}}},
        },
        "responses": {
            "200": {"description": "The outputs", "content": {"application/json": {"schema": {"type": "object"}}}},
            **_errors(),
        },
    }
