"""Makes requests from the configs of models, good and bad, and reads the answers of a server in one form.

The same requests go to Triton and to the gateway, so that their answers can be compared.
"""

from __future__ import annotations

import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor, triton_to_np_dtype

from tests.system.running import ROOT

PICTURE = (ROOT / "docs/examples/digits.jpg").read_bytes()
Configs = dict[str, Any]
_CONTENTS = {
    "BOOL": "bool_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A server, and the ports that it listens on."""

    name: str
    http: int
    grpc: int


@dataclass
class Answer:
    """What a server answered. `tensors` maps a name to datatype, shape and bytes; `keys` are those of its JSON."""

    status: str
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    facts: dict[str, Any] = field(default_factory=dict)
    text: str = ""


@dataclass
class Case:
    """A request. `kind` names what is special about it, and `good` says whether it should succeed."""

    id: str
    kind: str
    good: bool
    protocol: str
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    method: str = "POST"
    message: Any = None
    call: str = "ModelInfer"

    def ask(self, target: Target) -> Answer:
        """Sends the request and returns the answer."""
        return self._http(target) if self.protocol == "http" else self._grpc(target)

    def _http(self, target: Target) -> Answer:
        url = f"http://127.0.0.1:{target.http}{self.path}"
        request = urllib.request.Request(url, self.body, self.headers, method=self.method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return _read_http(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            return Answer(str(error.code), text=error.read().decode(errors="replace"))

    def _grpc(self, target: Target) -> Answer:
        with grpc.insecure_channel(f"127.0.0.1:{target.grpc}") as channel:
            try:
                answer = getattr(GRPCInferenceServiceStub(channel), self.call)(self.message, timeout=30)
            except grpc.RpcError as error:
                return Answer(error.code().name, text=error.details())
        if self.call != "ModelInfer":
            return Answer("OK", keys={name.name for name, _ in answer.ListFields()})
        read = Answer("OK", facts={"id": answer.id, "model": answer.model_name, "version": answer.model_version})
        for tensor, raw in zip(answer.outputs, answer.raw_output_contents, strict=True):
            read.tensors[tensor.name] = (tensor.datatype, tuple(tensor.shape), bytes(raw))
        return read


def _read_http(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    length = int(headers.get("Inference-Header-Content-Length", len(body)))
    head, binary = body[:length], body[length:]
    stated = json.loads(head) if head else {}
    if not isinstance(stated, dict) or "outputs" not in stated or "model_name" not in stated or "inputs" in stated:
        return Answer(str(status), keys=set(stated) if isinstance(stated, dict) else set())
    facts = {"id": stated.get("id", ""), "model": stated["model_name"], "version": stated["model_version"]}
    answer = Answer(str(status), keys=set(stated), facts=facts)
    for output in stated["outputs"]:
        datatype, shape = output["datatype"], tuple(output["shape"])
        if "data" in output:
            content = _bytes_of(datatype, output["data"])
        else:
            size = output["parameters"]["binary_data_size"]
            content, binary = binary[:size], binary[size:]
        answer.tensors[output["name"]] = (datatype, shape, content)
    assert not binary, "bytes are left over"
    return answer


def _bytes_of(datatype: str, data: list[Any]) -> bytes:
    flat = np.array(data, object).reshape(-1)
    if datatype == "BYTES":
        return serialize_byte_tensor(np.array([text.encode() for text in flat], object)).item()
    return np.array(flat, triton_to_np_dtype(datatype)).tobytes()


def raw(datatype: str, array: np.ndarray) -> bytes:
    """Returns a tensor as the binary extension has it."""
    return serialize_byte_tensor(array).item() if datatype == "BYTES" else array.tobytes()


def _sample(model: str, name: str, datatype: str, shape: tuple[int, ...]) -> np.ndarray:
    size = int(np.prod(shape))
    if datatype == "BYTES":
        return np.array([f"é{i}".encode() for i in range(size)], object).reshape(shape)
    if model == "pick":  # an index
        return np.arange(size, dtype=np.int64).reshape(shape) % 8
    values = np.random.default_rng(len(name)).integers(0, 2 if datatype == "BOOL" else 100, size)
    return values.astype(triton_to_np_dtype(datatype)).reshape(shape)


def configs(target: Target) -> Configs:
    """Returns the config of each model of a server, completed from the model files."""
    with grpc.insecure_channel(f"127.0.0.1:{target.grpc}") as channel:
        stub = GRPCInferenceServiceStub(channel)
        names = [model.name for model in stub.RepositoryIndex(pb.RepositoryIndexRequest()).models]
        return {name: stub.ModelConfig(pb.ModelConfigRequest(name=name)).config for name in names}


def _inputs(config: Any, rows: int) -> dict[str, tuple[str, np.ndarray]]:
    """Returns an array for each input that the model's config states."""
    if config.name == "draw_detections":
        boxes = np.array([[[10, 10, 60, 60], [50, 80, 90, 120]]], np.float32)
        return {
            "data": ("UINT8", np.frombuffer(PICTURE, np.uint8)[None]),
            "boxes": ("FP32", boxes),
            "scores": ("FP32", np.array([[0.9, 0.5]], np.float32)),
            "labels": ("INT32", np.array([[3, 4]], np.int32)),
            "count": ("INT32", np.array([[2]], np.int32)),
        }
    inputs = {}
    for tensor in config.input:
        datatype = (
            pb.model__config__pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_").replace("STRING", "BYTES")
        )
        if tensor.name == "data" and datatype == "UINT8":
            array = np.frombuffer(PICTURE, np.uint8)
            array = np.stack([array] * rows) if config.max_batch_size else array[None]
        else:
            shape = tuple(3 if size < 0 else size for size in tensor.dims)
            array = _sample(config.name, tensor.name, datatype, (rows, *shape) if config.max_batch_size else shape)
        inputs[tensor.name] = (datatype, array)
    return inputs


def _json_data(datatype: str, array: np.ndarray) -> list[Any]:
    return [value.decode() for value in array.reshape(-1)] if datatype == "BYTES" else array.tolist()


def http_body(
    inputs: dict[str, tuple[str, np.ndarray]], binary: bool = False, **fields: Any
) -> tuple[bytes, dict[str, str]]:
    """Returns the body and the headers of an infer request."""
    stated, tail = [], b""
    for name, (datatype, array) in inputs.items():
        tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(array.shape)}
        if binary:
            content = raw(datatype, array)
            tensor["parameters"] = {"binary_data_size": len(content)}
            tail += content
        else:
            tensor["data"] = _json_data(datatype, array)
        stated.append(tensor)
    head = json.dumps({"inputs": stated, **fields}).encode()
    headers = {"Content-Type": "application/octet-stream" if binary else "application/json"}
    if binary:
        headers["Inference-Header-Content-Length"] = str(len(head))
    return head + tail, headers


def grpc_message(model: str, inputs: dict[str, tuple[str, np.ndarray]], typed: bool = False, **fields: Any) -> Any:
    """Returns the message of an infer call."""
    message = pb.ModelInferRequest(model_name=model, **fields)
    for name, (datatype, array) in inputs.items():
        tensor = message.inputs.add(name=name, datatype=datatype, shape=array.shape)
        if typed:
            values = list(array.reshape(-1)) if datatype == "BYTES" else array.reshape(-1).tolist()
            getattr(tensor.contents, _CONTENTS[datatype]).extend(values)
        else:
            message.raw_input_contents.append(raw(datatype, array))
    return message


def good_cases(models: Configs) -> Iterator[Case]:
    """Yields requests that should succeed: every model, rows, encoding and choice of outputs, over both protocols."""
    for model, config in models.items():
        names = [output.name for output in config.output]
        for rows in (1, 3) if config.max_batch_size else (1,):
            inputs = _inputs(config, rows)
            path = f"/v2/models/{model}/infer"
            half = any(datatype == "FP16" for datatype, _ in inputs.values())
            for binary_in, binary_out in itertools.product((False, True), repeat=2):
                if half and not (binary_in and binary_out):
                    continue  # JSON has no FP16 in Triton, and its client sends none
                asked = {"parameters": {"binary_data_output": True}} if binary_out else {}
                body, headers = http_body(inputs, binary_in, id=f"id-{rows}", **asked)
                encoding = f"{'binary' if binary_in else 'json'}-{'binary' if binary_out else 'json'}"
                yield Case(f"{model}-{rows}-http-{encoding}", encoding, True, "http", path, headers, body)
            outputs = [{"name": names[-1], "parameters": {"binary_data": True}}]
            body, headers = http_body(inputs, True, outputs=outputs)
            versioned = f"/v2/models/{model}/versions/1/infer"
            yield Case(f"{model}-{rows}-http-one-output", "one output", True, "http", versioned, headers, body)
            yield Case(f"{model}-{rows}-grpc-raw", "raw", True, "grpc", message=grpc_message(model, inputs, id="x"))
            if not half:
                message = grpc_message(model, inputs, typed=True, model_version="1")
                yield Case(f"{model}-{rows}-grpc-typed", "typed", True, "grpc", message=message)
            message = grpc_message(model, inputs)
            message.outputs.add(name=names[-1])
            yield Case(f"{model}-{rows}-grpc-one-output", "one output", True, "grpc", message=message)


def _wrong_inputs(model: str, inputs: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields inputs with a mistake, and the name of the mistake."""
    first = next(iter(inputs))
    datatype, array = inputs[first]
    yield "no input", {}
    yield "missing input", {name: value for name, value in inputs.items() if name != first}
    yield "unknown input", {**inputs, "unknown": (datatype, array)}
    other = "INT32" if datatype != "INT32" else "FP32"
    yield "wrong datatype", {**inputs, first: (other, np.zeros(array.shape, triton_to_np_dtype(other)))}
    yield "unknown datatype", {**inputs, first: ("FP33", array)}
    yield "a dim too many", {**inputs, first: (datatype, array[None])}
    yield "a dim too few", {**inputs, first: (datatype, array[0])}
    if model != "draw_detections" and array.shape[-1] == 4:
        yield "wrong size", {**inputs, first: (datatype, np.concatenate([array, array], -1))}


def bad_cases(models: Configs) -> Iterator[Case]:
    """Yields requests that should fail."""
    for model, config in models.items():
        inputs = _inputs(config, 1)
        path = f"/v2/models/{model}/infer"
        wrong = list(_wrong_inputs(model, inputs))
        if config.max_batch_size:
            rows = config.max_batch_size + 1
            wrong.append(("too many rows", _inputs(config, rows)))
        for kind, changed in wrong:
            body, headers = http_body(changed, True)
            yield Case(f"{model}-http-{kind}", kind, False, "http", path, headers, body)
            yield Case(f"{model}-grpc-{kind}", kind, False, "grpc", message=grpc_message(model, changed))
        body, headers = http_body(inputs, True, outputs=[{"name": "unknown"}])
        yield Case(f"{model}-http-unknown output", "unknown output", False, "http", path, headers, body)
        message = grpc_message(model, inputs)
        message.outputs.add(name="unknown")
        yield Case(f"{model}-grpc-unknown output", "unknown output", False, "grpc", message=message)
        body, headers = http_body(inputs, True)
        for kind, changed_body in (("bytes too few", body[:-1]), ("bytes too many", body + b"x")):
            yield Case(f"{model}-http-{kind}", kind, False, "http", path, headers, changed_body)
        message = grpc_message(model, inputs)
        message.raw_input_contents[0] += b"x"
        yield Case(f"{model}-grpc-bytes too many", "bytes too many", False, "grpc", message=message)
        unknown = f"/v2/models/{model}/versions/9/infer"
        yield Case(f"{model}-http-unknown version", "unknown version", False, "http", unknown, headers, body)
        message = grpc_message(model, inputs, model_version="9")
        yield Case(f"{model}-grpc-unknown version", "unknown version", False, "grpc", message=message)
        for kind, text in (("no JSON", b"{"), ("no object", b"[]"), ("empty body", b""), ("no inputs", b"{}")):
            yield Case(f"{model}-http-{kind}", kind, False, "http", path, {}, text)


def other_cases(models: Configs) -> Iterator[Case]:
    """Yields requests that run no model: facts about the server and the models."""
    for path in ("/v2", "/v2/health/live", "/v2/health/ready"):
        yield Case(f"http-{path}", path, True, "http", path, method="GET")
    for call in ("ServerLive", "ServerReady", "ServerMetadata"):
        yield Case(f"grpc-{call}", call, True, "grpc", message=getattr(pb, f"{call}Request")(), call=call)
    for model, good in [*((model, True) for model in models), ("unknown", False)]:
        for suffix in ("", "/config", "/stats", "/ready", "/versions/1", "/versions/1/stats"):
            yield Case(
                f"http-{model}{suffix}", f"model{suffix}", good, "http", f"/v2/models/{model}{suffix}", method="GET"
            )
        requests = {
            "ModelMetadata": pb.ModelMetadataRequest(name=model), "ModelConfig": pb.ModelConfigRequest(name=model),
            "ModelStatistics": pb.ModelStatisticsRequest(name=model),
        }  # fmt: skip
        for call, message in requests.items():
            yield Case(f"grpc-{model}-{call}", call, good, "grpc", message=message, call=call)
    yield Case("http-index", "index", True, "http", "/v2/repository/index", body=b"{}")
    message = pb.RepositoryIndexRequest()
    yield Case("grpc-index", "index", True, "grpc", message=message, call="RepositoryIndex")
    body, headers = http_body(_inputs(models["my_add"], 1))
    yield Case("http-unknown model", "unknown model", False, "http", "/v2/models/unknown/infer", headers, body)
    message = grpc_message("unknown", _inputs(models["my_add"], 1))
    yield Case("grpc-unknown model", "unknown model", False, "grpc", message=message)
    yield Case("http-unknown route", "unknown route", False, "http", "/v2/unknown", method="GET")
    yield Case("http-wrong method", "wrong method", False, "http", "/v2/models/my_add/infer", method="GET")


def elements(tensor: tuple[str, tuple[int, ...], bytes]) -> list[Any]:
    """Returns the elements of a tensor of an answer."""
    datatype, _, content = tensor
    if datatype == "BYTES":
        return deserialize_bytes_tensor(content).tolist()
    return np.frombuffer(content, triton_to_np_dtype(datatype)).tolist()
