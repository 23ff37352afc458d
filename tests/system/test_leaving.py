"""Clients that leave, and timeouts, over real connections: they give up the queue and the engine."""

from __future__ import annotations

import contextlib
import json
import socket
import time

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from tests.service.onnx_models import double, endless
from tests.system.conftest import wait_until
from tests.system.running import running
from tests.system.test_http import Connection, error

BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 1]}]})
CHUNKED = f"Transfer-Encoding: chunked\r\n\r\n{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n"
PREDICT = '{"x": [[1, 1]]}'


def post(path, rest):
    return f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n{rest}".encode()


WAYS = {
    "infer": post("/v2/models/endless/infer", f"Content-Length: {len(BODY)}\r\n\r\n{BODY}"),
    "chunked": post("/v2/models/endless/infer", CHUNKED),
    "predict": post("/predict/endless", f"Content-Length: {len(PREDICT)}\r\n\r\n{PREDICT}"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    endless(folder, "endless", config='backend: "onnxruntime"')
    double(folder, "double", config='backend: "onnxruntime"', shape=("a", "b"))
    with running(folder, env={"OPGATE_MAX_QUEUE_SIZE": "1"}) as started:
        yield started


def pending(server):
    return server.metric("nv_inference_pending_request_count", "endless")


def busy(server):
    """Waits until the instance runs a request. A request waits, one more is refused."""
    first, second = Connection(server), Connection(server)
    first.send(WAYS["infer"])
    time.sleep(0.1)
    second.send(WAYS["infer"])
    wait_until(lambda: pending(server) == 1)
    return first, second


@pytest.mark.parametrize("how", ["closes", "resets", "ends its side and then closes"])
@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_leaves_gives_up_its_place(server, way, how):
    first, second = busy(server)
    second.socket.close()
    wait_until(lambda: pending(server) == 0)
    with Connection(server) as leaving:
        leaving.send(WAYS[way])
        wait_until(lambda: pending(server) == 1)
        with Connection(server) as refused:
            assert error(refused.send(WAYS["infer"]).read())[0] == 503
        if how == "resets":
            leaving.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        elif how != "closes":
            leaving.socket.shutdown(socket.SHUT_WR)
            time.sleep(0.05)
            assert pending(server) == 1  # it may still read its answer
        leaving.socket.close()
        wait_until(lambda: pending(server) == 0)
    # The run ends when its client leaves: the next request gets the instance.
    first.socket.close()
    with Connection(server) as last:
        last.send(WAYS["infer"])
        time.sleep(0.05)
        wait_until(lambda: pending(server) == 0)


def test_a_call_that_is_cancelled_gives_up_its_place(server):
    first, second = busy(server)
    second.socket.close()
    wait_until(lambda: pending(server) == 0)
    x = triton_grpc.InferInput("x", [1, 2], "FP32")
    x.set_data_from_numpy(np.ones((1, 2), np.float32))
    client = triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}")
    call = client.async_infer("endless", [x], lambda result, error: None)
    wait_until(lambda: pending(server) == 1)
    call.cancel()
    wait_until(lambda: pending(server) == 0)
    client.close()
    first.socket.close()


@pytest.mark.parametrize("waits", [True, False])
def test_a_timeout_is_answered_at_its_time(server, waits):
    """Also that of a request whose run is under way, and the run ends."""
    with contextlib.ExitStack() as stack:
        if waits:
            first, second = busy(server)
            second.socket.close()
            stack.callback(first.socket.close)
            wait_until(lambda: pending(server) == 0)
        body = BODY[:-1] + ', "parameters": {"timeout": 200000}}'
        with Connection(server) as timed:
            began = time.monotonic()
            timed.send(post("/v2/models/endless/infer", f"Content-Length: {len(body)}\r\n\r\n{body}"))
            status, text = error(timed.read())
            assert status == (503 if waits else 504) and "ran out" in text and 0.2 <= time.monotonic() - began < 5


def test_a_run_that_takes_too_long_turns_its_model_unready(tmp_path):
    endless(tmp_path, "endless", config='backend: "onnxruntime"')
    with running(tmp_path, env={"OPGATE_RUN_TIMEOUT": "0.3"}) as server, Connection(server) as connection:
        status, text = error(connection.send(WAYS["infer"]).read())
        assert status == 500 and "takes longer than 0.3 s" in text
        wait_until(lambda: any("takes longer" in line for line in server.log))
        records = [json.loads(line) for line in server.log if "takes longer" in line]
        assert records[0]["model"] == "endless" and records[0]["level"] == "error"
        # The engine ends the run, and the model is ready again.
        wait_until(lambda: any("is ready again" in line for line in server.log))
        wait_until(lambda: connection.send(b"GET /v2/health/ready HTTP/1.1\r\nHost: t\r\n\r\n").read()[0] == 200)
