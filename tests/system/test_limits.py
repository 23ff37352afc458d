"""Every row of docs/limits.md: the setting has this default, and beyond the limit a client sees what the row says."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import resource
import socket
import time
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from hyperframe.frame import RstStreamFrame

from opgate.service.settings import Settings
from tests.rpc.raw import Raw, headers, message
from tests.service.onnx_models import double, endless, identity
from tests.system.conftest import wait_until
from tests.system.running import ROOT, Server, running
from tests.system.shared_files import shared_file
from tests.system.test_http import Connection
from tests.system.test_leaving import WAYS

INFER = "/inference.GRPCInferenceService/ModelInfer"
ROWS = [
    [cell.strip().strip("`") for cell in line.strip("|\n").split("|")]
    for line in (ROOT / "docs" / "limits.md").read_text().splitlines()
    if line.startswith("| `OPGATE_")
]
STATUS = [row for row in ROWS if len(row) == 5]
DURATION = [row[0] for row in ROWS if len(row) == 4]

# The settings that a request can run against, small enough to be tried.
SMALL = {
    "OPGATE_MAX_BODY_BYTES": "20000", "OPGATE_MAX_DECOMPRESSED_BYTES": "8000", "OPGATE_MAX_JSON_BYTES": "10000",
    "OPGATE_MAX_JSON_DEPTH": "8", "OPGATE_MAX_HEADER_BYTES": "2000", "OPGATE_MAX_RANK": "3", "OPGATE_MAX_ELEMENTS": "100",
    "OPGATE_MAX_STRINGS": "5", "OPGATE_MAX_STRING_BYTES": "50", "OPGATE_MAX_TENSORS": "3", "OPGATE_MAX_QUEUE_SIZE": "1",
    "OPGATE_MAX_CONCURRENT_REQUESTS": "3", "OPGATE_MAX_HELD_BYTES": "25000", "OPGATE_MAX_GRPC_CALLS": "2",
    "OPGATE_MAX_SHARED_MEMORY_REGIONS": "2", "OPGATE_MAX_WORKER_BYTES": str(1 << 20),
}  # fmt: skip


def tensor(datatype, shape, data, name="x"):
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def post(model, body, headers=""):
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: t\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def infer(model, *inputs, headers="", **more):
    return post(model, json.dumps({"inputs": list(inputs), **more}).encode(), headers)


DOUBLE = tensor("FP32", [1, 2], [1, 2])
PACKED = gzip.compress(json.dumps({"inputs": [DOUBLE], "id": " " * 9000}).encode())
OVER = {
    "OPGATE_MAX_BODY_BYTES": post("double", b" " * 20001),
    "OPGATE_MAX_DECOMPRESSED_BYTES": post("double", PACKED, "Content-Encoding: gzip\r\n"),
    "OPGATE_MAX_JSON_BYTES": infer("double", DOUBLE, id=" " * 10000),
    "OPGATE_MAX_JSON_DEPTH": infer("double", tensor("FP32", [1, 2], [[[[[[[1]]]]]]])),
    "OPGATE_MAX_HEADER_BYTES": infer("double", DOUBLE, headers=f"X: {'y' * 2000}\r\n"),
    "OPGATE_MAX_RANK": infer("double", tensor("FP32", [1, 1, 1, 2], [1, 2])),
    "OPGATE_MAX_ELEMENTS": infer("double", tensor("FP32", [1, 101], [1] * 101)),
    "OPGATE_MAX_STRINGS": infer("texts", tensor("BYTES", [6], ["a"] * 6)),
    "OPGATE_MAX_STRING_BYTES": infer("texts", tensor("BYTES", [1], ["a" * 51])),
    "OPGATE_MAX_TENSORS": infer("double", *[DOUBLE] * 4),
}


OVER["OPGATE_MAX_SHARED_MEMORY_REGIONS"] = post("double", b'{"key": "/key", "byte_size": 8}').replace(
    b"/v2/models/double/infer", b"/v2/systemsharedmemory/region/third/register"
)


ALMOST = infer("double", DOUBLE, id=" " * 9000)[:-1]
# What is refused while what the setting limits is full.
AGAIN = {
    "OPGATE_MAX_QUEUE_SIZE": WAYS["infer"],
    "OPGATE_MAX_CONCURRENT_REQUESTS": infer("double", DOUBLE),
    "OPGATE_MAX_HELD_BYTES": ALMOST,
}


def call(setting):
    """Returns a gRPC request over a limit: model, name, datatype and array of its inputs, and arguments of the call."""
    packed = {"compression_algorithm": "gzip"}
    return {
        "OPGATE_MAX_DECOMPRESSED_BYTES": ("double", [("x", "FP32", np.ones((1, 2001), np.float32))], packed),
        "OPGATE_MAX_HEADER_BYTES": (
            "double",
            [("x", "FP32", np.ones((1, 2), np.float32))],
            {"headers": {"y": "y" * 2000}},
        ),
        "OPGATE_MAX_HELD_BYTES": ("double", [("x", "FP32", np.ones((1, 2), np.float32))], {"request_id": "i" * 9000}),
        "OPGATE_MAX_BODY_BYTES": ("double", [("x", "FP32", np.ones((1, 5001), np.float32))]),
        "OPGATE_MAX_RANK": ("double", [("x", "FP32", np.ones((1, 1, 1, 2), np.float32))]),
        "OPGATE_MAX_ELEMENTS": ("double", [("x", "FP32", np.ones((1, 101), np.float32))]),
        "OPGATE_MAX_STRINGS": ("texts", [("x", "BYTES", np.array([b"a"] * 6, np.object_))]),
        "OPGATE_MAX_STRING_BYTES": ("texts", [("x", "BYTES", np.array([b"a" * 51], np.object_))]),
        "OPGATE_MAX_TENSORS": ("double", [(f"x{i}", "FP32", np.ones((1, 2), np.float32)) for i in range(4)]),
        "OPGATE_MAX_QUEUE_SIZE": ("endless", [("x", "FP32", np.ones((1, 2), np.float32))]),
        "OPGATE_MAX_CONCURRENT_REQUESTS": ("double", [("x", "FP32", np.ones((1, 2), np.float32))]),
    }[setting]


@pytest.fixture(scope="module")
def regions(server):
    """As many regions as there may be."""
    with shared_file(bytes(1024)) as file, triton_http.InferenceServerClient(f"127.0.0.1:{server.http}") as client:
        for name in ("region", "second"):
            client.register_system_shared_memory(name, file.key, 1024)
        yield file


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    double(folder, "double", config='backend: "onnxruntime"', shape=("a", "b"))
    identity(folder, "texts", "BYTES", shape=("a",), config='backend: "onnxruntime"')
    for name in ("endless", "endless2"):
        endless(folder, name, config='backend: "onnxruntime"')
    with running(folder, env=SMALL) as started:
        yield started


def test_the_tables_have_every_limit_with_its_default():
    fields = {Settings.variable(name): field for name, field in Settings.model_fields.items()}
    others = {
        "OPGATE_DEFAULT_MAX_BATCH_SIZE",
        "OPGATE_START_TIMEOUT",
        "OPGATE_TRITON_START_TIMEOUT",
    }  # limits on no request
    limits = {name for name in fields if re.search("_MAX_|_TIMEOUT$|_GRACE$", name)} - others
    assert {row[0] for row in ROWS} == limits
    for name, default, *_ in ROWS:
        assert float(default) == fields[name].default, name
    assert set(SMALL) == {row[0] for row in STATUS} and set(DURATIONS) == set(DURATION)


def occupied(server, setting):
    """Fills what the setting limits. Returns the connections that do."""
    held = [Connection(server)]
    if setting == "OPGATE_MAX_HELD_BYTES":
        held.append(Connection(server))
        for connection in held:
            connection.send(ALMOST)
        wait_until(lambda: server.number("opgate_held_bytes") > 18_000)
        return held
    held[0].send(WAYS["infer"])
    time.sleep(0.1)
    held.append(Connection(server))
    held[1].send(WAYS["infer"])
    if setting == "OPGATE_MAX_CONCURRENT_REQUESTS":
        held.append(Connection(server))
        held[2].send(WAYS["infer"].replace(b"endless", b"endless2"))
    wait_until(lambda: f"opgate_running_requests {len(held)}.0" in server.get("/metrics"))
    return held


OVER_HTTP = [row for row in STATUS if row[3] and row[0] != "OPGATE_MAX_WORKER_BYTES"]


@pytest.mark.parametrize("row", OVER_HTTP, ids=[row[0] for row in OVER_HTTP])
def test_over_http(server, regions, row):
    setting, _, _, status, _ = row
    held = [] if setting in OVER else occupied(server, setting)
    request = OVER.get(setting) or AGAIN[setting]
    with Connection(server) as connection:
        got, headers, body = connection.send(request).read()
        assert got == int(status[:3]), body
        assert (
            "limit" in json.loads(body)["error"]
            or "deep" in json.loads(body)["error"]
            or "full" in json.loads(body)["error"]
        )
        assert ("retry-after" in headers) == ("Retry-After" in status)
    for connection in held:
        connection.socket.close()
    wait_until(lambda: "opgate_running_requests 0.0" in server.get("/metrics"))
    with Connection(server) as connection:  # the server goes on
        assert connection.send(infer("double", DOUBLE)).read()[0] == 200


CODES = [row for row in STATUS if row[4] != "REFUSED_STREAM" and row[0] in {row[0] for row in OVER_HTTP} and row[4]]


@pytest.mark.parametrize("row", CODES, ids=[row[0] for row in CODES])
def test_over_grpc(server, regions, row):
    if row[0] == "OPGATE_MAX_SHARED_MEMORY_REGIONS":
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
            with pytest.raises(triton_grpc.InferenceServerException) as caught:
                client.register_system_shared_memory("third", regions.key, 8)
            assert caught.value.status() == f"StatusCode.{row[4]}"
        return
    held = occupied(server, row[0]) if row[0] in AGAIN else []
    model, inputs, *arguments = call(row[0])
    tensors = []
    for name, datatype, array in inputs:
        tensors.append(triton_grpc.InferInput(name, list(array.shape), datatype))
        tensors[-1].set_data_from_numpy(array)
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        with pytest.raises(triton_grpc.InferenceServerException) as caught:
            client.infer(model, tensors, **(arguments[0] if arguments else {}))
        assert caught.value.status() == f"StatusCode.{row[4]}"
    for connection in held:
        connection.socket.close()
    wait_until(lambda: "opgate_running_requests 0.0" in server.get("/metrics"))


def test_calls_of_one_grpc_connection(server):
    async def main():
        raw = await Raw.open(SimpleNamespace(port=server.grpc))
        for stream in (1, 3, 5):
            raw.send(headers(stream, path=INFER))
        refused = [frame for frame in await raw.frames(1) if isinstance(frame, RstStreamFrame)]
        raw.close()
        return [(frame.stream_id, frame.error_code) for frame in refused]

    assert "REFUSED_STREAM" in next(row for row in STATUS if row[0] == "OPGATE_MAX_GRPC_CALLS")
    assert asyncio.run(main()) == [(5, 7)]


def test_tensors_of_a_run_in_a_worker(tmp_path, protocol):
    row = next(row for row in STATUS if row[0] == "OPGATE_MAX_WORKER_BYTES")
    double(tmp_path, "double", config='backend: "onnxruntime"', shape=("a", "b"))
    with running(tmp_path, "--isolation", "process", env={row[0]: str(1 << 20)}) as server:
        module = {"http": triton_http, "grpc": triton_grpc}[protocol]
        with module.InferenceServerClient(f"127.0.0.1:{getattr(server, protocol)}") as client:
            for size, refused in ((1 << 16, False), (1 << 19, True), (1 << 16, False)):
                x = module.InferInput("x", [1, size], "FP32")
                x.set_data_from_numpy(np.ones((1, size), np.float32))
                with pytest.raises(module.InferenceServerException) if refused else nullcontext() as caught:
                    client.infer("double", [x])
                if refused:
                    status = {"http": row[3], "grpc": f"StatusCode.{row[4]}"}[protocol]
                    assert caught.value.status() == status and "OPGATE_MAX_WORKER_BYTES" in str(caught.value)


def no_body(server):
    with Connection(server) as connection:
        connection.send(infer("double", DOUBLE)[:-3])
        assert connection.closed()


def idle(server):
    with Connection(server) as connection:
        assert connection.send(infer("double", DOUBLE)).read()[0] == 200
        assert connection.closed()


def no_reader(server):
    with Connection(server) as connection:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.send(infer("double", tensor("FP32", [1, 1 << 21], [1.5] * (1 << 21))))
        wait_until(lambda: any("took nothing of an answer for 1 s" in line for line in server.log), 20)


def test_a_client_that_reads_nothing_while_there_are_no_descriptors(tmp_path):
    """Such clients may be why there are none."""
    double(tmp_path, "double", config='backend: "onnxruntime"', shape=("a", "b"))
    with running(tmp_path, env={"OPGATE_WRITE_TIMEOUT": "1"}) as server, Connection(server) as connection:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        pid = server.process.pid
        usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        # The client has its connection before the descriptors are gone.
        connection.send(infer("double", tensor("FP32", [1, 1], [1.5]))).read()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, usual[1]))
        try:
            connection.send(infer("double", tensor("FP32", [1, 1 << 21], [1.5] * (1 << 21))))
            wait_until(lambda: any("took nothing of an answer for 1 s" in line for line in list(server.log)), 20)
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)


def long_run(server):
    with Connection(server) as connection:
        status, _, body = connection.send(WAYS["infer"]).read()
        assert status == 500 and b"takes longer than 1 s" in body
    wait_until(lambda: 'opgate_overdue_runs_total{model="endless",version="1"} 1.0' in server.get("/metrics"))


def no_message(server):
    async def main():
        raw = await Raw.open(SimpleNamespace(port=server.grpc))
        raw.send(headers(1, path=INFER), message(1, b"x", size=100, end=False))
        fields, _ = await raw.answer(1, 10)
        raw.close()
        return fields["grpc-status"]

    assert asyncio.run(main()) == "4"
    wait_until(lambda: any("nothing of the message came" in line for line in server.log))


def no_window(server):
    async def main():
        raw = await Raw.open(SimpleNamespace(port=server.grpc), settings={4: 0})
        raw.send(headers(1, path="/inference.GRPCInferenceService/ServerMetadata"), message(1, b""))
        frames = await raw.frames(3)
        raw.close()
        return [frame.error_code for frame in frames if isinstance(frame, RstStreamFrame)]

    assert asyncio.run(main()) == [8]


DURATIONS = {
    "OPGATE_BODY_TIMEOUT": no_body,
    "OPGATE_WRITE_TIMEOUT": no_reader,
    "OPGATE_KEEP_ALIVE_TIMEOUT": idle,
    "OPGATE_RUN_TIMEOUT": long_run,
    "OPGATE_SHUTDOWN_TIMEOUT": None,
    "OPGATE_SHUTDOWN_GRACE": None,
}


@pytest.mark.parametrize("setting", [name for name, check in DURATIONS.items() if check])
def test_durations(tmp_path, setting):
    double(tmp_path, "double", config='backend: "onnxruntime"', shape=("a", "b"))
    endless(tmp_path, "endless", config='backend: "onnxruntime"')
    with running(tmp_path, env={setting: "1"}) as server:
        began = time.monotonic()
        DURATIONS[setting](server)
        assert 0.9 <= time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("setting", "check"), [("OPGATE_BODY_TIMEOUT", no_message), ("OPGATE_WRITE_TIMEOUT", no_window)]
)
def test_durations_over_grpc(tmp_path, setting, check):
    double(tmp_path, "double", config='backend: "onnxruntime"', shape=("a", "b"))
    with running(tmp_path, env={setting: "1"}) as server:
        began = time.monotonic()
        check(server)
        assert 0.9 <= time.monotonic() - began < 20


@pytest.mark.parametrize(("setting", "status"), [("OPGATE_SHUTDOWN_TIMEOUT", 1), ("OPGATE_SHUTDOWN_GRACE", 0)])
def test_the_time_to_stop(tmp_path, setting, status):
    endless(tmp_path, "endless", config='backend: "onnxruntime"')
    server = Server(tmp_path, env={setting: "2"})
    with Connection(server) as connection:
        if status:
            connection.send(WAYS["infer"])
        else:
            connection.send(b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n").read()
        time.sleep(0.3)
        began = time.monotonic()
        assert server.stop(20) == status
        assert 1.9 <= time.monotonic() - began < 10
