"""Clients of each protocol that keep every byte that comes back: heads, bodies, messages, metadata and errors."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import (
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    serialize_byte_tensor,
    triton_to_np_dtype,
)

from tests.system.running import Server
from tests.system.secret_search import Secret

Array = np.ndarray[Any, np.dtype[Any]]
JSON, BINARY, GRPC, STREAM = "http json", "http binary", "grpc", "grpc stream"
GENERATE, EVENTS, PREDICT = "generate", "generate_stream", "/predict"
#: How many connections a client of HTTP has.
CONNECTIONS = 5
_SERVICE = "/inference.GRPCInferenceService/"


@dataclass
class Asked:
    """A request, and the answer that it must get: outputs, or a part of the text of an error."""

    model: str
    inputs: dict[str, Array]
    expected: dict[str, Array] = field(default_factory=dict)
    error: str = ""
    id: str = ""
    request_id: str = ""  # X-Request-Id
    traceparent: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)  # their parameters, by name
    places: dict[str, dict[str, Any]] = field(default_factory=dict)  # inputs in shared memory, by name
    content: str = ""  # the content type of all inputs and outputs
    file: bytes = b""  # what /predict gets in place of values
    files: tuple[bytes, ...] = ()  # several of them, as a form. Of its answers, "broken" counts those that are errors
    compressed: bool = False  # the bodies of HTTP, in both directions
    typed: bool = False  # inputs of gRPC as lists of their type, not as bytes

    def named(self) -> dict[str, str]:
        """Returns the headers that name the request."""
        headers = {"x-request-id": self.request_id, "traceparent": self.traceparent}
        return {name: value for name, value in headers.items() if value}


@dataclass
class Answer:
    """What came back for a request. `raw` are all of its bytes."""

    raw: bytes
    error: str = ""
    id: str = ""
    outputs: dict[str, Array] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


def checked(asked: Asked, answer: Answer) -> Answer:
    """Returns an answer that is exactly what the request must get."""
    if asked.error:
        assert asked.error in answer.error, f"{asked}: {answer.error or answer.outputs}"
    else:
        assert not answer.error, f"{asked}: {answer.error}"
        assert set(answer.outputs) == set(asked.expected), (asked, answer)
        for name, array in asked.expected.items():
            np.testing.assert_array_equal(answer.outputs[name], array, f"output {name} of {asked}")
        assert answer.id == asked.id, (asked, answer)
    for name, value in asked.named().items():
        assert answer.headers.get(name, value) == value, (asked, answer)
    return answer


# HTTP


def http_request(asked: Asked, protocol: str) -> bytes:
    """Returns a request of HTTP."""
    extra = "".join(f"{name}: {value}\r\n" for name, value in asked.named().items())
    path = f"/v2/models/{asked.model}/"
    if protocol in (GENERATE, EVENTS):
        body, path = _plain(asked), path + protocol
    elif protocol == PREDICT:
        values = {name: array.tolist() for name, array in asked.inputs.items()}
        body, path = asked.file or json.dumps(values).encode(), f"/predict/{asked.model}"
        media = "application/octet-stream" if asked.file else "application/json"
        if asked.files:
            part = b'--cut\r\nContent-Disposition: form-data; name="data"; filename="f"\r\n\r\n%b\r\n'
            body, media = (
                b"".join(part % file for file in asked.files) + b"--cut--\r\n",
                "multipart/form-data; boundary=cut",
            )
        extra += f"Content-Type: {media}\r\n"
    else:
        body, length = _infer(asked, protocol == BINARY)
        extra += f"Inference-Header-Content-Length: {length}\r\n" if protocol == BINARY else ""
        path += "infer"
    if asked.compressed:
        body = gzip.compress(body)
        extra += "Content-Encoding: gzip\r\nAccept-Encoding: gzip\r\n"
    return f"POST {path} HTTP/1.1\r\nHost: t\r\n{extra}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _infer(asked: Asked, binary: bool) -> tuple[bytes, int]:
    inputs, data = [], b""
    for name, array in asked.inputs.items():
        stated: dict[str, Any] = {"name": name, "shape": array.shape, "datatype": np_to_triton_dtype(array.dtype)}
        parameters = dict(asked.places.get(name, {}))
        if asked.content:
            parameters["content_type"] = asked.content
        if not asked.places and binary:
            raw = _raw(array)
            parameters["binary_data_size"] = len(raw)
            data += raw
        elif not asked.places:
            stated["data"] = [_in_json(element, asked.content) for element in array.reshape(-1).tolist()]
        inputs.append({**stated, "parameters": parameters})
    message: dict[str, Any] = {"inputs": inputs, "parameters": {**asked.parameters, "binary_data_output": binary}}
    if asked.id:
        message["id"] = asked.id
    if asked.outputs or asked.content:
        message["outputs"] = [
            {"name": name, "parameters": {**of, **({"content_type": asked.content} if asked.content else {})}}
            for name, of in (asked.outputs or {key: {} for key in asked.expected}).items()
        ]
    head = json.dumps(message).encode()
    return head + data, len(head)


def _plain(asked: Asked) -> bytes:
    """Returns a body of generate. The inputs whose names are in capitals lie in "parameters"."""
    values = {name: array.tolist() for name, array in asked.inputs.items()}
    inner = {name: value for name, value in values.items() if name.isupper()}
    outer = {name: value for name, value in values.items() if not name.isupper()}
    named = {"id": asked.id} if asked.id else {}
    return json.dumps({**outer, **named, "parameters": {**inner, **asked.parameters}}).encode()


def _in_json(element: Any, content: str) -> Any:
    if content == "base64":
        return base64.b64encode(element).decode()
    return element.decode() if isinstance(element, bytes) else element


def _raw(array: Array) -> bytes:
    if array.dtype != np.object_:
        return array.tobytes()
    return bytes(serialize_byte_tensor(array).item()) if array.size else b""


def _array(data: bytes, datatype: str, shape: Any) -> Array:
    if datatype == "BYTES":
        return np.asarray(deserialize_bytes_tensor(data), np.object_).reshape(shape)
    return np.frombuffer(data, triton_to_np_dtype(datatype)).reshape(shape)


async def read_http(reader: asyncio.StreamReader, asked: Asked) -> Answer:
    """Reads the answer to a request."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    if "content-length" in headers:
        body = raw = await reader.readexactly(int(headers["content-length"]))
    else:
        body, raw = await _chunks(reader)
    if asked.compressed:
        assert headers["content-encoding"] == "gzip"
        body = gzip.decompress(body)
        raw += body
    answer = Answer(head + raw, headers=headers)
    if not lines[0].split()[1].startswith("2"):
        answer.error = json.loads(body)["error"]
    elif headers["content-type"].startswith("text/event-stream"):
        for event in body.split(b"\n\n")[:-1]:
            _read_plain(answer, json.loads(event.removeprefix(b"data: ")), asked)
    else:
        length = int(headers.get("inference-header-content-length", len(body)))
        _read_outputs(answer, json.loads(body[:length]), body[length:], asked)
    return answer


async def _chunks(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    body = raw = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        chunk = await reader.readexactly(int(line, 16) + 2)
        raw += line + chunk
        if len(chunk) == 2:
            return body, raw
        body += chunk[:-2]


def _read_outputs(answer: Answer, told: dict[str, Any], data: bytes, asked: Asked) -> None:
    if "results" in told:  # of several files
        good = [result for result in told["results"] if "error" not in result]
        answer.outputs["broken"] = np.array(len(told["results"]) - len(good))
        for result in good:
            _read_plain(answer, result["outputs"], asked)
        return
    if "outputs" not in told or isinstance(told["outputs"], dict):  # of generate or /predict
        _read_plain(answer, told.get("outputs", told), asked)
        return
    answer.id = told.get("id", "")
    for output in told["outputs"]:
        parameters = output.get("parameters", {})
        if "shared_memory_region" in asked.outputs.get(output["name"], {}):
            assert "data" not in output and "binary_data_size" not in parameters
            continue
        if "binary_data_size" in parameters:
            size = parameters["binary_data_size"]
            array, data = _array(data[:size], output["datatype"], output["shape"]), data[size:]
        else:
            array = _from_json(output["data"], output["datatype"], asked.content).reshape(output["shape"])
        answer.outputs[output["name"]] = array
    assert not data


def _read_plain(answer: Answer, told: dict[str, Any], asked: Asked) -> None:
    """Reads an answer of generate, or one of several. Its lists are flat: their shapes are those that must come."""
    answer.error = answer.error or told.get("error", "")
    answer.id = told.get("id", "")
    for name, value in told.items():
        if name in asked.expected:
            datatype = np_to_triton_dtype(asked.expected[name].dtype)
            found = _from_json(value if isinstance(value, list) else [value], datatype, "")
            found = np.concatenate([answer.outputs.get(name, found[:0]).reshape(-1), found.reshape(-1)])
            shape = asked.expected[name].shape
            answer.outputs[name] = found.reshape(shape) if found.size == asked.expected[name].size else found


def _from_json(value: list[Any], datatype: str, content: str) -> Array:
    if datatype != "BYTES":
        return np.array(value, triton_to_np_dtype(datatype))
    return np.array([base64.b64decode(e) if content == "base64" else e.encode() for e in value] or [], np.object_)


# gRPC


def message(asked: Asked) -> bytes:
    """Returns a ModelInferRequest."""
    request = service_pb2.ModelInferRequest(model_name=asked.model, id=asked.id)
    _parameters(request.parameters, asked.parameters)
    for name, array in asked.inputs.items():
        tensor = request.inputs.add(name=name, datatype=np_to_triton_dtype(array.dtype), shape=array.shape)
        _parameters(tensor.parameters, asked.places.get(name, {}))
        if asked.typed:
            lists = {np.float32: tensor.contents.fp32_contents, np.object_: tensor.contents.bytes_contents}
            lists[array.dtype.type].extend(array.reshape(-1).tolist())
        elif not asked.places:
            request.raw_input_contents.append(_raw(array))
    for name, parameters in asked.outputs.items():
        _parameters(request.outputs.add(name=name).parameters, parameters)
    return bytes(request.SerializeToString())


def _parameters(target: Any, parameters: Mapping[str, Any]) -> None:
    kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    for name, value in parameters.items():
        setattr(target[name], kinds[type(value)], value)


def read_message(response: service_pb2.ModelInferResponse, answer: Answer) -> Answer:
    """Reads a ModelInferResponse. It has no data if the outputs are in shared memory."""
    answer.id = response.id
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        if raw:
            answer.outputs[output.name] = _array(raw, output.datatype, list(output.shape))
    return answer


def _metadata(*parts: Any) -> tuple[bytes, dict[str, str]]:
    pairs = [(name, value) for part in parts for name, value in part or ()]
    return repr(pairs).encode(), dict(pairs)


class Client:
    """A client with a secret and with connections of its own."""

    def __init__(self, server: Server, secret: Secret, protocol: str) -> None:
        self.secret = secret
        self.protocol = protocol
        self.answers: list[Answer] = []
        self._server = server
        self._free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter] | None] = asyncio.Queue()
        for _ in range(CONNECTIONS):
            self._free.put_nowait(None)
        # Without this option two channels to one address share a connection.
        self._channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{server.grpc}", options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self._stream: Any = None
        self._reading: asyncio.Task[None] | None = None
        self._pending: deque[asyncio.Future[Answer]] = deque()
        self._writing = asyncio.Lock()

    async def close(self) -> None:
        """Closes the connections. A stream ends when its last request is answered, unless requests were given up."""
        while not self._free.empty():
            if (connection := self._free.get_nowait()) is not None:
                connection[1].close()
        if self._stream is not None:
            assert self._reading is not None
            if self._pending or self._reading.done():
                self._stream.cancel()
            else:
                await self._stream.done_writing()
            await asyncio.wait([self._reading], timeout=20)
            if not self._stream.cancelled():
                raw, _ = _metadata(await self._stream.initial_metadata(), await self._stream.trailing_metadata())
                self.answers.append(Answer(raw))
        await self._channel.close()

    async def ask(self, asked: Asked, protocol: str = "") -> Answer:
        """Sends a request, keeps its answer, and checks that it is the one that the request must get."""
        ask = {GRPC: self._ask_grpc, STREAM: self._ask_stream}.get(protocol or self.protocol, self._ask_http)
        answer = await ask(asked)
        self.answers.append(answer)
        return checked(asked, answer)

    async def _ask_http(self, asked: Asked) -> Answer:
        connection = await self._free.get()
        try:
            if connection is None:
                connection = await asyncio.open_connection("127.0.0.1", self._server.http, limit=1 << 24)
            connection[1].write(http_request(asked, self.protocol))
            return await read_http(connection[0], asked)
        finally:
            self._free.put_nowait(connection)

    async def _ask_grpc(self, asked: Asked) -> Answer:
        call = self._channel.unary_unary(f"{_SERVICE}ModelInfer")(message(asked), metadata=tuple(asked.named().items()))
        try:
            data, error = await call, ""
        except grpc.aio.AioRpcError as failed:
            data, error = b"", str(failed.details())
        raw, headers = _metadata(await call.initial_metadata(), await call.trailing_metadata())
        answer = Answer(data + raw + error.encode(), error=error, headers=headers)
        return answer if error else read_message(service_pb2.ModelInferResponse.FromString(data), answer)

    async def _ask_stream(self, asked: Asked) -> Answer:
        if self._stream is None:
            self._stream = self._channel.stream_stream(f"{_SERVICE}ModelStreamInfer")()
            self._reading = asyncio.create_task(self._read_stream(self._stream))
        answered = asyncio.get_running_loop().create_future()
        async with self._writing:  # the answers come in the order of the requests
            self._pending.append(answered)
            await self._stream.write(message(asked))
        return await answered

    async def _read_stream(self, stream: Any) -> None:
        try:
            async for data in stream:
                self._pending.popleft().set_result(_streamed(data))
        except (Exception, asyncio.CancelledError) as failed:
            for waiting in self._pending:
                if not waiting.done():
                    waiting.set_exception(failed)

    async def responses(self, asked: Asked) -> AsyncIterator[Answer]:
        """Sends a request to a decoupled model, and yields its responses. A client that takes no more of them leaves.

        Checks nothing of them.
        """
        if self.protocol == STREAM:
            call = self._channel.stream_stream(f"{_SERVICE}ModelStreamInfer")(metadata=tuple(asked.named().items()))
            await call.write(message(asked))
            await call.done_writing()
            try:
                async for data in call:
                    self.answers.append(_streamed(data))
                    yield self.answers[-1]
            finally:
                call.cancel()
            return
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.http)
        try:
            writer.write(http_request(asked, EVENTS))
            self.answers.append(Answer(await reader.readuntil(b"\r\n\r\n")))
            while (size := int(line := await reader.readuntil(b"\r\n"), 16)) > 0:
                chunk = await reader.readexactly(size + 2)
                self.answers.append(Answer(line + chunk))
                for event in chunk[:-2].split(b"\n\n")[:-1]:
                    answer = Answer(event)
                    _read_plain(answer, json.loads(event.removeprefix(b"data: ")), asked)
                    yield answer
        finally:
            writer.close()


def _streamed(data: bytes) -> Answer:
    response = service_pb2.ModelStreamInferResponse.FromString(data)
    answer = Answer(data, error=response.error_message)
    return answer if answer.error else read_message(response.infer_response, answer)
