"""What only gRPC has: many calls of one connection, broken messages, compression, TLS, health while the server stops."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import subprocess
import sys
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2

from tests.service.onnx_models import double, endless, identity
from tests.system.conftest import wait_until
from tests.system.running import ROOT, Server, running

INFER = "/inference.GRPCInferenceService/ModelInfer"
MB = 1 << 20


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    double(folder, "double", config='backend: "onnxruntime"', shape=("a", "b"))
    identity(folder, "texts", "BYTES", shape=("a",), config='backend: "onnxruntime"')
    endless(folder, "endless", config='backend: "onnxruntime"')
    return folder


@pytest.fixture(scope="module")
def server(repository):
    with running(repository, env={"OPGATE_MAX_QUEUE_SIZE": "8000"}) as started:
        yield started


def asked(array, model="double", **more):
    request = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[array.tobytes()], **more)
    request.inputs.add(name="x", datatype="FP32", shape=array.shape)
    return request


def answered(data):
    response = service_pb2.ModelInferResponse.FromString(data)
    return np.frombuffer(response.raw_output_contents[0], np.float32).reshape(response.outputs[0].shape)


def channel(server):
    return grpc.insecure_channel(
        f"127.0.0.1:{server.grpc}",
        options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
    )


def error_of(call, *arguments, timeout=10):
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, timeout=timeout) if arguments else call()
    return caught.value.code().name, caught.value.details()


def test_six_thousand_calls_at_once(server):
    async def main():
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc}") as client:
            call = client.unary_unary(INFER)
            arrays = [np.full((1, 4), i, np.float32) for i in range(6000)]
            return arrays, await asyncio.gather(*(call(asked(a).SerializeToString()) for a in arrays))

    arrays, answers = asyncio.run(main())
    for array, answer in zip(arrays, answers, strict=True):
        assert (answered(answer) == 2 * array).all()


def test_errors_are_short_and_clear(server):
    lines = len(server.log)
    with channel(server) as client:
        call = client.unary_unary(INFER)
        code, text = error_of(call, asked(np.ones((1, 2), np.float32), model="m" * (MB // 2)).SerializeToString())
        assert code == "NOT_FOUND" and text == f"Request for unknown model: '{'m' * 256}...' is not found"
        for garbage in (b"\xff", b"\x0a\x05abc", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"):
            assert error_of(call, garbage) == ("INVALID_ARGUMENT", "the message is not a ModelInferRequest")
        assert error_of(client.unary_unary("/inference.GRPCInferenceService/ModelReady"), b"\xff") == (
            "INVALID_ARGUMENT",
            "the message is not a ModelReadyRequest",
        )
        assert error_of(client.unary_unary("/inference.Other/Call"), b"")[0] == "UNIMPLEMENTED"
        texts = service_pb2.ModelInferRequest(model_name="texts", raw_input_contents=[b"\2\0\0\0\xff"])
        texts.inputs.add(name="x", datatype="BYTES", shape=[1])
        code, text = error_of(call, texts.SerializeToString())
        assert code == "INVALID_ARGUMENT" and "element 0 says 2 bytes, 1 are left" in text
    with socket.create_connection(("127.0.0.1", server.grpc)) as other:
        other.sendall(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")
        assert other.recv(1000).endswith(b"this port speaks gRPC over HTTP/2\n")
    wait_until(lambda: any("does not speak HTTP/2" in line for line in server.log[lines:]))
    said = server.log[lines:]
    assert not [
        line for line in said if "Traceback" in line or "exc_info" in line or json.loads(line)["level"] == "error"
    ]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression(server, algorithm):
    array = np.zeros((64, 1024), np.float32)
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        x = triton_grpc.InferInput("x", list(array.shape), "FP32")
        x.set_data_from_numpy(array)
        assert (client.infer("double", [x], compression_algorithm=algorithm).as_numpy("y") == 0).all()


def test_encoders_may_order_fields_as_they_like(server):
    """Protobuf allows any order. Messages whose raw contents come first, or in the middle, say the same."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    whole = asked(array, id="seven").SerializeToString()
    raw = service_pb2.ModelInferRequest(raw_input_contents=[array.tobytes()]).SerializeToString()
    rest = whole.removesuffix(raw)
    name = service_pb2.ModelInferRequest(model_name="double").SerializeToString()
    assert rest + raw == whole
    with channel(server) as client:
        call = client.unary_unary(INFER)
        wrong_name = service_pb2.ModelInferRequest(model_name="other").SerializeToString()
        unknown = b"\xa2\x06\x03abc"  # field 100
        for message in (whole, raw + rest, rest + raw + name, wrong_name + whole, unknown + whole, whole + unknown):
            for _ in range(2):
                answer = service_pb2.ModelInferResponse.FromString(call(message))
                assert answer.id == "seven" and answer.model_name == "double"
                assert (answered(answer.SerializeToString()) == 2 * array).all()
        assert error_of(call, whole + raw)[1].endswith("expected one entry for each of the 1 inputs, got 2")
        assert error_of(call, rest)[0] == "INVALID_ARGUMENT"


def test_repeated_heads_with_other_data(server):
    """An envelope that came before is not checked again, its data is."""
    with channel(server) as client:
        call = client.unary_unary(INFER)
        for i in range(20):
            array = np.full((2, 3 + i % 2), i, np.float32)
            assert (answered(call(asked(array).SerializeToString())) == 2 * array).all()
        short = asked(np.ones((2, 3), np.float32))
        short.raw_input_contents[0] = b"1234"
        assert error_of(call, short.SerializeToString())[1].startswith("input 'x': expected 24 bytes for shape [2, 3]")
        texts = service_pb2.ModelInferRequest(model_name="texts")
        texts.inputs.add(name="x", datatype="BYTES", shape=[2])
        for words in ((b"a", b"bc"), (b"", b"\xc3\xa4" * 50)):
            raw = b"".join(len(word).to_bytes(4, "little") + word for word in words)
            texts.raw_input_contents[:] = [raw]
            answer = service_pb2.ModelInferResponse.FromString(call(texts.SerializeToString()))
            assert list(answer.raw_output_contents) == [raw]


def test_a_large_message_whose_client_leaves_takes_no_memory(server):
    array = np.ones((8 * MB,), np.float32).reshape(1, -1)
    message = asked(array, model="endless").SerializeToString()
    before = server.megabytes("VmRSS")
    with channel(server) as client:
        for _ in range(6):
            call = client.unary_unary(INFER).future(message, timeout=30)
            time.sleep(0.3)
            call.cancel()
    wait_until(lambda: "opgate_held_bytes 0.0" in server.get("/metrics"))
    wait_until(lambda: "opgate_grpc_connections 0.0" in server.get("/metrics"))
    assert server.megabytes("VmRSS") - before < 100


def test_more_connections_than_most_systems_allow_at_first(repository):
    """The shell that starts the server allows 256 open files, and more if one asks for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip(f"this system allows only {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        started = Server(repository)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1100), hard))
    try:
        many = [socket.create_connection(("127.0.0.1", started.grpc)) for _ in range(500)]
        wait_until(lambda: "opgate_grpc_connections 500.0" in started.get("/metrics"))
        with channel(started) as client:
            assert client.unary_unary(INFER)(asked(np.ones((1, 2), np.float32)).SerializeToString(), timeout=10)
        for one in many:
            one.close()
        wait_until(lambda: "opgate_grpc_connections 0.0" in started.get("/metrics"))
    finally:
        assert started.stop() == 0


def test_a_deadline_ends_the_run(server):
    with channel(server) as client:
        begin = time.monotonic()
        code, _ = error_of(
            client.unary_unary(INFER),
            asked(np.ones((1, 2), np.float32), model="endless").SerializeToString(),
            timeout=0.5,
        )
        assert code == "DEADLINE_EXCEEDED" and time.monotonic() - begin < 3
    wait_until(lambda: "opgate_running_requests 0.0" in server.get("/metrics"))


def test_tls(repository, tmp_path):
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    issued.private_key_pem.write_to_path(tmp_path / "server.key")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    files = {
        "OPGATE_GRPC_TLS_CERTIFICATE": str(tmp_path / "server.pem"),
        "OPGATE_GRPC_TLS_KEY": str(tmp_path / "server.key"),
    }
    x = triton_grpc.InferInput("x", [2, 50_000], "FP32")
    x.set_data_from_numpy(np.ones((2, 50_000), np.float32))
    with running(repository, env=files) as started:
        url = f"localhost:{started.grpc}"
        with triton_grpc.InferenceServerClient(url, ssl=True, root_certificates=str(tmp_path / "ca.pem")) as client:
            assert client.infer("double", [x]).as_numpy("y").sum() == 200_000
        with triton_grpc.InferenceServerClient(url) as client, pytest.raises(triton_grpc.InferenceServerException):
            client.is_server_live(client_timeout=3)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["CERTIFICATE"], "needs both OPGATE_GRPC_TLS_CERTIFICATE and OPGATE_GRPC_TLS_KEY"),
        (["CLIENT_CA"], "needs both OPGATE_GRPC_TLS_CERTIFICATE and OPGATE_GRPC_TLS_KEY"),
        (["CERTIFICATE", "KEY"], "the TLS files of gRPC can't be used"),
    ],
)
def test_tls_that_cannot_work_is_refused_at_the_start(repository, tmp_path, names, text):
    (tmp_path / "file").write_text("no certificate")
    env = {f"OPGATE_GRPC_TLS_{name}": str(tmp_path / "file") for name in names}
    command = [sys.executable, "-m", "opgate", "serve", "--model-repository", str(repository), "--http-port", "0", "--grpc-port", "0"]  # fmt: skip
    finished = subprocess.run(
        command, cwd=ROOT, env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True, timeout=60
    )
    assert finished.returncode == 1 and text in finished.stderr + finished.stdout


def test_a_stop_with_clients_that_watch_and_a_call_under_way(repository):
    started = Server(repository)
    try:
        with channel(started) as client, channel(started) as other:
            watch = health_pb2_grpc.HealthStub(client).Watch(health_pb2.HealthCheckRequest())
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            call = other.unary_unary(INFER)
            array = np.ones((1, 3), np.float32)
            assert (answered(call(asked(array).SerializeToString())) == 2).all()
            begin = time.monotonic()
            started.process.terminate()
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert error_of(lambda: next(watch)) == ("UNAVAILABLE", "the server stops")
            assert started.process.wait(20) == 0 and time.monotonic() - begin < 6
    finally:
        assert started.stop() == 0
