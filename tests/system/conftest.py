"""Runs real servers in separate processes, on free ports."""

from __future__ import annotations

import time

import pytest

from tests.conftest import ALL
from tests.ops_build.tensorrt_rtx import missing
from tests.service.onnx_models import batching, double, identity, pick, ragged_sum, write_config
from tests.system.clients import connect
from tests.system.running import running
from tests.system.trtexec import install

TYPES = [
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BYTES",
]

PIPELINE = """platform: "ensemble" max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [
  { model_name: "double" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "mid" } },
  { model_name: "double" model_version: -1 input_map { key: "x" value: "mid" } output_map { key: "y" value: "y" } } ] }"""


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    double(folder, "double", config=batching(max_batch_size=16))
    double(folder, "large", config=batching(max_batch_size=4), shape=("batch", 3, 224, 224))
    double(folder, "plain", config='backend: "onnxruntime"', shape=("a", "b"))
    pick(folder, "pick", batching())
    ragged_sum(folder, "ragged")
    for name in TYPES:
        identity(folder, f"identity_{name}", name, config=batching())
    write_config(folder, "pipeline", PIPELINE)
    return folder


@pytest.fixture(scope="session")
def server(repository):
    with running(repository, "--max-body-bytes", str(8 << 20)) as started:
        yield started


@pytest.fixture(params=["http", "grpc"])
def protocol(request):
    return request.param


def over(protocol):
    """Runs a test over one protocol, because it is about what both share. `make test-all` runs it over both."""
    return pytest.mark.parametrize("protocol", ["http", "grpc"] if ALL else [protocol])


@pytest.fixture
def client(server, protocol):
    with connect(server, protocol) as connected:
        yield connected


@pytest.fixture(scope="session")
def trtexec(built, tmp_path_factory):
    """The program that stands in for TensorRT's compiler."""
    if "tensorrt" not in built.libraries:
        pytest.skip(built.left_out["tensorrt"])
    if reason := missing():
        pytest.skip(reason)
    return install(tmp_path_factory.mktemp("trtexec"))


def wait_until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"the condition was still false after {seconds} seconds")
        time.sleep(0.01)
