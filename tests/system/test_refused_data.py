"""What an op can't work with is the client's mistake, in every graph, and costs no other request."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image
from tritonclient.utils import InferenceServerException

from tests.system.clients import CLIENTS, connect
from tests.system.running import Server, running

WHERE = ["gateway", "worker"]
CONFIG = """backend: "onnxruntime"
model_operations { op_library_filename: "libopgate_onnxruntime.so" }
"""


@pytest.fixture(scope="module")
def server(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("pictures")
    graph = helper.make_graph(
        [
            helper.make_node("DecodeImage", ["data"], ["image"], domain="opgate"),
            helper.make_node("Shape", ["image"], ["size"]),
        ],
        "pictures",
        [helper.make_tensor_value_info("data", TensorProto.UINT8, ["n"])],
        [helper.make_tensor_value_info("size", TensorProto.INT64, [3])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("opgate", 1)]
    for where in WHERE:
        (repository / where / "1").mkdir(parents=True)
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), repository / where / "1" / "model.onnx")
        isolation = 'parameters { key: "isolation" value { string_value: "process" } }' if where == "worker" else ""
        (repository / where / "config.pbtxt").write_text(CONFIG + isolation)
    with running(repository) as started:
        yield started


def picture(size: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((size, 2 * size, 3), 80, np.uint8)).save(file, "PNG")
    return file.getvalue()


def predict(server: Server, model: str, data: bytes) -> tuple[int, dict[str, object]]:
    request = urllib.request.Request(f"{server.url}/predict/{model}", data, {"content-type": "image/png"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize("where", WHERE)
def test_a_broken_picture_among_32(server: Server, where: str) -> None:
    sent = [picture(size) for size in range(1, 33)]
    sent[7], sent[20] = b"no picture", sent[20][:-20]
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda data: predict(server, where, data), sent))
    for i, (status, answer) in enumerate(answers):
        if i in (7, 20):
            assert status == 400, answer
            assert "corrupt or truncated" in str(answer) or "not a JPEG" in str(answer)
        else:
            assert (status, answer["outputs"]) == (200, {"size": [i + 1, 2 * i + 2, 3]})


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_error_is_what_the_op_says(server: Server, protocol: str, where: str) -> None:
    tensor = CLIENTS[protocol].InferInput("data", [10], "UINT8")
    tensor.set_data_from_numpy(np.zeros(10, np.uint8))
    with connect(server, protocol) as client, pytest.raises(InferenceServerException) as raised:
        client.infer(where, [tensor])
    assert raised.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    assert raised.value.message().startswith(f"model '{where}': opgate::DecodeImage: input 'data': expected a ")
    assert "ONNXRuntimeError" not in raised.value.message()


@pytest.mark.parametrize("where", WHERE)
def test_a_broken_picture_among_32_files(server: Server, where: str) -> None:
    """They come in one form, and each is answered as if it were alone."""
    sent = [picture(size) for size in range(1, 33)]
    sent[7] = b"no picture"
    parts = [
        f'--frontier\r\nContent-Disposition: form-data; name="data"; filename="{i}.png"\r\n\r\n'.encode() + data
        for i, data in enumerate(sent)
    ]
    body = b"\r\n".join([*parts, b"--frontier--\r\n"])
    kind = {"content-type": "multipart/form-data; boundary=frontier"}
    with urllib.request.urlopen(urllib.request.Request(f"{server.url}/predict/{where}", body, kind)) as answer:
        results = json.loads(answer.read())["results"]
    assert "not a JPEG" in results[7]["error"]
    for i, result in enumerate(results):
        assert i == 7 or result["outputs"] == {"size": [i + 1, 2 * i + 2, 3]}
