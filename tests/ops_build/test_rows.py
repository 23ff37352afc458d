"""Whether rows depend on each other, found by running them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from opgate.doctor.models import check_model
from opgate.onnx_tools.row_dependence import Rows, try_rows
from opgate.service.settings import Settings
from tests.service.onnx_models import save, value

FLOAT = TensorProto.FLOAT
NODES = {
    "alone": ([helper.make_node("Relu", ["x"], ["y"])], ["unk__1", 4], True, "3 random rows together give what each"),
    "sum": ([helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)], ["n", 4], False, "has the shape []"),
    "mean of the batch": (
        [helper.make_node("ReduceMean", ["x"], ["m"], axes=[0]), helper.make_node("Sub", ["x", "m"], ["y"])],
        ["n", 4],
        False,
        "rows together give other results than each alone",
    ),
    "order": (
        [helper.make_node("ArgMax", ["x"], ["i"], axis=0, keepdims=1), helper.make_node("Expand", ["i", "s"], ["y"])],
        ["n", 4],
        False,
        "the output 'y'",
    ),
    "fixed": ([helper.make_node("Relu", ["x"], ["y"])], [1, 4], False, "the first dim of 'x' is not open"),
    "flat": (
        [helper.make_node("Reshape", ["x", "flat"], ["y"])], ["n", 4], False, "of 3 rows has the shape [12]"
    ),
    "a size of 32": (
        [helper.make_node("MatMul", ["x", "w"], ["y"])], ["n", "k"], True, "3 random rows together"
    ),
    "never": ([helper.make_node("MatMul", ["x", "v"], ["y"])], ["n", "k"], False, "it doesn't run on 3 random rows"),
}  # fmt: skip


def found(name: str) -> Rows:
    nodes, shape, _, _ = NODES[name]
    constants = {"flat": [-1], "s": [3, 4], "w": np.ones((32, 2), np.float32), "v": np.ones((5, 2), np.float32)}
    graph = helper.make_graph(
        nodes,
        "rows",
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(array), key) for key, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options)
    return try_rows({"x": ("f32", shape)}, lambda feeds: {"y": session.run(None, dict(feeds))[0]})


INTEGERS = {
    "mixed beyond 1": ((50, 1), False, "the output 'y'"),
    "never mixed": ((1000, 1), True, "3 random rows together"),
    "all the same": ((1000, 0), False, "the output 'y' is the same for all random rows, which proves nothing"),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_of_other_ranges_are_tried(name: str) -> None:
    (most, factor), independent, why = INTEGERS[name]

    def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        x = feeds["x"]
        return {"y": factor * (x if x.max() < most else np.full_like(x, x.max()))}

    rows = try_rows({"x": ("i64", ["n", 40])}, run)
    assert rows.independent == independent and why in rows.why, rows.why


def test_a_table_of_few_rows_is_tried_with_small_integers_alone() -> None:
    table = np.random.default_rng(0).random((2, 3))
    rows = try_rows({"x": ("i64", ["n", 40])}, lambda feeds: {"y": table[feeds["x"]]})
    assert rows.independent, rows.why


@pytest.mark.parametrize("name", NODES)
def test_rows_are_tried(name: str) -> None:
    rows = found(name)
    assert rows.independent == NODES[name][2] and NODES[name][3] in rows.why, rows.why


def test_the_doctor_says_what_could_be_batched(tmp_path: Path) -> None:
    """A file whose first dim has a name that says nothing, with labels of rank 1 as scikit-learn's converter writes
    them."""
    nodes = [
        helper.make_node("ArgMax", ["x"], ["label"], axis=1, keepdims=0),
        helper.make_node("Softmax", ["x"], ["probabilities"]),
    ]
    outputs = [value("label", "INT64", ["unk__9"]), value("probabilities", "FP32", ["unk__9", 5])]
    save(tmp_path, "forest", nodes, [value("x", "FP32", ["unk__7", 5])], outputs)
    (finding,) = check_model(tmp_path, "forest", Settings(model_repository=tmp_path), 60)
    assert not finding.is_error and "requests run one by one, and could run together" in finding.what
    (tmp_path / "forest" / "config.pbtxt").write_text("max_batch_size: 8 dynamic_batching {}")
    assert not list(check_model(tmp_path, "forest", Settings(model_repository=tmp_path), 60))
