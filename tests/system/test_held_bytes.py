"""One budget for the bytes of bodies that come and of answers that nobody takes: memory stays bounded, and small requests
pass."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
import threading
import time
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
from onnx import helper
from tritonclient.grpc import service_pb2

from tests.conftest import ALL
from tests.rpc.raw import Raw, headers, message
from tests.service.onnx_models import double, endless, save, value
from tests.system.conftest import wait_until
from tests.system.running import running
from tests.system.test_http import Connection
from tests.system.test_python_models import write

MB = 1 << 20
LIMIT = 200 * MB
BODY = 60 * MB  # three have room
DOUBLE = json.dumps({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}).encode()


def ones(repository, name):
    """A model that makes as many ones as it is told."""
    node = helper.make_node(
        "ConstantOfShape", ["n"], ["y"], value=helper.make_tensor("v", onnx.TensorProto.FLOAT, [1], [1.0])
    )
    save(
        repository,
        name,
        [node],
        [value("n", "INT64", [1])],
        [value("y", "FP32", ["n"])],
        config='backend: "onnxruntime"',
    )


SENDS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.ones(int(
            pb_utils.get_input_tensor_by_name(request, "n").as_numpy()[0]), np.float32))]) for request in requests]
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("held")
    double(folder, "double", config='backend: "onnxruntime"', shape=("a", "b"))
    endless(folder, "endless", config='backend: "onnxruntime"')
    ones(folder, "ones")
    tensors = 'input { name: "n" data_type: TYPE_INT64 dims: 1 } output { name: "y" data_type: TYPE_FP32 dims: -1 }'
    write(folder, "pythons", tensors, SENDS)
    return folder


@pytest.fixture
def server(repository):
    with running(repository, "--allow-python-models", env={"OPGATE_MAX_HELD_BYTES": str(LIMIT)}) as started:
        yield started


def small_requests_pass(server):
    for _ in range(10):
        with Connection(server) as client:
            began = time.monotonic()
            request = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % len(DOUBLE)
            assert client.send(request + DOUBLE).read()[0] == 200
            assert time.monotonic() - began < 2
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        x = triton_grpc.InferInput("x", [1, 1000], "FP32")
        x.set_data_from_numpy(np.ones((1, 1000), np.float32))
        assert client.infer("double", [x]).as_numpy("y").sum() == 2000


def large_requests_pass(server):
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        x = triton_grpc.InferInput("x", [1, BODY // 4], "FP32")
        x.set_data_from_numpy(np.ones((1, BODY // 4), np.float32))
        assert len(client.infer("double", [x]).get_response().raw_output_contents[0]) == BODY


def body_heads(way):
    plain = f"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nInference-Header-Content-Length: 100\r\nContent-Length: {BODY}\r\n\r\n"
    return {
        "infer": plain.encode(),
        "json": f"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nContent-Length: {BODY}\r\n\r\n".encode(),
        "chunked": f"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n{BODY:x}\r\n".encode(),
        "generate": f"POST /v2/models/double/generate HTTP/1.1\r\nHost: t\r\nContent-Length: {BODY}\r\n\r\n".encode(),
        "predict": f"POST /predict/double HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: {BODY}\r\n\r\n".encode(),
        "load": f"POST /v2/repository/models/double/load HTTP/1.1\r\nHost: t\r\nContent-Length: {BODY}\r\n\r\n".encode(),
    }[way]


def send_almost(server, way, found):
    """Sends a body without its last byte, and tells what comes back meanwhile."""
    client = socket.create_connection(("127.0.0.1", server.http), timeout=20)
    with contextlib.suppress(ConnectionError):
        client.sendall(body_heads(way))
        piece = b" " * MB
        for _ in range(BODY // MB - 1):
            client.sendall(piece)
        client.sendall(piece[:-1])
    client.settimeout(0.5)
    try:
        found.append((client, client.recv(65536)))
    except (TimeoutError, ConnectionError) as error:
        found.append((client, b"" if isinstance(error, TimeoutError) else b"reset"))


@pytest.mark.parametrize("way", ["infer", "json", "chunked", "generate", "predict"])
def test_bodies_that_never_end(server, way):
    small_requests_pass(server)
    before = server.megabytes("VmRSS")
    found = []
    threads = [threading.Thread(target=send_almost, args=(server, way, found)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    small_requests_pass(server)
    assert server.megabytes("VmRSS") - before < 1.3 * LIMIT / MB
    assert 2 * BODY < server.number("opgate_held_bytes") <= LIMIT
    refused = [answer for _, answer in found if answer]
    assert 4 <= len(refused) < 8, refused
    told = [answer for answer in refused if answer != b"reset"]  # the others still sent when the connection was closed
    assert told
    for answer in told:
        head = answer.partition(b"\r\n\r\n")[0].lower()
        assert head.startswith(b"http/1.1 503") and b"retry-after: 1" in head and b"OPGATE_MAX_HELD_BYTES" in answer
    for client, _ in found:
        client.close()
    wait_until(lambda: server.number("opgate_held_bytes") == 0)
    large_requests_pass(server)


def test_both_protocols_share_it(server):
    """Calls of gRPC that are under way leave no room for bodies of HTTP."""
    x = triton_grpc.InferInput("x", [1, BODY // 4], "FP32")
    x.set_data_from_numpy(np.ones((1, BODY // 4), np.float32))
    with contextlib.ExitStack() as stack:
        calls = []
        for _ in range(3):
            client = stack.enter_context(triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}"))
            calls.append(client.async_infer("endless", [x], lambda result, error: None))
        wait_until(lambda: server.number("opgate_held_bytes") > 3 * BODY)
        found = []
        send_almost(server, "infer", found)
        assert found[0][1].startswith((b"HTTP/1.1 503", b"reset"))
        found[0][0].close()
        small_requests_pass(server)
        for call in calls:
            call.cancel()
    wait_until(lambda: server.number("opgate_held_bytes") == 0)
    large_requests_pass(server)


def post(path, content, more=""):
    return f"POST {path} HTTP/1.1\r\nHost: t\r\n{more}Content-Length: {len(content)}\r\n\r\n{content}".encode()


def ask_for(count, model, way):
    tensor = {"name": "n", "shape": [1], "datatype": "INT64", "data": [count]}
    binary = {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    plain = json.dumps({"n": [count]})
    return {
        "infer": lambda: post(f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor], **binary})),
        "packed": lambda: post(
            f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor], **binary}), "Accept-Encoding: gzip\r\n"
        ),
        "json": lambda: post(f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]})),
        "generate": lambda: post(f"/v2/models/{model}/generate", plain),
        "predict": lambda: post(f"/predict/{model}", plain, "Content-Type: application/json\r\n"),
    }[way]()


def answered(server, route):
    """How many requests of a route have been answered."""
    lines = [line for line in server.get("/metrics").splitlines() if f'route="{route}"' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("opgate_responses_total"))


ROUTES = {"generate": "/v2/models/{model}/generate", "predict": "/predict/{model}"}


#: Each way and each model once at least. `make test-all` runs all pairs.
READ_BY_NOBODY = [("infer", "pythons"), ("json", "ones"), ("generate", "pythons"), ("predict", "ones")]
if ALL:
    READ_BY_NOBODY = [(w, m) for w in ("infer", "json", "generate", "predict") for m in ("ones", "pythons")]


@pytest.mark.parametrize(("way", "model"), READ_BY_NOBODY)
def test_answers_that_nobody_reads(repository, way, model):
    """Each has 8 MB, and 40 MB have room."""
    limit = 40 * MB
    with running(repository, "--allow-python-models", env={"OPGATE_MAX_HELD_BYTES": str(limit)}) as server:
        route = ROUTES.get(way, "/v2/models/{model}/infer")
        small_requests_pass(server)
        before, clients = answered(server, route), []
        for _ in range(12):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.http))
            client.sendall(ask_for(2 * MB, model, way))
            clients.append(client)
        wait_until(lambda: answered(server, route) == before + 12, 60)
        assert server.number("opgate_held_bytes") <= limit
        small_requests_pass(server)
        statuses = []
        for client in clients:
            client.settimeout(20)
            statuses.append(int(client.recv(64).split()[1]))
        assert set(statuses) == {200, 503} and 3 <= statuses.count(200) <= 10
        for client in clients:
            client.close()
        wait_until(lambda: server.number("opgate_held_bytes") == 0)


def test_answers_over_grpc_that_nobody_reads(server):
    request = service_pb2.ModelInferRequest(model_name="ones")
    request.inputs.add(name="n", datatype="INT64", shape=[1])
    request.raw_input_contents.append(np.array([BODY // 4], np.int64).tobytes())

    async def main():
        calls = []
        for _ in range(12):
            raw = await Raw.open(SimpleNamespace(port=server.grpc))
            await raw.settle()
            raw.send(
                headers(1, path="/inference.GRPCInferenceService/ModelInfer"), message(1, request.SerializeToString())
            )
            calls.append(raw)
        await asyncio.sleep(3)
        assert server.number("opgate_held_bytes") <= LIMIT + MB
        await asyncio.to_thread(small_requests_pass, server)
        statuses = []
        for raw in calls:
            with contextlib.suppress(TimeoutError):
                statuses.append((await raw.answer(1, seconds=0.3))[0]["grpc-status"])
            raw.close()
        return statuses

    statuses = asyncio.run(main())
    assert set(statuses) == {"14"} and 5 <= len(statuses) <= 10
    wait_until(lambda: server.number("opgate_held_bytes") == 0)
    large_requests_pass(server)


def test_heads_that_never_end(tmp_path):
    """Of each of many connections a little waits."""
    double(tmp_path, "double", config='backend: "onnxruntime"', shape=("a", "b"))
    with running(tmp_path, env={"OPGATE_MAX_HELD_BYTES": str(MB)}) as server, contextlib.ExitStack() as stack:
        head = b"GET / HTTP/1.1\r\nX: " + b"y" * 30_000
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", server.http))) for _ in range(60)]
        for client in clients:
            client.sendall(head)

        def refused():
            answered, _, _ = select.select(clients, [], [], 0)
            assert all(client.recv(12, socket.MSG_PEEK) == b"HTTP/1.1 503" for client in answered)
            return len(answered)

        wait_until(lambda: refused() >= 20)
        assert refused() <= 30
        assert server.number("opgate_held_bytes") <= MB + 100_000
        stack.close()
        wait_until(lambda: server.number("opgate_held_bytes") == 0)


def test_a_body_for_which_there_is_never_room(tmp_path):
    double(tmp_path, "double", config='backend: "onnxruntime"', shape=("a", "b"))
    with running(tmp_path, env={"OPGATE_MAX_HELD_BYTES": str(MB)}) as server:
        for way in ("infer", "chunked", "predict"):
            found = []
            send_almost(server, way, found)
            assert found[0][1].startswith((b"HTTP/1.1 413", b"reset"))
            found[0][0].close()
        wait_until(lambda: server.number("opgate_held_bytes") == 0)
        with Connection(server) as client:
            request = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % len(DOUBLE)
            assert client.send(request + DOUBLE).read()[0] == 200


@pytest.mark.parametrize("path", ["/v2/models/ones/infer", "/v2/models/ones/generate", "/predict/ones"])
def test_clients_that_leave_while_their_answer_is_written(server, path):
    """Nobody takes such an answer, so nothing may count it for ever."""
    n = 2 * MB
    tensor = {"name": "n", "shape": [1], "datatype": "INT64", "data": [n]}
    body = json.dumps({"inputs": [tensor]} if path.endswith("infer") else {"n": [n]}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    for i in range(40):
        with Connection(server) as client:
            client.send(head.encode() + body)
            time.sleep(0.005 * i)
    wait_until(lambda: server.number("opgate_running_requests") == 0)
    wait_until(lambda: server.number("opgate_held_bytes") == 0)
