"""Clients that leave at any moment of any kind of request: the model serves on, and nothing is left of them.

A client leaves in the head, in the body, when all is sent, before the first byte of an answer, after it, between two
responses and after the last one, by closing or with a reset. Over gRPC it cancels, or its connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.grpc import service_pb2

from tests.rpc.raw import Raw, headers, message
from tests.service.onnx_models import endless
from tests.system.conftest import wait_until
from tests.system.resources import resources, settles
from tests.system.running import Server, running
from tests.system.test_python_models import write

COUNT = 40  # responses of a stream, more than may wait for a client
TENSORS = """input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
    output [ { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] } ]"""
DECOUPLED = "model_transaction_policy { decoupled: true }"

#: Sends its responses and never asks whether somebody wants them.
SENDS = """
import threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

def number(i):
    return pb_utils.InferenceResponse([pb_utils.Tensor("NUMBER", np.array([i], np.int32))])

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy().reshape(-1)[0])
            send = lambda sender=request.get_response_sender(), count=count: self.send(sender, count)
            threading.Thread(target=send).start() if THREADS else send()

    def send(self, sender, count):
        for i in range(count):
            time.sleep(0.03 if i % 16 == 0 else 0.001)
            sender.send(number(i))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
#: Answers after a while, or asks another model.
WAITS = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.04)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        count = pb_utils.get_input_tensor_by_name(request, "COUNT")
        if CALLS:
            asked = pb_utils.InferenceRequest(model_name="waits", requested_output_names=["NUMBER"], inputs=[count])
            asked.exec()
        return pb_utils.InferenceResponse([pb_utils.Tensor("NUMBER", count.as_numpy())])
"""
MODELS = {
    "sends": (SENDS.replace("THREADS", "False"), TENSORS + DECOUPLED),
    "threads": (SENDS.replace("THREADS", "True"), TENSORS + DECOUPLED),
    "waits": (WAITS.replace("CALLS", "False"), TENSORS),
    "calls": (WAITS.replace("CALLS", "True"), TENSORS),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("leavers")
    for name, (source, config) in MODELS.items():
        write(folder, name, config, source)
    endless(folder, "turns", config='backend: "onnxruntime"', times=40_000)
    with running(folder, "--allow-python-models") as started:
        yield started


def body(model: str) -> bytes:
    if model == "turns":
        tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 1]}
    else:
        tensor = {"name": "COUNT", "shape": [1], "datatype": "INT32", "data": [COUNT]}
    return json.dumps({"inputs": [tensor]}).encode()


def post(path: str, content: bytes, chunked: bool = False) -> tuple[bytes, bytes]:
    """The head and the body of a request."""
    head = f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
    if chunked:
        return (head + "Transfer-Encoding: chunked\r\n\r\n").encode(), b"%x\r\n%b\r\n0\r\n\r\n" % (
            len(content),
            content,
        )
    return (head + f"Content-Length: {len(content)}\r\n\r\n").encode(), content


PLAIN = json.dumps({"COUNT": [COUNT]}).encode()
HTTP = {
    "infer": lambda model: post(f"/v2/models/{model}/infer", body(model)),
    "chunked": lambda model: post(f"/v2/models/{model}/infer", body(model), chunked=True),
    "generate": lambda model: post(f"/v2/models/{model}/generate", PLAIN),
    "generate_stream": lambda model: post(f"/v2/models/{model}/generate_stream", PLAIN),
    "predict": lambda model: post(f"/predict/{model}", PLAIN),
}
KINDS = [
    *[("generate_stream", model) for model in ("sends", "threads", "waits", "calls")],
    *[(way, model) for way in ("infer", "chunked", "generate", "predict") for model in ("waits", "calls")],
    *[(way, "turns") for way in ("infer", "chunked")],
]
#: Seconds after which a client leaves that has sent everything. Runs take 40 ms and more.
MOMENTS = [0, 0.001, 0.005, 0.02, 0.039, 0.041, 0.05, 0.08, 0.15]


def leave_over_http(server: Server, head: bytes, content: bytes, reset: bool) -> None:
    whole = head + content
    cuts = [1, len(head) // 2, len(head) - 1, len(head), len(head) + 1, len(head) + len(content) // 2, len(whole) - 1]
    for sent, seconds, reads in [
        *[(cut, 0.002, 0) for cut in cuts],
        *[(len(whole), seconds, 0) for seconds in MOMENTS],
        *[(len(whole), 0, size) for size in (1, 20, 300, 2000, 1 << 20)],
    ]:
        with socket.create_connection(("127.0.0.1", server.http), timeout=10) as client:
            client.sendall(whole[:sent])
            time.sleep(seconds)
            client.settimeout(0.3)
            left = reads
            while left > 0:
                try:
                    got = client.recv(min(left, 65536))
                except TimeoutError:
                    break  # that was all of the answer
                if not got:
                    break
                left -= len(got)
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def answers(server: Server, model: str) -> None:
    """The model answers, in time."""
    way = "generate_stream" if model in ("sends", "threads") else "infer"
    began = time.monotonic()
    content = PLAIN if way == "generate_stream" else body(model)
    asked = urllib.request.Request(f"{server.url}/v2/models/{model}/{way}", content, method="POST")
    with urllib.request.urlopen(asked, timeout=20) as answer:
        found = answer.read().decode()
    assert time.monotonic() - began < 10
    if way == "generate_stream":
        assert [json.loads(line[6:])["NUMBER"] for line in found.split("\n\n") if line] == [*range(COUNT)]


def warmed(server: Server, model: str) -> None:
    """Threads and pools that a first request makes are there."""
    for _ in range(3):
        answers(server, model)
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        assert client.is_server_live()


@contextlib.contextmanager
def nothing_left(server: Server, model: str) -> Iterator[None]:
    """The model answers afterwards, no request is under way, and the processes have what they had before."""
    warmed(server, model)
    wait_until(lambda: server.metric("nv_inference_pending_request_count", model) == 0)
    before = resources(server.process.pid)
    yield
    answers(server, model)
    settles(server.process.pid, before)
    assert server.metric("nv_inference_pending_request_count", model) == 0


@pytest.mark.parametrize(("way", "model"), KINDS)
def test_over_http(server: Server, way: str, model: str) -> None:
    """At the same time with clients that close and with clients that reset."""
    with nothing_left(server, model), ThreadPoolExecutor(2) as threads:
        for left in [threads.submit(leave_over_http, server, *HTTP[way](model), reset) for reset in (False, True)]:
            left.result()


def message_for(model: str) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=model)
    name, datatype, shape = ("x", "FP32", [1, 2]) if model == "turns" else ("COUNT", "INT32", [1])
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    data = np.ones(shape, np.float32) if model == "turns" else np.array([COUNT], np.int32)
    request.raw_input_contents.append(data.tobytes())
    return request.SerializeToString()


async def leave_over_grpc(server: Server, model: str, method: str, closes: bool) -> None:
    content = message_for(model)
    head = headers(1, path=f"/inference.GRPCInferenceService/{method}")
    data = message(1, content, end=method == "ModelInfer")

    class Address:
        port = server.grpc

    whole = head.serialize() + data.serialize()
    begin = len(head.serialize())
    moments = [
        *[(cut, 0.002, 0) for cut in (begin // 2, begin, begin + 5, begin + 20, len(whole) - 1)],
        *[(len(whole), seconds, 0) for seconds in MOMENTS],
        *[(len(whole), 0, size) for size in ((1, 300, 1200, 3500) if method == "ModelStreamInfer" else (1,))],
    ]
    for sent, seconds, reads in moments:
        raw = await Raw.open(Address)
        await raw.settle()
        raw.writer.write(whole[:sent])
        await asyncio.sleep(seconds)
        if reads:
            with contextlib.suppress(TimeoutError, AssertionError):
                await raw.part(1, reads, seconds=0.5)
        if not closes and sent == len(whole):
            raw.writer.write(b"\0\0\4\3\0\0\0\0\1\0\0\0\x08")  # RST_STREAM, CANCEL
            await asyncio.sleep(0.01)
        raw.close()


@pytest.mark.parametrize(
    ("method", "model"),
    [
        *[("ModelStreamInfer", model) for model in ("sends", "threads", "waits", "calls", "turns")],
        *[("ModelInfer", model) for model in ("waits", "calls", "turns")],
    ],
)
def test_over_grpc(server: Server, method: str, model: str) -> None:
    """At the same time with clients that cancel and with clients that close."""

    async def main() -> None:
        await asyncio.gather(*(leave_over_grpc(server, model, method, closes) for closes in (False, True)))

    with nothing_left(server, model):
        asyncio.run(main())


def test_many_at_once_before_the_first_response(server: Server) -> None:
    """Each would hold an instance for ever if its run went on without it."""
    with nothing_left(server, "sends"):
        clients = [socket.create_connection(("127.0.0.1", server.http), timeout=10) for _ in range(30)]
        for client in clients:
            client.sendall(b"".join(HTTP["generate_stream"]("sends")))
        time.sleep(0.1)
        for client in clients:
            client.close()
