"""Elements of BYTES tensors that are not text, with the unmodified tritonclient over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import json
import queue
import urllib.error
import urllib.request
import uuid

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
import tritonclient.utils.shared_memory as shm
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, deserialize_bytes_tensor, serialize_byte_tensor

from tests.conftest import thorough
from tests.service.onnx_models import batching, identity, write_config
from tests.system.clients import CLIENTS
from tests.system.running import running
from tests.system.test_triton import Triton, installed

# What a picture looks like: a JPEG's head, every byte, and zeros at the end.
JPEG = bytes.fromhex("ffd8ffe000104a46494600010100000100010000ffdb0043") + bytes(range(256)) * 400 + b"\xff\xd9\0\0"
CHAIN = """platform: "ensemble" max_batch_size: 8
input [ { name: "x" data_type: TYPE_STRING dims: [ 1 ] } ] output [ { name: "y" data_type: TYPE_STRING dims: [ 1 ] } ]
ensemble_scheduling { step [
  { model_name: "cell" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "mid" } },
  { model_name: "cell" model_version: -1 input_map { key: "x" value: "mid" } output_map { key: "y" value: "y" } } ] }"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    identity(folder, "list", "BYTES", ("n",))
    identity(
        folder, "cell", "BYTES", ("batch", 1), batching("dynamic_batching { max_queue_delay_microseconds: 20000 }")
    )
    identity(folder, "cached", "BYTES", ("batch", 1), batching() + "response_cache { enable: true }")
    write_config(folder, "chain", CHAIN)
    with running(folder) as started:
        yield started


@pytest.fixture(scope="module")
def clients(server):
    with (
        http_client.InferenceServerClient(f"127.0.0.1:{server.http}") as http,
        grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc}") as grpc,
    ):
        yield {"http": http, "grpc": grpc}


def tensor(library, elements, shape=None):
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    array = array if shape is None else array.reshape(shape)
    made = library.InferInput("x", list(array.shape), "BYTES")
    made.set_data_from_numpy(array)
    return made


ANY = st.one_of(st.binary(max_size=30), st.text(max_size=10).map(str.encode))


@given(st.lists(ANY, min_size=1, max_size=10))
@hypothesis_settings(max_examples=60, deadline=None)
def test_any_lists_of_bytes_come_back(clients, elements):
    for name, client in clients.items():
        result = client.infer("list", [tensor(CLIENTS[name], elements)])
        assert result.as_numpy("y").tolist() == elements


@pytest.mark.parametrize("model", ["cell", "cached", "chain"])
def test_a_picture_comes_back(client, protocol, model):
    for _ in range(3):  # the second time the envelope is known, and the answer may be cached
        result = client.infer(model, [tensor(CLIENTS[protocol], [JPEG], (1, 1))])
        assert result.as_numpy("y").tolist() == [[JPEG]]


@pytest.mark.parametrize(("library", "kind"), [(http_aio, "http"), (grpc_aio, "grpc")], ids=["http", "grpc"])
def test_pictures_in_batches_with_others(server, library, kind):
    sent = [JPEG + bytes([i]) if i % 2 else b"text %d" % i for i in range(40)]

    async def main():
        async with library.InferenceServerClient(f"127.0.0.1:{getattr(server, kind)}") as client:

            async def one(element):
                return (await client.infer("cell", [tensor(library, [element], (1, 1))])).as_numpy("y").tolist()

            return await asyncio.gather(*(one(element) for element in sent))

    assert asyncio.run(main()) == [[[element]] for element in sent]
    with http_client.InferenceServerClient(f"127.0.0.1:{server.http}") as client:
        (row,) = client.get_inference_statistics("cell")["model_stats"]
        assert int(row["execution_count"]) < int(row["inference_count"])


def test_contents_and_a_stream_of_grpc(server):
    asked = service_pb2.ModelInferRequest(model_name="list")
    asked.inputs.add(name="x", datatype="BYTES", shape=[3]).contents.bytes_contents.extend([JPEG, b"", b"text"])
    with grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        (data,) = client._client_stub.ModelInfer(asked).raw_output_contents
        assert deserialize_bytes_tensor(data).tolist() == [JPEG, b"", b"text"]
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put(error or result.as_numpy("y").tolist()))
        client.async_stream_infer("list", [tensor(grpc_client, [JPEG, b"text"])])
        assert answers.get(timeout=20) == [JPEG, b"text"]
        client.stop_stream()


def post(server, path, body, **headers):
    asked = urllib.request.Request(f"http://127.0.0.1:{server.http}{path}", body, headers)
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_json_cannot_hold_such_an_output(server):
    head = {"inputs": [{"name": "x", "shape": [2], "datatype": "BYTES"}]}
    data = serialize_byte_tensor(np.array([b"text", JPEG], np.object_)).item()
    head["inputs"][0]["parameters"] = {"binary_data_size": len(data)}
    length = len(json.dumps(head))
    status, body = post(
        server, "/v2/models/list/infer", json.dumps(head).encode() + data, **{"Inference-Header-Content-Length": length}
    )
    assert status == 400, body
    assert (
        "output 'y': element 1 is not UTF-8" in json.loads(body)["error"] and "binary_data" in json.loads(body)["error"]
    )
    head["parameters"] = {"binary_data_output": True}
    length = len(json.dumps(head))
    status, body = post(
        server, "/v2/models/list/infer", json.dumps(head).encode() + data, **{"Inference-Header-Content-Length": length}
    )
    assert status == 200 and body.endswith(data)


def test_a_raw_request(server):
    """Its body is the only element, without a length before it."""
    status, body = post(server, "/v2/models/list/infer", JPEG, **{"Inference-Header-Content-Length": "0"})
    assert status == 200 and body.endswith(len(JPEG).to_bytes(4, "little") + JPEG)


def test_predict_answers_with_text_only(server):
    def form(content):
        head = b'--b\r\nContent-Disposition: form-data; name="x"; filename="a"\r\n\r\n'
        return post(
            server,
            "/predict/list",
            head + content + b"\r\n--b--\r\n",
            **{"Content-Type": "multipart/form-data; boundary=b"},
        )

    status, body = form(b"text")
    assert status == 200 and json.loads(body)["outputs"] == {"y": ["text"]}
    status, body = form(JPEG)
    assert status == 400 and "output 'y': element 0 is not UTF-8" in json.loads(body)["error"]


def test_shared_memory(client, protocol):
    library = CLIENTS[protocol]
    elements = np.array([JPEG, b"text", b"\xff\0"], np.object_)
    size = len(serialize_byte_tensor(elements).item())
    handle = shm.create_shared_memory_region("bytes", f"/opgate_test_{uuid.uuid4().hex}", 2 * size)
    try:
        shm.set_shared_memory_region(handle, [serialize_byte_tensor(elements)])
        client.register_system_shared_memory("bytes", handle._shm_key, 2 * size)
        taken, wanted = library.InferInput("x", [3], "BYTES"), library.InferRequestedOutput("y")
        taken.set_shared_memory("bytes", size, 0)
        wanted.set_shared_memory("bytes", size, size)
        client.infer("list", [taken], outputs=[wanted])
        assert shm.get_contents_as_numpy(handle, np.object_, [3], size).tolist() == elements.tolist()
    finally:
        client.unregister_system_shared_memory("bytes")
        shm.destroy_shared_memory_region(handle)


def test_classification(client, protocol):
    library = CLIENTS[protocol]
    wanted = [library.InferRequestedOutput("y", class_count=2)]
    result = client.infer("list", [tensor(library, [b"a", b"\xff\0\xfe", "é".encode()])], outputs=wanted)
    assert result.as_numpy("y").tolist() == [b"\xff\0\xfe:1", "é:2".encode()]


def test_an_element_over_the_limit_is_refused(client, protocol):
    with pytest.raises(InferenceServerException) as error:
        client.infer("list", [tensor(CLIENTS[protocol], [b"\xff" * ((16 << 20) + 1)])])
    assert "element 0 has 16777217 bytes, the limit is 16777216" in error.value.message()


STATED = """input [ { name: "x" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_STRING dims: [ -1 ] } ]"""
# Triton runs it in an isolated Python, which ignores the variable.
COPY = """import os
import sys

sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
import triton_python_backend_utils as utils


class TritonPythonModel:
    def execute(self, requests):
        found = [utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [utils.InferenceResponse([utils.Tensor("y", array)]) for array in found]
"""


@thorough("a server starts, and its models in Python")
def test_triton_behind_the_gateway(tmp_path):
    """Triton runs a model in Python, because ONNX Runtime's Python API there takes only text."""
    installed()
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    identity(ours, "list", "BYTES", ("n",), f'backend: "onnxruntime" {STATED}')
    write_config(theirs, "list", f'backend: "python" {STATED}')
    (theirs / "list" / "1" / "model.py").write_text(COPY)
    triton = Triton(theirs)
    try:
        assert triton.listens.wait(120) and triton.process.poll() is None, "".join(triton.log)
        sent = [JPEG, b"\xff" * 3000, b"", "é\0".encode(), b"a\0b"]
        with running(ours, "--backend", "triton", "--triton-url", f"127.0.0.1:{triton.grpc}") as server:
            for library, port in ((grpc_client, server.grpc), (http_client, server.http)):
                with library.InferenceServerClient(f"127.0.0.1:{port}") as client:
                    assert client.infer("list", [tensor(library, sent)]).as_numpy("y").tolist() == sent
    finally:
        triton.stop()
