"""A real gateway that is fuzzed, and the rules that hold whatever a client sends.

`Fuzzed.check` is one example's rules: each answer has a status that the protocol documents for what a client can do
wrong, an error is a sentence and no traceback, and the gateway lives. `Fuzzed.check_rest` is what must be so when
nothing is under way: no request, no byte of a message, no file is held, and good requests get the right answers.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from tests.service.onnx_models import batching, double, identity, ragged_sum, write_config
from tests.system.running import ROOT, Server, running

#: What a mistake of a client may be answered with. 501: a part of the protocol that the gateway doesn't have; 503: a
#: model that isn't loaded; 504: a timeout in the request.
STATUSES = frozenset({200, 307, 400, 403, 404, 405, 406, 411, 413, 414, 415, 417, 431, 499, 501, 503, 504, 505})
CODES = frozenset(grpc.StatusCode) - {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS}
#: What no text for a client may have: it would come from the inside. Protobuf's library says "got 'NoneType'" of a null.
INSIDE = re.compile(r"Traceback|object at 0x|\.py\b.*line \d|site-packages|(?<!got ')\bNoneType\b|<class ")
MODELS = ("double", "plain", "ragged", "pipeline", "cached", "identity_BYTES", "identity_BOOL", "identity_INT64")
FILE_MODELS = ("keyword_spotter", "pointcloud_segmenter", "digit_detector_pipeline")
LIMITS = {"OPGATE_MAX_BODY_BYTES": "1000000", "OPGATE_MAX_DECOMPRESSED_BYTES": "1000000"}
#: Shared memory that is registered at the start.
REGION, REGION_BYTES = "shared", 4096
SERVICE = "/inference.GRPCInferenceService/"
PIPELINE = """platform: "ensemble" max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [
  { model_name: "double" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "mid" } },
  { model_name: "double" model_version: -1 input_map { key: "x" value: "mid" } output_map { key: "y" value: "y" } } ] }"""


@dataclass(frozen=True)
class Answer:
    """An answer over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes


class Fuzzed:
    """A gateway, and a client that sends anything."""

    def __init__(self, server: Server, memory: str) -> None:
        """`memory` is the name of the shared memory to register."""
        self.server = server
        self.channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc}")
        self.read = 0  # lines of the log that were looked at
        self.check_good_requests()
        region = {"key": memory, "offset": 0, "byte_size": REGION_BYTES}
        route = f"/v2/systemsharedmemory/region/{REGION}/register"
        assert self.post(route, json.dumps(region).encode()).status == 200
        self.files = self._files()

    def send(self, data: bytes, cuts: tuple[int, ...] = ()) -> list[Answer]:
        """Sends bytes on a new connection, in pieces, and ends its side. Returns all answers."""
        received = b""
        with socket.create_connection(("127.0.0.1", self.server.http), timeout=20) as connection:
            try:
                for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
                    connection.sendall(data[start:end])
                connection.shutdown(socket.SHUT_WR)
                while piece := connection.recv(1 << 16):
                    received += piece
            except (ConnectionResetError, BrokenPipeError):
                pass  # what came before counts
        return list(_answers(received))

    def post(self, path: str, body: bytes, headers: dict[str, str] | None = None, method: str = "POST") -> Answer:
        """Sends one request whose head is good."""
        lines = [f"{method} {path} HTTP/1.1", "Host: t", "Connection: close", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        (answer,) = self.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        return answer

    def call(self, method: str, message: bytes) -> tuple[grpc.StatusCode, str | bytes]:
        """Calls a unary method of gRPC. Returns the code, and the answer or the text of the error."""
        try:
            return grpc.StatusCode.OK, self.channel.unary_unary(SERVICE + method)(message, timeout=20)
        except grpc.RpcError as error:
            return error.code(), error.details()

    def stream(self, messages: list[bytes]) -> tuple[grpc.StatusCode, list[bytes] | str]:
        """Sends messages to ModelStreamInfer. Returns the code, and the answers or the text of the error."""
        call = self.channel.stream_stream(SERVICE + "ModelStreamInfer")(iter(messages), timeout=20)
        try:
            return grpc.StatusCode.OK, list(call)
        except grpc.RpcError as error:
            return error.code(), error.details()

    def check(self, answer: Answer) -> None:
        """Checks an answer over HTTP."""
        assert answer.status in STATUSES, answer
        if answer.status >= 400 and answer.headers.get("content-type") == "application/json":
            body = json.loads(answer.body)
            assert list(body) == ["error"] and body["error"], answer
            assert not INSIDE.search(body["error"]), answer
        elif answer.status >= 400:
            assert not INSIDE.search(answer.body.decode("latin-1")), answer
        if answer.status == 200 and answer.headers.get("content-type") == "application/json":
            json.loads(answer.body)
        self.check_log()

    def check_call(self, code: grpc.StatusCode, answer: Any) -> None:
        """Checks how a call of gRPC ended."""
        assert code in CODES, (code, answer)
        assert code is grpc.StatusCode.OK or not INSIDE.search(answer), (code, answer)
        self.check_log()

    def check_log(self) -> None:
        """Checks that nothing failed inside, as far as the log is there."""
        assert self.server.process.poll() is None, "the gateway died:\n" + "".join(self.server.log[-20:])
        lines, self.read = self.server.log[self.read :], len(self.server.log)
        bad = [line for line in lines if "Traceback" in line]
        assert not bad, "\n".join(bad)

    def check_good_requests(self) -> None:
        """Checks that a good request gets the right answer, over both protocols."""
        tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4.5]}
        answer = self.post("/v2/models/double/infer", json.dumps({"inputs": [tensor]}).encode())
        assert answer.status == 200, answer
        assert json.loads(answer.body)["outputs"][0]["data"] == [2, 4, 6, 9], answer
        asked = service_pb2.ModelInferRequest(model_name="double", raw_input_contents=[np.ones(4, "<f4").tobytes()])
        asked.inputs.add(name="x", datatype="FP32", shape=[1, 4])
        code, answered = self.call("ModelInfer", asked.SerializeToString())
        assert code is grpc.StatusCode.OK, answered
        (raw,) = service_pb2.ModelInferResponse.FromString(answered).raw_output_contents
        assert raw == (2 * np.ones(4, "<f4")).tobytes()

    def check_rest(self) -> None:
        """Checks that nothing of what was sent remains."""
        self.check_good_requests()
        wanted = {"opgate_held_bytes": 0.0, "opgate_running_requests": 0.0}
        for attempt in range(200):
            numbers = {name: self._number(name) for name in wanted}
            if numbers == wanted and self._files() <= self.files:
                break
            time.sleep(0.05 if attempt else 0)
        assert numbers == wanted
        assert self._files() <= self.files, "files stay open"
        self.check_log()

    def _number(self, name: str) -> float:
        (line,) = [line for line in self.server.get("/metrics").splitlines() if line.startswith(name + " ")]
        return float(line.split()[1])

    def _files(self) -> int:
        return len(list(Path(f"/proc/{self.server.process.pid}/fd").iterdir()))


def _answers(received: bytes) -> Iterator[Answer]:
    while received:
        head, separator, received = received.partition(b"\r\n\r\n")
        assert separator, head
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status, *_ = first.split(" ", 2)
        assert version == "HTTP/1.1", first
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if status == "100":
            continue
        if headers.get("transfer-encoding") == "chunked":
            body, received = _chunks(received)
        else:
            size = int(headers.get("content-length", 0))
            body, received = received[:size], received[size:]
            assert len(body) == size, "an answer is cut off"
        match headers.get("content-encoding"):
            case "gzip":
                body = gzip.decompress(body)
            case "deflate":
                body = zlib.decompress(body)
        yield Answer(int(status), headers, body)


def _chunks(received: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, received = received.partition(b"\r\n")
        count = int(size, 16)
        body, received = body + received[:count], received[count + 2 :]
        if not count:
            return body, received


def make_repository(folder: Path) -> Path:
    """Writes the models that are fuzzed to a folder, and returns it."""
    double(folder, "double", config=batching(max_batch_size=16))
    double(folder, "plain", config='backend: "onnxruntime"', shape=("a", "b"))
    double(folder, "cached", config=batching(max_batch_size=16) + "\nresponse_cache { enable: true }")
    ragged_sum(folder, "ragged")
    for datatype in ("BYTES", "BOOL", "INT64"):
        identity(folder, f"identity_{datatype}", datatype, config=batching())
    write_config(folder, "pipeline", PIPELINE)
    double(folder, "scratch", config=batching(max_batch_size=16))  # the only one that is loaded with other configs
    return folder


@contextmanager
def fuzzed(folder: Path, with_files: bool = True) -> Iterator[Fuzzed]:
    """Runs a gateway with a repository in an empty folder. `with_files`: also with models that take files."""
    repositories = str(make_repository(folder))
    models = [*MODELS, "scratch"]
    if with_files:
        repositories += f",{ROOT / 'model_repository'}"
        models += FILE_MODELS
    options = ["--model-control-mode", "explicit", *(word for name in models for word in ("--load-model", name))]
    memory = shared_memory.SharedMemory(create=True, size=REGION_BYTES)
    try:
        with running(repositories, *options, env=LIMITS) as server:
            fuzzing = Fuzzed(server, memory.name)
            yield fuzzing
            fuzzing.channel.close()
    finally:
        memory.close()
        memory.unlink()
