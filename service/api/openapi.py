"""Makes the OpenAPI document. It has paths for each model, described by its config."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from opgate.service.execution.spec import ModelSpec, TensorSpec
from opgate.service.gateway import Gateway, package_version
from opgate.service.repository.loader import LoadedModel
from opgate.service.wire.friendly import file_input

_TEXT = {"type": "string"}
_SIZE = {"type": "integer", "minimum": 0}
_SIZES = {"type": "array", "items": {"type": "integer", "minimum": -1}}


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_METADATA = _list(_object({"name": _TEXT, "datatype": _TEXT, "shape": _SIZES}))
_OUTPUT = _object(
    {"name": _TEXT, "datatype": _TEXT, "shape": _SIZES}, data={"type": "array"}, parameters={"type": "object"}
)
_SCHEMAS = {
    "Error": _object({"error": _TEXT}),
    "Server": _object({"name": _TEXT, "version": _TEXT, "extensions": _list(_TEXT)}),
    "Model": _object(
        {"name": _TEXT, "versions": _list(_TEXT), "platform": _TEXT, "inputs": _METADATA, "outputs": _METADATA}
    ),
    "Config": _object({"name": _TEXT, "max_batch_size": {"type": "integer"}}),
    "Statistics": _object({"model_stats": _list(_object({"name": _TEXT, "version": _TEXT}))}),
    "Index": _list(_object({"name": _TEXT}, version=_TEXT, state=_TEXT, reason=_TEXT)),
    "IndexRequest": _object({}, ready={"type": "boolean"}),
    "Answer": _object({"model_name": _TEXT, "model_version": _TEXT, "outputs": _list(_OUTPUT)}, id=_TEXT),
}
_JSON = "application/json"
# The largest numbers that don't round to infinity. A request may not have larger ones, an answer may have Infinity.
_LARGEST = {"FP16": 65519.99999999999, "BF16": 3.39617752923046e38, "FP32": 3.4028235677973366e38}
_EXAMPLE_ELEMENTS = 64


def schema(gateway: Gateway) -> dict[str, Any]:
    """Returns the whole document."""
    paths: dict[str, Any] = {
        "/v2": {"get": _read("Server metadata", "server", "Server")},
        "/v2/health/live": {"get": _read("Whether the process answers", "server")},
        "/v2/health/ready": {"get": _read("Whether every model is ready", "server")},
        "/v2/models/stats": {"get": _read("Statistics of all models", "server", "Statistics")},
        "/v2/repository/index": {
            "post": _read("All models of the repository with their state", "server", "Index")
            | {"requestBody": {"content": {_JSON: {"schema": _named("IndexRequest")}}}}
        },
        "/metrics": {"get": _read("Prometheus metrics", "server")},
    }
    paths["/metrics"]["get"]["responses"]["200"]["content"] = {"text/plain": {"schema": _TEXT}}
    for name in dict.fromkeys(model.spec.name for model in gateway.catalog.models()):
        model = gateway.find(name).model
        paths[f"/predict/{name}"] = {"post": _predict(model)}
        prefix = f"/v2/models/{name}"
        paths[prefix] = {"get": _read(f"Inputs and outputs of {name}", name, "Model")}
        paths[f"{prefix}/ready"] = {"get": _read(f"Whether {name} is ready", name)}
        paths[f"{prefix}/config"] = {"get": _read(f"The config of {name}", name, "Config")}
        paths[f"{prefix}/stats"] = {"get": _read(f"Statistics of {name}", name, "Statistics")}
        paths[f"{prefix}/infer"] = {"post": _infer(model.spec)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "opgate", "version": package_version(), "description": "Models with their custom ops."},
        "paths": paths,
        "components": {"schemas": _SCHEMAS},
    }


def _named(schema: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{schema}"}


def _read(summary: str, tag: str, schema: str = "") -> dict[str, Any]:
    """Describes a route that answers with this schema, or with an empty body."""
    good: dict[str, Any] = {"description": "OK"}
    if schema:
        good["content"] = {_JSON: {"schema": _named(schema)}}
    return {"summary": summary, "tags": [tag], "responses": {"200": good, **_errors()}}


def _errors() -> dict[str, Any]:
    content = {_JSON: {"schema": _named("Error")}}
    return {
        "4XX": {"description": "A mistake in the request", "content": content},
        "5XX": {"description": "The model or the server failed, or is overloaded", "content": content},
    }


def _predict(model: LoadedModel) -> dict[str, Any]:
    spec = model.spec
    values = {
        "type": "object",
        "properties": {tensor.name: _value(tensor) for tensor in spec.inputs.values()},
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
        body["multipart/form-data"] = {"schema": _form(values)}
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
    if model.presentation.fields:
        fields = {field: _array(outputs[name], outputs[name].dims[1:]) for field, name in model.presentation.fields}
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


def _infer(spec: ModelSpec) -> dict[str, Any]:
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
        "summary": f"Run {spec.name} by the KServe v2 protocol",
        "tags": [spec.name],
        "operationId": f"infer_{spec.name}",
        "requestBody": {"required": True, "content": {_JSON: {"schema": request, "example": {"inputs": inputs}}}},
        "responses": {
            "200": {"description": "The outputs", "content": {_JSON: {"schema": _named("Answer")}}},
            **_errors(),
        },
    }
