"""Makes requests from the configs of models, good and bad, and reads the answers of a server in one form.

The same requests go to Triton and to the gateway, so that their answers can be compared.
"""

from __future__ import annotations

import base64
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

EXAMPLES = ROOT / "docs/examples"
PICTURE = (EXAMPLES / "digits.jpg").read_bytes()
# The files that a model takes, by the name of its input. Other inputs `data` take PICTURE.
FILES = {
    "keyword_spotter": {"data": "keywords/yes.wav"},
    "pointcloud_segmenter": {"data": "room.ply"},
    "bev_segmenter": {camera: f"street/{camera}.jpg" for camera in ("front", "left", "back", "right")},
}
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
                call = getattr(GRPCInferenceServiceStub(channel), self.call)
                if self.call == "ModelStreamInfer":
                    (streamed,) = call(iter([self.message]), timeout=30)
                    if streamed.error_message:
                        return Answer("ERROR", text=streamed.error_message)
                    answer = streamed.infer_response
                else:
                    answer = call(self.message, timeout=30)
            except grpc.RpcError as error:
                return Answer(error.code().name, text=error.details())
        if self.call not in ("ModelInfer", "ModelStreamInfer"):
            return Answer("OK", keys={name.name for name, _ in answer.ListFields()})
        read = Answer("OK", facts={"id": answer.id, "model": answer.model_name, "version": answer.model_version})
        for tensor, raw in zip(answer.outputs, answer.raw_output_contents, strict=True):
            read.tensors[tensor.name] = (tensor.datatype, tuple(tensor.shape), bytes(raw))
        return read


def _read_http(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    length = int(headers.get("Inference-Header-Content-Length", len(body)))
    head, binary = body[:length], body[length:]
    if headers.get("Content-Type", "").startswith("text/event-stream"):
        events = [json.loads(event.removeprefix(b"data: ")) for event in body.split(b"\n\n") if event]
        return Answer(str(status), facts={"events": events})
    stated = json.loads(head) if head else {}
    if not isinstance(stated, dict) or "outputs" not in stated or "model_name" not in stated or "inputs" in stated:
        return Answer(str(status), keys=set(stated) if isinstance(stated, dict) else set())
    facts = {"id": stated.get("id", ""), "model": stated["model_name"], "version": stated["model_version"]}
    answer = Answer(str(status), keys=set(stated), facts=facts)
    for output in stated["outputs"]:
        datatype, shape = output["datatype"], tuple(output["shape"])
        if "data" in output:
            content = _bytes_of(datatype, output["data"])
        elif "parameters" not in output:  # it is in shared memory
            content = b""
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
        files = FILES.get(config.name, {"data": "digits.jpg"})
        if tensor.name in files and datatype == "UINT8":
            array = np.frombuffer((EXAMPLES / files[tensor.name]).read_bytes(), np.uint8)
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
            message = grpc_message(model, inputs, id="x")
            yield Case(f"{model}-{rows}-grpc-raw", "raw", True, "grpc", message=message)
            yield Case(f"{model}-{rows}-stream", "stream", True, "grpc", message=message, call="ModelStreamInfer")
            if not half:
                message = grpc_message(model, inputs, typed=True, model_version="1")
                yield Case(f"{model}-{rows}-grpc-typed", "typed", True, "grpc", message=message)
            message = grpc_message(model, inputs)
            message.outputs.add(name=names[-1])
            yield Case(f"{model}-{rows}-grpc-one-output", "one output", True, "grpc", message=message)
            for count in (1, 3, 1000) if _classified(config) else ():
                yield from _classifying(model, inputs, _classified(config), count, "classes", True)
        if _takes_an_empty_body(config):
            path = f"/v2/models/{model}/infer"
            yield Case(f"{model}-http-empty body", "empty body", True, "http", path, {}, b"")
            headers = {"Inference-Header-Content-Length": "0"}
            yield Case(f"{model}-http-empty raw body", "empty body", True, "http", path, headers, b"")


def _takes_files(config: Any) -> bool:
    files = FILES.get(config.name, {"data": ""})
    return any(tensor.name in files and tensor.data_type == pb.model__config__pb2.TYPE_UINT8 for tensor in config.input)


def _takes_an_empty_body(config: Any) -> bool:
    """Returns whether an empty body is the data of the model's only input: an empty tensor, or an empty text."""
    if len(config.input) != 1 or _takes_files(config):
        return False
    dims = list(config.input[0].dims)
    return dims == [1] if config.input[0].data_type == pb.model__config__pb2.TYPE_STRING else dims.count(-1) == 1


def _classified(config: Any) -> list[str]:
    """Returns the outputs that Triton classifies in a defined order. It refuses BOOL and FP16, ends at strings, and
    orders equal elements only if they are few."""
    types = pb.model__config__pb2
    refused = (types.TYPE_BOOL, types.TYPE_FP16, types.TYPE_STRING)
    few = [tensor for tensor in config.output if np.prod([abs(3 if n < 0 else n) for n in tensor.dims]) <= 16]
    return [] if _takes_files(config) else [tensor.name for tensor in few if tensor.data_type not in refused]


def with_parameters(tensor: Any, parameters: Mapping[str, Any]) -> Any:
    """Returns a tensor of a message with parameters."""
    fields = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    for key, value in parameters.items():
        setattr(tensor.parameters[key], fields[type(value)], value)
    return tensor


def _classifying(
    model: str, inputs: dict[str, Any], outputs: list[str], count: Any, kind: str, good: bool
) -> Iterator[Case]:
    """Yields requests for classes of outputs over both protocols, with binary data and without."""
    for binary in (False, True):
        asked = [{"name": name, "parameters": {"classification": count, "binary_data": binary}} for name in outputs]
        body, headers = http_body(inputs, binary, outputs=asked)
        id = f"{model}-http-{kind}-{count}-{binary}"
        yield Case(id, kind, good, "http", f"/v2/models/{model}/infer", headers, body)
    message = grpc_message(model, inputs)
    for name in outputs:
        with_parameters(message.outputs.add(name=name), {"classification": count})
    yield Case(f"{model}-grpc-{kind}-{count}", kind, good, "grpc", message=message)


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
        for kind, text in (("no JSON", b"{"), ("no object", b"[]"), ("no inputs", b"{}")):
            yield Case(f"{model}-http-{kind}", kind, False, "http", path, {}, text)
        if not _takes_an_empty_body(config) and not _takes_files(config):
            yield Case(f"{model}-http-empty body", "empty body", False, "http", path, {}, b"")
        if not _takes_files(config):
            counts = {"no classes": 0, "negative classes": -1, "classes as text": "2", "classes as a boolean": True}
            for kind, count in counts.items():
                yield from _classifying(model, inputs, [config.output[0].name], count, kind, False)


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


REGION_BYTES, OUTPUT_AT = 4096, 1024


def _register(name: str, key: str, size: int, kind: str, good: bool) -> Iterator[Case]:
    path = f"/v2/systemsharedmemory/region/{name}/register"
    body = json.dumps({"key": key, "offset": 0, "byte_size": size}).encode()
    yield Case(f"http-{kind}", kind, good, "http", path, body=body)
    # Triton 2.51 registers each key once, so the other protocol has another key for the same file.
    message = pb.SystemSharedMemoryRegisterRequest(name=f"{name}_grpc", key=key.removeprefix("/"), byte_size=size)
    yield Case(f"grpc-{kind}", kind, good, "grpc", message=message, call="SystemSharedMemoryRegister")


def shared_memory_cases(key: str, short: str) -> Iterator[Case]:
    """Yields requests that use shared memory, in this order. `key` names REGION_BYTES bytes of it, and outputs go to
    OUTPUT_AT. `short` names fewer bytes."""
    yield from _unregister("")
    yield from _register("region", key, REGION_BYTES, "register shared memory", True)
    yield from _register("region", key, REGION_BYTES, "register shared memory again", False)
    yield from _register("none", "/no_such_key", 8, "unknown shared memory", False)
    # For a key that it knows, Triton 2.51 looks at a file descriptor that it has closed.
    yield from _register("long", short, REGION_BYTES + 1, "too much shared memory", False)
    for name, good in (("region", True), ("unknown", False)):
        path = f"/v2/systemsharedmemory/region/{name}/status"
        yield Case(f"http-status-{name}", "status of shared memory", good, "http", path, method="GET")
        message = pb.SystemSharedMemoryStatusRequest(name=f"{name}_grpc")
        call = "SystemSharedMemoryStatus"
        yield Case(f"grpc-status-{name}", "status of shared memory", good, "grpc", message=message, call=call)
    yield from _shared_tensors()
    yield from _cuda()
    for name in ("unknown", "region", ""):
        yield from _unregister(name)


def _unregister(name: str) -> Iterator[Case]:
    kind = "unregister shared memory"
    path = f"/v2/systemsharedmemory{f'/region/{name}' if name else ''}/unregister"
    yield Case(f"http-unregister-{name}", kind, True, "http", path, body=b"")
    message = pb.SystemSharedMemoryUnregisterRequest(name=name)
    yield Case(f"grpc-unregister-{name}", kind, True, "grpc", message=message, call="SystemSharedMemoryUnregister")


def _cuda() -> Iterator[Case]:
    kind = "CUDA shared memory"
    yield Case("http-cuda-status", kind, True, "http", "/v2/cudasharedmemory/status", method="GET")
    yield Case("http-cuda-unregister", kind, True, "http", "/v2/cudasharedmemory/unregister", body=b"")
    path = "/v2/cudasharedmemory/region/unknown/status"
    yield Case("http-cuda-unknown", kind, False, "http", path, method="GET")
    body = json.dumps({"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 8}).encode()
    path = "/v2/cudasharedmemory/region/r/register"
    yield Case("http-cuda-register", f"register {kind}", False, "http", path, body=body)
    for call, message, good in (
        ("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest(), True),
        ("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest(name="unknown"), False),
        ("CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest(), True),
    ):
        yield Case(f"grpc-{call}-{good}", kind, good, "grpc", message=message, call=call)
    message = pb.CudaSharedMemoryRegisterRequest(name="r", raw_handle=b"handle", byte_size=8)
    yield Case(
        "grpc-cuda-register", f"register {kind}", False, "grpc", message=message, call="CudaSharedMemoryRegister"
    )


def _shared_tensors() -> Iterator[Case]:
    """Yields infer requests whose tensors are in shared memory."""
    place = {"shared_memory_region": "region", "shared_memory_byte_size": 16, "shared_memory_offset": 0}
    output = {**place, "shared_memory_offset": OUTPUT_AT}
    larger = {**output, "shared_memory_byte_size": 500}
    text = {**place, "shared_memory_byte_size": 23, "shared_memory_offset": 64}
    only_size = {"shared_memory_byte_size": 16}
    wrong_type = {**place, "shared_memory_byte_size": "16"}
    for kind, model, of_input, of_output, good in (
        ("an input in shared memory", "double", place, {}, True),
        ("tensors in shared memory", "double", place, output, True),
        ("tensors in shared memory", "double", place, larger, True),
        ("tensors in shared memory", "identity_BYTES", text, {**output, "shared_memory_byte_size": 23}, True),
        (
            "a region of shared memory that is unknown",
            "double",
            {**place, "shared_memory_region": "unknown"},
            {},
            False,
        ),
        ("too many bytes of shared memory", "double", {**place, "shared_memory_byte_size": 20}, {}, False),
        ("too few bytes of shared memory", "double", {**place, "shared_memory_byte_size": 12}, {}, False),
        ("a place outside of shared memory", "double", {**place, "shared_memory_offset": 4088}, {}, False),
        ("a place far outside of shared memory", "double", {**place, "shared_memory_offset": 1 << 40}, {}, False),
        ("no size in shared memory", "double", {"shared_memory_region": "region"}, {}, False),
        ("a size in shared memory that is text", "double", wrong_type, {}, False),
        ("too little shared memory for an output", "double", place, {**output, "shared_memory_byte_size": 15}, False),
        ("no size in shared memory for an output", "double", place, {"shared_memory_region": "region"}, False),
        ("no region of shared memory for an output", "double", place, only_size, False),
    ):
        yield from _shared_request(kind, model, of_input, of_output, good)
    path = "/v2/models/double/infer"
    both = {"outputs": [{"name": "y", "parameters": {**output, "binary_data": True}}]}
    kind = "binary_data and shared memory"
    yield Case(f"http-{kind}", kind, False, "http", path, body=_shared_body(place, **both))
    kind = "data and shared memory"
    yield Case(f"http-{kind}", kind, False, "http", path, body=_shared_body(place, data=[1, 2, 3, 4]))
    kind = "no region of shared memory"
    yield Case(f"http-{kind}", kind, False, "http", path, body=_shared_body(only_size, data=[1, 2, 3, 4]))
    message = _shared_message("double", only_size, {})
    message.raw_input_contents.append(bytes(16))
    yield Case(f"grpc-{kind}", kind, False, "grpc", message=message)
    message = _shared_message("double", place, {})
    message.inputs[0].contents.fp32_contents.extend([1, 2, 3, 4])
    yield Case("grpc-data and shared memory", "data and shared memory", False, "grpc", message=message)
    message = _shared_message("double", place, {})
    message.raw_input_contents.append(bytes(16))
    kind = "raw data and shared memory"
    yield Case(f"grpc-{kind}", kind, False, "grpc", message=message)


def _shared_body(of_input: dict[str, Any], model: str = "double", data: Any = None, **fields: Any) -> bytes:
    datatype = "BYTES" if model == "identity_BYTES" else "FP32"
    tensor = {"name": "x", "datatype": datatype, "shape": [1, 4], "parameters": of_input}
    return json.dumps({"inputs": [tensor if data is None else {**tensor, "data": data}], **fields}).encode()


def _shared_message(model: str, of_input: dict[str, Any], of_output: dict[str, Any]) -> Any:
    message = pb.ModelInferRequest(model_name=model)
    datatype = "BYTES" if model == "identity_BYTES" else "FP32"
    with_parameters(message.inputs.add(name="x", datatype=datatype, shape=[1, 4]), of_input)
    with_parameters(message.outputs.add(name="y"), of_output)
    return message


def _shared_request(
    kind: str, model: str, of_input: dict[str, Any], of_output: dict[str, Any], good: bool
) -> Iterator[Case]:
    body = _shared_body(of_input, model, outputs=[{"name": "y", "parameters": of_output}])
    yield Case(f"http-{kind}", kind, good, "http", f"/v2/models/{model}/infer", body=body)
    message = _shared_message(model, of_input, of_output)
    yield Case(f"grpc-{kind}", kind, good, "grpc", message=message)


def _load(kind: str, model: str, good: bool, **parameters: Any) -> Iterator[Case]:
    """Yields a request to load a model over both protocols. A file is bytes."""
    plain = {
        key: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for key, value in parameters.items()
    }
    body = json.dumps({"parameters": plain} if plain else {}).encode()
    yield Case(f"http-{kind}", kind, good, "http", f"/v2/repository/models/{model}/load", body=body)
    message = pb.RepositoryModelLoadRequest(model_name=model)
    for key, value in parameters.items():
        setattr(message.parameters[key], "bytes_param" if isinstance(value, bytes) else "string_param", value)
    yield Case(f"grpc-{kind}", kind, good, "grpc", message=message, call="RepositoryModelLoad")


def _unload(model: str, good: bool) -> Iterator[Case]:
    kind = f"unload {model}"
    yield Case(f"http-{kind}", kind, good, "http", f"/v2/repository/models/{model}/unload", body=b"")
    message = pb.RepositoryModelUnloadRequest(model_name=model)
    yield Case(f"grpc-{kind}", kind, good, "grpc", message=message, call="RepositoryModelUnload")


def control_cases(file: bytes) -> Iterator[Case]:
    """Yields requests that change which models serve, in this order. `later` and `double` are in the repository, and
    `file` is an ONNX model."""
    config = '{"max_batch_size": 4, "backend": "onnxruntime"}'
    for body in (b"", b"{}", b'{"ready": true}', b'{"ready": false}'):
        yield Case(f"http-index-{body!r}", "index", True, "http", "/v2/repository/index", body=body)
    yield Case(
        "http-index-number", "ready that is no boolean", False, "http", "/v2/repository/index", body=b'{"ready": 1}'
    )
    for _ in range(2):
        yield from _load("load", "later", True)
    yield from _load("load with a config", "later", True, config=config)
    yield from _load("an unknown model to load", "unknown", False)
    yield from _load("a broken model to load", "broken", False)
    yield from _load("a load whose config is no config", "later", False, config="{")
    yield from _load("a load whose config is no config", "later", False, config='{"nope": 1}')
    yield from _load("a load of files without a config", "later", False, **{"file:1/model.onnx": file})
    load = "/v2/repository/models/later/load"
    for kind, body in (
        ("a load that is no JSON", b"{"),
        ("a load that is a list", b"[]"),
        ("a load with a parameter of the wrong type", b'{"parameters": {"config": {}}}'),
        ("a load with a parameter of the wrong type", b'{"parameters": []}'),
    ):
        yield Case(f"http-{kind}", kind, False, "http", load, body=body)
    for model in ("later", "unknown"):
        yield from _unload(model, True)
    yield Case(
        "http-ready",
        "readiness of a model that was unloaded",
        False,
        "http",
        "/v2/models/later/ready",
        method="GET",
    )
    unload = "/v2/repository/models/later/unload"
    body = b'{"parameters": {"unload_dependents": "x"}}'
    yield Case("http-dependents", "unload_dependents that is no boolean", False, "http", unload, body=body)
    message = pb.RepositoryIndexRequest(ready=True)
    yield Case("grpc-index", "index", True, "grpc", message=message, call="RepositoryIndex")


def settings_cases() -> Iterator[Case]:
    """Yields requests that read and change the settings of traces and logs."""
    for model in ("", "double", "unknown"):
        good, of = model != "unknown", " of an unknown model" if model == "unknown" else ""
        path = f"/v2/models/{model}/trace/setting" if model else "/v2/trace/setting"
        yield Case(f"http-trace-{model}", f"trace settings{of}", good, "http", path, method="GET")
        message = pb.TraceSettingRequest(model_name=model)
        yield Case(f"grpc-trace-{model}", f"trace settings{of}", good, "grpc", message=message, call="TraceSetting")
        for kind, key, value, fine in (
            ("trace settings", "trace_level", ["TIMESTAMPS"], True),
            ("trace settings", "trace_rate", ["5"], True),
            ("trace settings", "trace_count", ["3"], True),
            ("trace settings", "log_frequency", ["2"], True),
            ("trace settings", "trace_level", ["OFF"], True),
            ("a trace level that is none", "trace_level", ["NOPE"], False),
            ("a trace rate that is no number", "trace_rate", ["x"], False),
            ("a trace rate below one", "trace_rate", ["-1"], False),
            ("a trace setting that is none", "nope", ["1"], False),
        ):
            said = f"trace settings{of}" if of else kind
            one = value if key == "trace_level" else value[0]
            body = json.dumps({key: one}).encode()
            yield Case(f"http-{kind}-{model}-{one}", said, fine and good, "http", path, body=body)
            message = pb.TraceSettingRequest(model_name=model)
            message.settings[key].value.extend(value)
            yield Case(f"grpc-{kind}-{model}-{one}", said, fine and good, "grpc", message=message, call="TraceSetting")
    yield Case("http-log", "log settings", True, "http", "/v2/logging", method="GET")
    yield Case("grpc-log", "log settings", True, "grpc", message=pb.LogSettingsRequest(), call="LogSettings")
    for kind, key, value, fine in (
        ("log settings", "log_info", True, True),
        ("log settings", "log_verbose_level", 1, True),
        ("log settings", "log_verbose_level", 0, True),
        ("log settings", "log_format", "default", True),
        ("a log setting of the wrong type", "log_info", "x", False),
        ("a log setting of the wrong type", "log_verbose_level", "x", False),
        ("a log format that is none", "log_format", "nope", False),
        ("a log setting that is none", "nope", True, False),
    ):
        body = json.dumps({key: value}).encode()
        yield Case(f"http-{kind}-{key}-{value}", kind, fine, "http", "/v2/logging", body=body)
        message = pb.LogSettingsRequest()
        of_type = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
        setattr(message.settings[key], of_type, value)
        yield Case(f"grpc-{kind}-{key}-{value}", kind, fine, "grpc", message=message, call="LogSettings")


def generate_cases() -> Iterator[Case]:
    """Yields requests to `generate` and `generate_stream`. `text` takes [batch, 1] strings, `single` numbers."""
    for route in ("generate", "generate_stream"):
        for kind, model, value, good in (
            (route, "text", {"x": "hello"}, True),
            (route, "text", {"x": ["hello"]}, True),
            (route, "text", {"x": "hello", "id": "7", "parameters": {"temperature": 1}, "stream": False}, True),
            (route, "single", {"x": [1, 2]}, True),
            (route, "single", {"x": 1}, True),
            (f"{route} without an input", "text", {"y": "a"}, False),
            (f"{route} of an unknown model", "unknown", {"x": 1}, False),
            (f"{route} with a wrong value", "text", {"x": {"a": 1}}, False),
            (f"{route} with a wrong value", "text", {"x": None}, False),
            (f"{route} with a wrong value", "single", {"x": "a"}, False),
            (f"{route} of no object", "text", [], False),
        ):
            path = f"/v2/models/{model}/{route}"
            yield Case(f"http-{kind}-{value}", kind, good, "http", path, body=json.dumps(value).encode())
        yield Case(
            f"http-{route}-no JSON", f"{route} of no object", False, "http", f"/v2/models/text/{route}", body=b"{"
        )
