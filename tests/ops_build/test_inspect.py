"""`opgate inspect`: shapes, bytes and operations against counts by hand, what engines lack, and Netron's page."""

import json
import re
import subprocess
import sys
import urllib.request

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from opgate.onnx_tools import netron_view
from opgate.onnx_tools.flops import flops_of
from opgate.onnx_tools.inspection import by_op, inspect
from opgate.onnx_tools.measurement import NodeTime, OpTime, measure
from opgate.onnx_tools.measurement import by_op as times_by_op
from opgate.onnx_tools.model_inputs import InputError
from opgate.onnx_tools.run_model import Libraries
from opgate.onnx_tools.values import Values
from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.onnx import schema
from opgate.ops_build.op_table import read_table
from tests import PROJECT

OPSETS = [helper.make_opsetid("", 18), helper.make_opsetid("opgate", 1), helper.make_opsetid("custom", 1)]


def model_of(nodes, inputs, outputs, weights=()):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "g", values, results, list(weights))
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=10)


def weight(name, *shape):
    return numpy_helper.from_array(np.ones(shape, np.float32), name)


@pytest.fixture(scope="module")
def libraries(library):
    table = read_table(library)
    schema.register(table)
    return Libraries((library,), {library: table}, (SOURCE / "ops",))


#: A node, the shapes of its inputs, and its operations, counted by hand.
COUNTED = {
    "Conv": (helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1]), {"x": [2, 3, 8, 8], "w": [4, 3, 3, 3]}, 2 * (2 * 4 * 8 * 8) * 27),
    "Conv, groups": (helper.make_node("Conv", ["x", "w", "b"], ["y"], group=2), {"x": [1, 4, 5, 5], "w": [6, 2, 1, 1], "b": [6]}, 6 * 25 * (2 * 2 + 1)),
    "ConvTranspose": (helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2]), {"x": [1, 3, 4, 4], "w": [3, 5, 2, 2]}, 3 * 16 * 2 * 5 * 4),
    "MatMul": (helper.make_node("MatMul", ["x", "w"], ["y"]), {"x": [2, 5, 7], "w": [7, 3]}, 2 * 2 * 5 * 7 * 3),
    "MatMul of vectors": (helper.make_node("MatMul", ["x", "w"], ["y"]), {"x": [7], "w": [7]}, 14),
    "Gemm": (helper.make_node("Gemm", ["x", "w", "b"], ["y"], transA=1), {"x": [7, 5], "w": [7, 3], "b": [3]}, 15 * (2 * 7 + 1)),
    "Add": (helper.make_node("Add", ["x", "w"], ["y"]), {"x": [4, 1], "w": [1, 5]}, 20),
    "Sum of three": (helper.make_node("Sum", ["x", "w", "b"], ["y"]), {"x": [4], "w": [4], "b": [4]}, 8),
    "MaxPool": (helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2]), {"x": [1, 3, 8, 8]}, 3 * 16 * 4),
    "ReduceMean": (helper.make_node("ReduceMean", ["x"], ["y"], keepdims=0), {"x": [6, 7]}, 42),
    "Transpose": (helper.make_node("Transpose", ["x"], ["y"]), {"x": [6, 7]}, 0),
    "LSTM": (helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4), {"x": [5, 2, 3], "w": [1, 16, 3], "r": [1, 16, 4]}, 2 * 5 * 2 * 16 * (3 + 4)),
    "empty": (helper.make_node("Relu", ["x"], ["y"]), {"x": [0, 3]}, 0),
    "Resize": (helper.make_node("Resize", ["x", "", "s"], ["y"]), {"x": [1, 1, 2, 2], "s": [4]}, None),
    # The decomposition of ClampedRelu: Less, Where, Greater, Where, and constants.
    "opgate::ClampedRelu": (helper.make_node("ClampedRelu", ["x"], ["y"], domain="opgate"), {"x": [10]}, 40),
    "opgate::GridCluster": (helper.make_node("GridCluster", ["x", "w"], ["y"], domain="opgate"), {"x": [10, 3], "w": [3]}, None),
    "custom::Foo": (helper.make_node("Foo", ["x"], ["y"], domain="custom"), {"x": [10]}, None),
}  # fmt: skip


@pytest.mark.parametrize("case", COUNTED)
def test_operations_are_those_counted_by_hand(libraries, case):
    node, inputs, expected = COUNTED[case]
    ops = {(op.domain, op.name): op for table in libraries.tables.values() for op in table}
    values = Values(model_of([node], inputs, ["y"]))
    assert flops_of(node, values, ops, libraries.folders) == expected


def test_open_dims_get_the_stated_sizes(libraries):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Mish", ["a"], ["y"], domain="opgate"),
    ]
    model = model_of(nodes, {"x": ["N", 3, "H", "W"]}, ["y"], [weight("w", 4, 3, 3, 3)])
    found = inspect(model, libraries, Libraries((), {}, ()), {"H": 16, "W": 10})
    assert found.inputs == ("x: f32[1, 3, 16, 10]",) and found.outputs == ("y: f32[1, 4, 16, 10]",)
    assert (found.weights, found.weight_bytes) == (108, 432)
    assert [(node.op, node.origin, node.bytes) for node in found.nodes] == [
        ("Conv", "onnx", 4 * 640), ("opgate::Mish", "library", 4 * 640)
    ]  # fmt: skip
    assert found.nodes[0].flops == 640 * 54
    assert [row["op"] for row in by_op(found.nodes)] == ["Conv", "opgate::Mish"]
    engines = {report.engine: report for report in found.engines}
    assert engines["onnxruntime cpu"].runs and engines["reference"].runs
    assert not engines["torch (standard operators in NumPy)"].runs
    assert "opgate::Mish" in engines["torch (standard operators in NumPy)"].missing


def test_what_is_copied_on_a_gpu(libraries):
    """DecodeImage stays on the CPU: what it makes is copied to the GPU once, however many nodes take it."""
    nodes = [
        helper.make_node("DecodeImage", ["data", "ends"], ["pixels", "sizes", "status"], domain="opgate"),
        helper.make_node("Cast", ["pixels"], ["x"], to=1),
        helper.make_node("Mish", ["x"], ["y"], domain="opgate"),
        helper.make_node("Cast", ["pixels"], ["other"], to=1),
        helper.make_node("Cast", ["other"], ["bytes"], to=2),
        helper.make_node("EncodeImage", ["bytes", "sizes"], ["file", "file_ends"], domain="opgate"),
    ]
    given = [
        helper.make_tensor_value_info("data", TensorProto.UINT8, [100]),
        helper.make_tensor_value_info("ends", TensorProto.INT32, [1]),
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in ("y", "file")]
    model = helper.make_model(helper.make_graph(nodes, "g", given, results), opset_imports=OPSETS, ir_version=10)
    copies = {
        copy.tensor.partition(":")[0]: (copy.to_gpu, copy.because)
        for copy in inspect(model, libraries, libraries, {}).copies
    }
    assert copies == {
        "pixels": (True, "after DecodeImage"),
        "y": (False, "an output"),
        "bytes": (False, "for EncodeImage"),
    }


def test_an_op_that_nobody_has_is_named_for_every_engine(libraries):
    model = model_of([helper.make_node("Foo", ["x"], ["y"], domain="custom")], {"x": [3]}, ["y"])
    found = inspect(model, libraries, libraries, {})
    assert {report.engine for report in found.engines if not report.runs} >= {"onnxruntime cpu", "reference"}
    assert all("Foo" in report.missing for report in found.engines if report.engine in ("onnxruntime cpu", "reference"))
    assert found.nodes[0].shapes == ("f32[?]",) and found.nodes[0].bytes is None


def test_each_engine_says_what_it_knows_of_the_ops_of_others(libraries):
    """ONNX Runtime has ops of its own, the evaluator lacks one of ONNX, and TensorRT has neither."""
    gelu = model_of([helper.make_node("FastGelu", ["x"], ["y"], domain="com.microsoft")], {"x": [3]}, ["y"])
    gelu.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    zipped = model_of(
        [helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])],
        {"x": ["N", 2]},
        ["y"],
    )
    zipped.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    del zipped.graph.output[:]
    output = zipped.graph.output.add(name="y").type.sequence_type.elem_type.map_type
    output.key_type = TensorProto.INT64
    output.value_type.tensor_type.elem_type = TensorProto.FLOAT
    for model, name in ((gelu, "FastGelu"), (zipped, "ZipMap")):
        found = {report.engine: report for report in inspect(model, libraries, libraries, {}).engines}
        assert found["onnxruntime cpu"].runs
        for engine in ("reference", "tensorrt"):
            assert not found[engine].runs and name in found[engine].missing


def test_notes_and_weights_of_other_exporters(libraries):
    """Paddle's exporter writes -1 for an open size, and its weights are constants. Ultralytics notes the labels."""
    constant = helper.make_node("Constant", [], ["w"], value=weight("w", 4, 3))
    model = model_of([constant, helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [-1, 6, 3]}, ["y"])
    model.metadata_props.add(key="names", value="{0: 'face'}")
    constant.attribute[0].t.dims[:] = [3, 4]
    model.graph.node[0].CopyFrom(constant)
    found = inspect(model, libraries, libraries, {})
    assert found.metadata == (("names", "{0: 'face'}"),)
    assert (found.weights, found.weight_bytes) == (12, 48)
    assert found.inputs == ("x: f32[1, 6, 3]",) and found.nodes[1].flops == 2 * 6 * 3 * 4


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "opgate", "inspect", *map(str, arguments)], capture_output=True, text=True, cwd=PROJECT
    )


def test_a_library_that_torch_can_not_load_is_said(libraries):
    pytest.importorskip("torch")
    model = model_of([helper.make_node("Mish", ["x"], ["y"], domain="opgate")], {"x": [3]}, ["y"])
    found = {report.engine: report for report in inspect(model, libraries, libraries, {}).engines}
    # Another test may have loaded the ops in this process. Then that is the reason.
    assert "libopgate_onnxruntime.so" in found["torch (standard operators in NumPy)"].missing
    assert found["onnxruntime cpu"].runs


def test_the_command_prints_tables_and_json(library):
    model = PROJECT / "model_repository" / "digit_network" / "1" / "model.onnx"
    text = command(model, "--library", library, "--nodes")
    assert text.returncode == 0, text.stderr
    assert "opgate::Mish" in text.stdout and "onnxruntime cpu" in text.stdout
    assert "input image: f32[1, 3, 320, 320]" in text.stdout
    assert "stem.conv" in text.stdout and "f32[1, 16, 160, 160]" in text.stdout
    found = json.loads(command(model, "--library", library, "--json").stdout)
    convolutions = [node for node in found["nodes"] if node["op"] == "Conv"]
    assert convolutions[0]["flops"] == 16 * 160 * 160 * (2 * 3 * 3 * 3 + 1)


def test_the_time_of_each_op(library):
    model = PROJECT / "model_repository" / "digit_network" / "1" / "model.onnx"
    text = command(model, "--library", library, "--measure")
    assert text.returncode == 0, text.stderr
    row = re.search(r"│ opgate::Mish +│ yes +│ +(\d+) │ +[\d,]+ │ +[\d.]+% │", text.stdout)
    assert row is not None and re.search(r"│ Conv +│ +│", text.stdout)
    assert "medians of 20 runs" in text.stdout
    found = json.loads(command(model, "--library", library, "--measure", "--json").stdout)
    times = found["measured"]
    mishes = [node for node in times if node["op"] == "opgate::Mish"]
    assert len(mishes) == int(row[1]) and all(node["custom"] for node in mishes)
    assert not any(node["custom"] for node in times if node["op"] != "opgate::Mish")
    assert sum(node["microseconds"] for node in times) > 0
    assert len({node["name"] for node in times}) == len(times)


def test_a_run_that_can_not_be_measured_says_why(library, tmp_path):
    nodes = [helper.make_node("Mish", ["x"], ["a"], domain="opgate"), helper.make_node("MatMul", ["a", "a"], ["y"])]
    onnx.save(model_of(nodes, {"x": ["n", "m"]}, ["y"]), tmp_path / "m.onnx")
    assert command(tmp_path / "m.onnx", "--library", library, "--measure", "-i", "x=f32[3,3]").returncode == 0
    done = command(tmp_path / "m.onnx", "--library", library, "--measure", "-i", "x=f32[2,3]")
    assert done.returncode == 1 and "MatMul" in done.stderr and "Traceback" not in done.stderr


def test_the_time_of_an_op_is_that_of_its_nodes():
    nodes = [NodeTime("a", "Conv", False, 6.0), NodeTime("b", "m::Op", True, 3.0), NodeTime("c", "m::Op", True, 1.0)]
    assert times_by_op(nodes) == [OpTime("Conv", False, 1, 6.0, 0.6), OpTime("m::Op", True, 2, 4.0, 0.4)]


@pytest.mark.parametrize(("content", "message"), [(b"no model", "is no ONNX model"), (b"", "is no ONNX model")])
def test_what_is_no_model_is_refused(tmp_path, content, message):
    (tmp_path / "model.onnx").write_bytes(content)
    done = command(tmp_path / "model.onnx")
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr


def test_nodes_of_functions_are_counted_for_each_call(libraries):
    """A function has names of its own: its y has another shape than that of the graph."""
    nodes = [helper.make_node("Twice", [x], [y], domain="custom") for x, y in (("x", "a"), ("w", "b"))]
    model = model_of([*nodes, helper.make_node("Neg", ["a"], ["y"])], {"x": [6], "w": [2, 5]}, ["y", "b"])
    text = '<domain: "custom", opset_import: ["": 18]> Twice (x) => (z) { y = Add (x, x) z = Relu (y) }'
    model.functions.append(onnx.parser.parse_function(text))
    found = inspect(model, libraries, Libraries((), {}, ()), {})
    assert [(row["op"], row["nodes"], row["flops"]) for row in by_op(found.nodes)] == [
        ("Add", 2, 16), ("Relu", 2, 16), ("Neg", 1, 6)
    ]  # fmt: skip
    assert {report.engine for report in found.engines if report.runs} >= {"onnxruntime cpu", "reference"}


def test_what_is_stated_of_sizes_is_checked(libraries):
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": ["N", 3]}, ["y"])
    with pytest.raises(InputError, match="--size: the model has no open dim 'n': expected N"):
        inspect(model, libraries, libraries, {"n": 4})


def test_an_input_without_a_rank_is_shown_as_it_is(tmp_path):
    x = onnx.ValueInfoProto(name="x")
    x.type.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [onnx.ValueInfoProto(name="y")])
    onnx.save(helper.make_model(graph, opset_imports=OPSETS[:1], ir_version=10), tmp_path / "model.onnx")
    done = command(tmp_path / "model.onnx")
    assert done.returncode == 0 and "input x: f32[?]" in done.stdout, done.stderr
    done = command(tmp_path / "model.onnx", "--size", "H=many")
    assert done.returncode == 1 and "expected a size" in done.stderr


def test_how_long_the_nodes_of_a_large_model_take():
    """A gateway refuses a profile of so many calls. Here nobody waits for it."""
    names = ["x", *(f"t{number}" for number in range(1500)), "y"]
    ops = ["Sin", "Cos"] * len(names)
    nodes = [helper.make_node(op, [one], [other]) for op, one, other in zip(ops, names, names[1:], strict=False)]
    model = model_of(nodes, {"x": [3]}, ["y"])
    times = measure(model, Libraries((), {}, ()), {"x": np.zeros(3, np.float32)})
    assert len(times) == len(nodes) and not any(time.custom for time in times)


def test_netron_knows_the_ops(library, tmp_path):
    netron = pytest.importorskip("netron")
    model = model_of([helper.make_node("Mish", ["x"], ["y"], domain="opgate")], {"x": [3]}, ["y"])
    onnx.save(model, tmp_path / "model.onnx")
    host, port = netron_view.show(tmp_path / "model.onnx", read_table(library), ("127.0.0.1", 0), browse=False)
    try:

        def get(path):
            with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=20) as answer:
                return answer.read()

        entries = {(entry["module"], entry["name"]): entry for entry in json.loads(get("/onnx-metadata.json"))}
        assert ("ai.onnx", "Conv") in entries
        knn = entries["opgate", "KNNQuery"]
        assert [one["name"] for one in knn["inputs"]] == ["xyz", "offset", "new_xyz", "new_offset"]
        assert knn["min_input"] == 2 and knn["max_input"] == 4
        assert {"name": "nsample", "type": "int64", "required": False, "description": "", "default": 16} in knn[
            "attributes"
        ]
        assert b"<html" in get("/")
        assert get("/data/model.onnx") == (tmp_path / "model.onnx").read_bytes()
    finally:
        netron.stop((host, port))
