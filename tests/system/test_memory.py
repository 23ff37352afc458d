"""The memory that requests take goes when their answers have gone."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.service.onnx_models import double, write_config
from tests.system.conftest import PIPELINE
from tests.system.running import running

MB = 1 << 20


@pytest.fixture
def server(tmp_path):
    double(tmp_path, "double", config='backend: "onnxruntime"', shape=("a", "b"))
    write_config(
        tmp_path, "twice", PIPELINE.replace("max_batch_size: 8", "").replace("dims: [ 4 ]", "dims: [ -1, -1 ]")
    )
    with running(tmp_path, "--max-body-bytes", str(64 * MB)) as started:
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
