"""The memory that requests take goes when their answers or their clients have gone, without Python's collector."""

from __future__ import annotations

import contextlib
import json
import time

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.service.onnx_models import double, write_config
from tests.system.conftest import PIPELINE, wait_until
from tests.system.running import running
from tests.system.test_http import Connection

MB = 1 << 20


@pytest.fixture
def server(tmp_path):
    double(tmp_path, "double", config='backend: "onnxruntime"', shape=("a", "b"))
    write_config(
        tmp_path, "twice", PIPELINE.replace("max_batch_size: 8", "").replace("dims: [ 4 ]", "dims: [ -1, -1 ]")
    )
    with running(tmp_path, "--max-body-bytes", str(64 * MB), program="tests.system.uncollected_server") as started:
        yield started


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", ["double", "twice"])
def test_many_large_requests_take_the_memory_of_a_few(server, protocol, model):
    """Each brings 16 MB and gets 16 MB. All connections stay open."""
    triton, port = (triton_http, server.http) if protocol == "http" else (triton_grpc, server.grpc)
    options = {} if protocol == "http" else {"channel_args": [("grpc.max_receive_message_length", -1)]}
    x = triton.InferInput("x", [1024, 4096], "FP32")
    x.set_data_from_numpy(np.ones((1024, 4096), np.float32))
    before = server.megabytes("VmRSS")
    clients = [triton.InferenceServerClient(f"127.0.0.1:{port}", **options) for _ in range(8)]
    for i in range(48):
        assert clients[i % 8].infer(model, [x]).as_numpy("y")[0, 0] == (2 if model == "double" else 4)
    most = server.megabytes("VmHWM") - before
    left = server.megabytes("VmRSS") - before
    # gRPC's library keeps some buffers, however many requests there were.
    assert most < 32 * 16 and left < (8 if protocol == "http" else 16) * 16, (most, left)
    for client in clients:
        client.close()


def half_a_body(server):
    connection = Connection(server)
    connection.send(BINARY[: 12 * MB])
    return connection


def half_a_chunked_body(server):
    connection = Connection(server)
    connection.send(b"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n")
    connection.send(b"%x\r\n" % (16 * MB) + b" " * (12 * MB))
    return connection


def half_a_body_of_another_route(server):
    connection = Connection(server)
    connection.send(b"POST /predict/double HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % (16 * MB))
    connection.send(b" " * (12 * MB))
    return connection


def a_request_that_runs(server):
    connection = Connection(server)
    connection.send(BINARY)
    return connection


def an_answer_that_is_not_read(server):
    connection = Connection(server)
    connection.send(BINARY)
    connection.socket.recv(100)
    return connection


def two_requests_at_once(server):
    connection = Connection(server)
    connection.socket.settimeout(0.1)
    with contextlib.suppress(TimeoutError):  # the second is not read before the first is answered
        connection.send(BINARY * 2)
    return connection


HEAD = json.dumps(
    {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [1, 4 * MB], "parameters": {"binary_data_size": 16 * MB}},
        ],
        "parameters": {"binary_data_output": True},
    }
).encode()
BINARY = (
    b"POST /v2/models/double/infer HTTP/1.1\r\nHost: t\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
    % (len(HEAD), len(HEAD) + 16 * MB)
    + HEAD
    + bytes(16 * MB)
)


@pytest.mark.parametrize(
    "begin",
    [
        half_a_body,
        half_a_chunked_body,
        half_a_body_of_another_route,
        a_request_that_runs,
        an_answer_that_is_not_read,
        two_requests_at_once,
    ],
)
def test_the_memory_of_clients_that_leave_goes_with_them(server, begin):
    """Each of 30 clients makes the gateway hold 12 MB or more, and then leaves without another request."""
    begin(server).socket.close()
    time.sleep(0.5)
    before = server.megabytes("VmRSS")
    for i in range(30):
        connection = begin(server)
        time.sleep(0.01 * (i % 4))
        connection.socket.close()
    wait_until(lambda: server.megabytes("VmRSS") - before < 100)
