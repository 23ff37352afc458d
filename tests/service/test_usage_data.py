"""ONNX Runtime sends no usage data from a process of opgate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper

_CODE = """
import sys, time
import opgate.service.run, onnxruntime
onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
time.sleep(1)
"""


def test_onnxruntime_sends_no_usage_data(tmp_path: Path) -> None:
    """Before its first upload, ONNX Runtime keeps a number of this machine, and what it will send, in the home folder."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [value], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    home = tmp_path / "home"
    home.mkdir()
    command = [sys.executable, "-c", _CODE, str(tmp_path / "m.onnx")]
    subprocess.run(command, check=True, env={"HOME": str(home)}, cwd=Path(__file__).parents[2], timeout=60)
    assert list(home.rglob("*")) == []
