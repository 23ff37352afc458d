"""Triton's classification extension with the unmodified tritonclient, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import json
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from tests.service.onnx_models import batching, double, identity, labelled, ragged_sum
from tests.system.clients import CLIENTS
from tests.system.conftest import TYPES
from tests.system.running import running
from tests.system.shared_files import shared_file


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    for name in TYPES:
        identity(folder, f"identity_{name}", name, config=batching())
    double(folder, "plain", config='backend: "onnxruntime"', shape=("a", "b"))
    ragged_sum(folder, "ragged")
    labelled(folder)
    with running(folder, env={"OPGATE_MAX_STRINGS": "100"}) as started:
        yield started


def tensor(protocol, array, datatype="FP32", name="x"):
    made = CLIENTS[protocol].InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def texts(array):
    return np.array([e.decode() if isinstance(e, bytes) else e for e in array.reshape(-1)], object).reshape(array.shape)


def classes(client, protocol, model, array, count, datatype="FP32", **more):
    outputs = [CLIENTS[protocol].InferRequestedOutput("y", class_count=count)]
    result = client.infer(model, [tensor(protocol, array, datatype)], outputs=outputs, **more)
    stated = result.get_output("y")
    assert (stated["datatype"] if protocol == "http" else stated.datatype) == "BYTES"
    return texts(result.as_numpy("y")).tolist()


@pytest.mark.parametrize("datatype", TYPES)
def test_every_type(client, protocol, datatype):
    if datatype == "BYTES":
        array = np.array([["a", "c", "é", "b"], ["", "", "y", "x"]], object)
        expected = [["é:2", "c:1", "b:3"], ["y:2", "x:3", ":0"]]
    elif datatype == "BOOL":
        array = np.array([[False, True, False, True], [False] * 4])
        expected = [["1:1", "1:3", "0:0"], ["0:0", "0:1", "0:2"]]
    else:
        array = np.array([[1, 5, 10, 4], [7, 7, 100, 7]]).astype(triton_to_np_dtype(datatype))
        digits = ".000000" if datatype.startswith("FP") else ""
        values = [["10", "5", "4"], ["100", "7", "7"]]
        expected = [
            [f"{value}{digits}:{i}" for value, i in zip(row, indices, strict=True)]
            for row, indices in zip(values, [[2, 1, 3], [2, 0, 1]], strict=True)
        ]
    for _ in range(3):  # the second time the envelope is known
        assert classes(client, protocol, f"identity_{datatype}", array, 3, datatype) == expected


def test_rows_shapes_and_ids(client, protocol):
    array = np.array([[1, 5], [10, 4]], np.float32)
    for request_id in ("", "with-an-id"):
        assert classes(client, protocol, "plain", array, 3, request_id=request_id) == [
            "20.000000:2",
            "10.000000:1",
            "8.000000:3",
        ]
    assert classes(client, protocol, "plain", array, 9) == ["20.000000:2", "10.000000:1", "8.000000:3", "2.000000:0"]
    assert classes(client, protocol, "plain", np.empty((0, 3), np.float32), 2) == []
    for rows in (1, 3, 8):
        batch = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
        expected = [[f"{4 * i + 3}.000000:3"] for i in range(rows)]
        assert classes(client, protocol, "identity_FP32", batch, 1) == expected


def test_numbers_that_are_none(client, protocol):
    array = np.array([[np.nan, -np.inf, np.inf, -np.nan]], np.float32)
    assert classes(client, protocol, "identity_FP32", array, 4) == [["inf:2", "-inf:1", "nan:0", "nan:3"]]


@pytest.mark.parametrize("model", ["labelled", "labelled_pipeline"])
def test_labels(client, protocol, model):
    """An ensemble without labels of its own has those of the model that makes the output."""
    array = np.array([[1, 5, 10, 4]], np.float32)
    expected = [["10.000000:2:dog:x", "5.000000:1", "4.000000:3", "1.000000:0:cat"]]
    assert classes(client, protocol, model, array, 4) == expected


def test_one_output_of_two(client, protocol):
    outputs = [
        CLIENTS[protocol].InferRequestedOutput("status"),
        CLIENTS[protocol].InferRequestedOutput("sum", class_count=5),
    ]
    array = np.array([[1, 2, 3]], np.float32)
    for _ in range(2):
        result = client.infer("ragged", [tensor(protocol, array, name="data")], outputs=outputs)
        assert texts(result.as_numpy("sum")).tolist() == [["6.000000:0"]]
        assert result.as_numpy("status").tolist() == [[0]]


def test_classes_in_json(server):
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 5, 10, 4]}]}
    body["outputs"] = [{"name": "y", "parameters": {"classification": 2}}]
    request = urllib.request.Request(f"{server.url}/v2/models/labelled/infer", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert json.load(answer)["outputs"] == [
            {"name": "y", "datatype": "BYTES", "shape": [1, 2], "data": ["10.000000:2:dog:x", "5.000000:1"]}
        ]


def test_classes_in_shared_memory(server, protocol):
    """tritonclient doesn't ask for both, so the parameters are set past it."""
    expected = b"".join(len(text).to_bytes(4, "little") + text for text in (b"10.000000:2:dog:x", b"5.000000:1"))
    array = np.array([[1, 5, 10, 4]], np.float32)
    port = server.http if protocol == "http" else server.grpc
    with shared_file(bytes(100)) as file, CLIENTS[protocol].InferenceServerClient(f"127.0.0.1:{port}") as client:
        client.register_system_shared_memory("r", file.key, 100)

        def output(size):
            wanted = CLIENTS[protocol].InferRequestedOutput("y")
            wanted.set_shared_memory("r", size, 10)
            if protocol == "http":
                wanted._parameters["classification"] = 2
            else:
                wanted._get_tensor().parameters["classification"].int64_param = 2
            return wanted

        for _ in range(2):
            result = client.infer("labelled", [tensor(protocol, array)], outputs=[output(len(expected))])
            stated = result.get_output("y")
            if protocol == "http":
                assert stated == {"name": "y", "datatype": "BYTES", "shape": [1, 2]}
            else:
                assert (stated.datatype, list(stated.shape)) == ("BYTES", [1, 2])
                assert list(result.get_response().raw_output_contents) == [b""]
            assert file.get(10, len(expected) + 2) == expected + bytes(2)
        with pytest.raises(
            InferenceServerException, match=f"has {len(expected)} bytes, its shared_memory_byte_size is 34"
        ):
            client.infer("labelled", [tensor(protocol, array)], outputs=[output(34)])
        client.unregister_system_shared_memory()


def test_asyncio_clients_each_get_their_own_classes(server):
    async def over(module, address):
        async with module.InferenceServerClient(address) as client:

            async def one(i):
                array = np.roll(np.array([[1, 2, 3, 40 + i]], np.float32), i, axis=1)
                made = module.InferInput("x", [1, 4], "FP32")
                made.set_data_from_numpy(array)
                outputs = [module.InferRequestedOutput("y", class_count=1)]
                result = await client.infer("identity_FP32", [made], outputs=outputs)
                assert texts(result.as_numpy("y")).tolist() == [[f"{40 + i}.000000:{(3 + i) % 4}"]]

            await asyncio.gather(*(one(i) for i in range(50)))

    asyncio.run(over(http_aio, f"127.0.0.1:{server.http}"))
    asyncio.run(over(grpc_aio, f"127.0.0.1:{server.grpc}"))


def test_too_many_classes(client, protocol):
    array = np.zeros((11, 10), np.float32)
    codes = {"http": "413", "grpc": "StatusCode.RESOURCE_EXHAUSTED"}
    assert len(classes(client, protocol, "plain", array, 100)) == 100
    with pytest.raises(InferenceServerException, match="output 'y': 101 classes are over the limit of 100") as caught:
        classes(client, protocol, "plain", array, 101)
    assert caught.value.status() == codes[protocol]


@pytest.mark.parametrize("count", [-1, "2", True, 2.5])
def test_a_number_of_classes_that_is_none(client, protocol, count):
    array = np.zeros((1, 4), np.float32)
    output = CLIENTS[protocol].InferRequestedOutput("y")
    if protocol == "http":
        output._parameters["classification"] = count
    else:
        field = {int: "int64_param", str: "string_param", bool: "bool_param", float: "double_param"}[type(count)]
        setattr(output._get_tensor().parameters["classification"], field, count)
    with pytest.raises(InferenceServerException, match=f"expected a positive integer, got '{count}'") as caught:
        client.infer("identity_FP32", [tensor(protocol, array)], outputs=[output])
    assert caught.value.status() == ("400" if protocol == "http" else "StatusCode.INVALID_ARGUMENT")


def test_the_extension_is_announced(client, protocol):
    metadata = client.get_server_metadata()
    extensions = metadata["extensions"] if protocol == "http" else metadata.extensions
    assert "classification" in extensions
