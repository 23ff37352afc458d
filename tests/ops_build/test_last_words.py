"""When an op ends the process of the gateway, the last line of the log names the op and the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from tests.service.onnx_models import value
from tests.system.running import Server
from tests.system.test_http import Connection


def deadly(repository: Path, how: str, library: Path) -> None:
    node = helper.make_node("Misbehave", ["x"], ["y"], domain="fixture_ops", how=how)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "deadly", [value("x", "FP32", ["n"])], [y])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("fixture_ops", 1)]
    (repository / "deadly" / "1").mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), repository / "deadly" / "1" / "model.onnx")
    (repository / "deadly" / "config.pbtxt").write_text(
        f'''backend: "onnxruntime" model_operations {{ op_library_filename: "{library.name}" }}
        input [ {{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }} ]
        output [ {{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }} ]'''
    )


@pytest.mark.parametrize(
    ("how", "name"), [("reads_null", "SIGSEGV"), ("aborts", "SIGABRT"), ("fills_the_stack", "SIGSEGV")]
)
def test_the_last_words_name_the_op(tmp_path: Path, fixture_built: Any, how: str, name: str) -> None:
    library = fixture_built.libraries["onnxruntime"]
    deadly(tmp_path, how, library)
    server = Server(tmp_path, env={"OPGATE_OPS_PATH": str(library.parent)})
    body = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]})
    with Connection(server) as connection:
        head = f"POST /v2/models/deadly/infer HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.send((head + body).encode())
        assert server.process.wait(20) < 0
        server.stop()
    last = json.loads(server.log[-1])["message"]
    assert name in last and "in a run of model 'deadly' version 1, op Misbehave" in last
