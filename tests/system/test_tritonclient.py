"""The unmodified tritonclient against a running server: HTTP and gRPC, sync and asyncio, JSON and binary, every type."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from tests.service.onnx_models import double
from tests.system.clients import CLIENTS, connect
from tests.system.conftest import TYPES
from tests.system.running import running


@pytest.fixture(scope="module")
def http(server):
    client = http_client.InferenceServerClient(f"127.0.0.1:{server.http}", concurrency=4)
    yield client
    client.close()


@pytest.fixture(scope="module")
def grpc(server):
    client = grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc}")
    yield client
    client.close()


def sample(datatype, shape=(2, 4)):
    if datatype == "BYTES":
        return np.array([[f"é{i}\0{j}".encode() for j in range(shape[1])] for i in range(shape[0])], dtype=np.object_)
    return (
        (np.arange(np.prod(shape)) % 2 + (0 if datatype == "BOOL" else 1))
        .astype(triton_to_np_dtype(datatype))
        .reshape(shape)
    )


def http_input(client, array, datatype="FP32", name="x", binary=True):
    tensor = client.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def grpc_input(client, array, datatype="FP32", name="x"):
    tensor = client.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def equal(got, array, datatype):
    if datatype == "BYTES":
        got = np.array([e if isinstance(e, bytes) else e.encode() for e in got.reshape(-1)], dtype=object).reshape(
            got.shape
        )
    return got.shape == array.shape and (got == array).all()


# The client itself sends FP16 in binary only.
@pytest.mark.parametrize(
    ("datatype", "in_binary"),
    [(datatype, binary) for datatype in TYPES for binary in (True, False) if binary or datatype != "FP16"],
)
@pytest.mark.parametrize("out_binary", [True, False])
def test_http_every_type(http, datatype, in_binary, out_binary):
    array = sample(datatype)
    inputs = [http_input(http_client, array, datatype, binary=in_binary)]
    outputs = [http_client.InferRequestedOutput("y", binary_data=out_binary)]
    result = http.infer(f"identity_{datatype}", inputs, outputs=outputs, request_id="abc")
    assert result.get_response()["id"] == "abc"
    assert equal(result.as_numpy("y"), array, datatype)


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_nan_and_infinity_in_json(http, datatype):
    """tritonclient writes and reads them as NaN, Infinity and -Infinity."""
    array = np.array([[np.nan, np.inf, -np.inf, 1.5]], np.float32 if datatype == "FP32" else np.float64)
    inputs = [http_input(http_client, array, datatype, binary=False)]
    outputs = [http_client.InferRequestedOutput("y", binary_data=False)]
    got = http.infer(f"identity_{datatype}", inputs, outputs=outputs).as_numpy("y")
    assert np.array_equal(got, array, equal_nan=True)


@pytest.mark.parametrize("datatype", TYPES)
def test_grpc_every_type(grpc, datatype):
    array = sample(datatype)
    result = grpc.infer(f"identity_{datatype}", [grpc_input(grpc_client, array, datatype)], request_id="abc")
    assert result.get_response().id == "abc"
    assert equal(result.as_numpy("y"), array, datatype)


@pytest.mark.parametrize("model", ["double", "pipeline", "plain"])
def test_models_of_every_kind(http, grpc, model):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    factor = 4 if model == "pipeline" else 2
    assert (http.infer(model, [http_input(http_client, array)]).as_numpy("y") == factor * array).all()
    assert (grpc.infer(model, [grpc_input(grpc_client, array)]).as_numpy("y") == factor * array).all()


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compression_both_ways(http, encoding):
    array = np.arange(64, dtype=np.float32).reshape(16, 4)
    result = http.infer(
        "double",
        [http_input(http_client, array)],
        request_compression_algorithm=encoding,
        response_compression_algorithm=encoding,
    )
    assert (result.as_numpy("y") == 2 * array).all()


def test_large_bodies(http, grpc):
    for seed in range(5):
        array = np.random.default_rng(seed).random((1 + seed % 3, 3, 224, 224), dtype=np.float32)
        assert (http.infer("large", [http_input(http_client, array)]).as_numpy("y") == 2 * array).all()
        assert (grpc.infer("large", [grpc_input(grpc_client, array)]).as_numpy("y") == 2 * array).all()


def test_asyncio_clients_each_get_their_own_answer(server):
    async def over_http():
        async with http_aio.InferenceServerClient(f"127.0.0.1:{server.http}", conn_limit=64) as client:

            async def one(i):
                array = np.full((i % 4 + 1, 4), i, np.float32)
                result = await client.infer("double", [http_input(http_aio, array, binary=i % 5 > 0)])
                return (result.as_numpy("y") == 2 * array).all()

            return await asyncio.gather(*(one(i) for i in range(200)))

    async def over_grpc():
        async with grpc_aio.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:

            async def one(i):
                array = np.full((1, i % 7 + 1), i, np.float32)
                result = await client.infer("ragged", [grpc_input(grpc_aio, array, name="data")])
                return result.as_numpy("sum")[0, 0] == array.sum()

            return await asyncio.gather(*(one(i) for i in range(200)))

    assert all(asyncio.run(over_http()))
    assert all(asyncio.run(over_grpc()))


def test_batches_are_formed_and_counted(server, http):
    before = http.get_inference_statistics("ragged")["model_stats"][0]
    test_asyncio_clients_each_get_their_own_answer(server)
    after = http.get_inference_statistics("ragged")["model_stats"][0]
    inferences = after["inference_count"] - before["inference_count"]
    assert inferences == 200
    assert after["execution_count"] - before["execution_count"] < inferences


def test_the_metadata_of_a_version_has_that_one(tmp_path):
    for version in (1, 2):
        double(tmp_path, "double", config='backend: "onnxruntime" version_policy { all { } }', version=version)
    with running(tmp_path) as server:
        for protocol in CLIENTS:
            client = connect(server, protocol)
            for version, expected in (("", ["1", "2"]), ("1", ["1"]), ("2", ["2"])):
                found = client.get_model_metadata("double", version)
                assert list(found["versions"] if protocol == "http" else found.versions) == expected
            client.close()


def test_health_metadata_config_index_and_statistics(http, grpc):
    assert http.is_server_live()
    assert http.is_server_ready()
    assert http.is_model_ready("double")
    assert http.is_model_ready("double", "1")
    assert not http.is_model_ready("none")
    assert grpc.is_server_live()
    assert grpc.is_server_ready()
    assert grpc.is_model_ready("double")
    assert http.get_server_metadata()["name"] == grpc.get_server_metadata().name == "opgate"
    assert list(grpc.get_server_metadata().extensions) == http.get_server_metadata()["extensions"]
    metadata = http.get_model_metadata("ragged")
    assert metadata["inputs"] == [{"name": "data", "datatype": "FP32", "shape": [-1, -1]}]
    assert [list(i.shape) for i in grpc.get_model_metadata("ragged").inputs] == [[-1, -1]]
    assert http.get_model_config("double")["max_batch_size"] == 16
    assert grpc.get_model_config("double").config.max_batch_size == 16
    names = {row["name"] for row in http.get_model_repository_index()}
    assert names == {model.name for model in grpc.get_model_repository_index().models}
    assert {"double", "pipeline"} <= names
    assert len(http.get_inference_statistics()["model_stats"]) == len(names)
    assert len(grpc.get_inference_statistics().model_stats) == len(names)


def test_errors_have_the_codes_that_clients_know(http, grpc):
    array = np.zeros((1, 4), np.float32)
    cases = [
        ("none", array, "x", "404", "NOT_FOUND", "unknown model: 'none'"),
        ("double", array, "z", "400", "INVALID_ARGUMENT", "no input 'z'"),
        ("double", np.zeros((1, 5), np.float32), "x", "400", "INVALID_ARGUMENT", "got shape [1, 5]"),
        ("double", np.zeros((17, 4), np.float32), "x", "400", "INVALID_ARGUMENT", "batch size of 1 to 16, got 17"),
    ]
    for model, data, name, status, code, text in cases:
        with pytest.raises(InferenceServerException) as caught:
            http.infer(model, [http_input(http_client, data, name=name)])
        assert caught.value.status() == status
        assert text in caught.value.message()
        with pytest.raises(InferenceServerException) as caught:
            grpc.infer(model, [grpc_input(grpc_client, data, name=name)])
        assert caught.value.status() == f"StatusCode.{code}"
        assert text in caught.value.message()


def test_one_bad_index_in_a_batch_fails_one_request(server):
    async def main():
        async with http_aio.InferenceServerClient(f"127.0.0.1:{server.http}", conn_limit=16) as client:

            async def one(i):
                array = np.array([[99 if i == 5 else i % 8]], np.int64)
                result = await client.infer("pick", [http_input(http_aio, array, "INT64", "i")])
                return result.as_numpy("y")[0, 0] == 10 * (i % 8)

            return await asyncio.gather(*(one(i) for i in range(16)), return_exceptions=True)

    answers = asyncio.run(main())
    assert isinstance(answers[5], InferenceServerException)
    assert all(answer is np.True_ or answer == True for i, answer in enumerate(answers) if i != 5)  # noqa: E712


def test_rpcs_that_are_not_served_say_so(grpc):
    with pytest.raises(InferenceServerException, match="CUDA shared memory is not supported by this server"):
        grpc.register_cuda_shared_memory("region", b"AAAA", 0, 8)


def test_grpc_health_and_reflection(server):
    import grpc
    from google.protobuf.descriptor_pool import DescriptorPool
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        for service in ("", "inference.GRPCInferenceService"):
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "inference.GRPCInferenceService" in database.get_services()
        service = DescriptorPool(database).FindServiceByName("inference.GRPCInferenceService")
        assert "ModelInfer" in [method.name for method in service.methods]
