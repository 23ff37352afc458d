"""`opgate import` on the command line: its report, and what it says of models that it can't rewrite."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer
from click.testing import Result
from onnx import NodeProto, TensorProto, helper, numpy_helper, parser
from typer.testing import CliRunner

from opgate.commands.import_model import import_model as import_command
from opgate.onnx_tools import foreign
from opgate.onnx_tools.import_model import Setting, import_model
from opgate.onnx_tools.unknown_nodes import engines_of, unknown_ops
from opgate.ops_build.op_table import read_table

#: No timing decides whether a test passes.
FASTER = lambda before, after: (2.0, 1.0)  # noqa: E731
FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[Any] | None]],
    outputs: Sequence[str] = ("y",),
    constants: Mapping[str, Any] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, *declared) for name, declared in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    domains = dict.fromkeys(node.domain for node in nodes if node.domain)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def node(name: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), **attributes: Any) -> NodeProto:
    domain, op_type = name.split("::")
    return helper.make_node(op_type, inputs, outputs, domain=domain, **attributes)


def in_process(*arguments: object) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(import_command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opgate", "import", *map(str, arguments)], capture_output=True, text=True, timeout=120
    )


POINTS = {"xyz": (FLOAT, [20, 3]), "offset": (INT32, [1])}
KNN = node("custom::knnquery", ["nsample", "xyz", "offset"], ["idx", "dist"])


def test_the_report(library: Path, tmp_path: Path) -> None:
    nodes = [
        KNN,
        helper.make_node("Sigmoid", ["dist"], ["s"]),
        helper.make_node("Mul", ["s", "dist"], ["swish"]),
        node("mine::Thing", ["swish"], ["mine"], size=3),
        node("mmdeploy::NMSRotated", ["xyz", "xyz"], ["kept"], iou_threshold="0.5"),
    ]
    model = model_of(nodes[:3], POINTS, ["idx", "swish"], {"nsample": 4})
    onnx.save(model, tmp_path / "model.onnx")
    finished = command(tmp_path / "model.onnx", "--input", "offset=[20]", "--library", library)
    assert finished.returncode == 0, finished.stderr
    lines = finished.stdout.splitlines()
    assert lines[0].split() == ["op", "node", "what", "became", "of", "it", "note"]
    assert lines[1].split()[:4] == ["custom::knnquery", "idx", "now", "opgate::KNNQuery"]
    assert lines[2].split()[-4:] == ["max", "difference", "before", "after"]
    assert lines[3].startswith("Swish") and "kept" in lines[3] and lines[3].endswith("us")
    assert lines[4].startswith("the whole with Swish: ") or "not kept: it takes no less time" in lines[3]
    assert lines[-2:] == ["the new model: it loads and runs", f"wrote {tmp_path / 'model_imported.onnx'}"]
    imported = onnx.load(tmp_path / "model_imported.onnx")
    assert imported.graph.node[0].op_type == "KNNQuery" and not imported.graph.initializer

    finished = command(tmp_path / "model.onnx", "-o", tmp_path / "bad.onnx", "--library", library)
    assert "it loads, and doesn't run on these inputs" in finished.stdout  # offset doesn't end at row 20
    onnx.save(model_of(nodes, POINTS, ["idx", "mine", "kept"], {"nsample": 4}), tmp_path / "left.onnx")
    finished = command(tmp_path / "left.onnx", "--input", "offset=[20]", "--library", library)
    assert finished.returncode == 0
    for line in (
        "refused: attribute 'iou_threshold': expected a float, got a string",
        "mine::Thing stays (1 node): it needs an engine with an op library that has it",
        "mmdeploy::NMSRotated stays (1 node): it needs ONNX Runtime or TensorRT with the op library of mmdeploy",
        "the new model: it doesn't load",
    ):
        assert line in finished.stdout, finished.stdout


def test_files_and_options_that_are_refused(library: Path, tmp_path: Path) -> None:
    good = model_of([KNN], POINTS, ["idx"], {"nsample": 4})
    onnx.save(good, tmp_path / "good.onnx")
    whole = (tmp_path / "good.onnx").read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[: len(whole) - 7])
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "text.onnx").write_text("no model")
    np.save(tmp_path / "f64.npy", np.zeros((20, 3)))
    np.save(tmp_path / "small.npy", np.zeros((20, 2), np.float32))
    (tmp_path / "config.pbtxt").write_text('name: "good"')
    weights = {"nsample": 4, "w": np.ones((2, 2000), np.float32)}
    onnx.save(
        model_of([KNN], POINTS, ["idx"], weights), tmp_path / "lost.onnx", save_as_external_data=True, location="lost"
    )
    (tmp_path / "lost").unlink()
    plain = model_of([helper.make_node("Relu", ["xyz"], ["y"])], POINTS)
    onnx.save(plain, tmp_path / "plain.onnx")
    for arguments, message in [
        (["cut.onnx"], "cut.onnx is no ONNX model"),
        (["empty.onnx"], "empty.onnx is no ONNX model"),
        (["text.onnx"], "text.onnx is no ONNX model"),
        (["config.pbtxt"], "config.pbtxt is no ONNX model"),
        (["lost.onnx"], "lost.onnx has weights in the file lost beside it, which is not there"),
        (["good.onnx", "--size", "m=3"], "--size: the model has no open dim 'm': expected none"),
        (["good.onnx", "--library", __file__], "test_import_command.py: "),
        (["plain.onnx"], "nothing was rewritten"),
        (["good.onnx", "--input", "abc=[1]"], "the model has no input 'abc': expected xyz, offset"),
        (["good.onnx", "--input", "offset"], "expected NAME=FILE.npy, NAME=JSON or NAME=f32[1,3,8,8], got 'offset'"),
        (["good.onnx", "--input", "offset=x"], "input 'offset': expected a .npy file, a JSON list of i32 or i32[sizes], got 'x'"),
        (["good.onnx", "--input", "offset=[1.5]"], "input 'offset': expected a .npy file"),
        (["good.onnx", "--input", "offset=[1,2]"], "input 'offset': expected the shape [1], got [2]"),
        (["good.onnx", "--input", "xyz=i32[20,3]"], "input 'xyz': expected f32, got i32"),
        (["good.onnx", "--input", f"xyz={tmp_path}/f64.npy"], "input 'xyz': expected f32, and"),
        (["good.onnx", "--input", f"xyz={tmp_path}/small.npy"], "input 'xyz': expected the shape [20, 3], got [20, 2]"),
        (["good.onnx", "--input", "xyz=gone.npy"], "input 'xyz': gone.npy:"),
        (["good.onnx", "--size", "n=0"], "expected a size of 1 or more for dim 'n', got '0'"),
    ]:  # fmt: skip
        finished = in_process(tmp_path / arguments[0], "--library", library, *arguments[1:])
        assert finished.exit_code == 1, arguments
        assert message in finished.output, (arguments, finished.output)
        assert not (tmp_path / f"{Path(arguments[0]).stem}_imported.onnx").exists()


BOXES = {"boxes": (FLOAT, [1, 10, 5]), "scores": (FLOAT, [1, 2, 10])}
NMS = ("mmdeploy::NMSRotated", ["boxes", "scores"])
CONV = {
    "x": (FLOAT, [1, 4, 8, 8]),
    "offset": (FLOAT, [1, 18, 8, 8]),
    "mask": (FLOAT, [1, 9, 8, 8]),
    "w": (FLOAT, [4, 4, 3, 3]),
}
CONV_NODE = ("mmcv::MMCVModulatedDeformConv2d", ["x", "offset", "mask", "w"])
X = {"x": (FLOAT, [1, 2, 8, 8])}
NSAMPLE = {"nsample": 4}
REFUSED = [
    (KNN, {**POINTS, "nsample": (INT64, [])}, {}, "input 0 (nsample) is not a constant of the model"),
    (KNN, POINTS, {"nsample": [4, 5]}, "input 0 (nsample): expected one integer, got int64 of shape [2]"),
    (KNN, POINTS, {"nsample": 4.5}, "input 0 (nsample): expected one integer, got float64"),
    (node("custom::knnquery", ["nsample", "xyz"]), POINTS, NSAMPLE, "input 3 (the ends of the segments) is absent"),
    (node("custom::knnquery", ["nsample"]), POINTS, NSAMPLE, "expected 2 to 5 inputs, got 1"),
    (
        node("custom::knnquery", ["nsample", "xyz", "a", "b", "c"]),
        {**POINTS, "a": (FLOAT, None), "b": (INT32, [1]), "c": (INT32, [1])},
        NSAMPLE,
        "input 2 has an unknown rank",
    ),
    (node("custom::knnquery", ["nsample", "", "offset"]), POINTS, NSAMPLE, "input 1 (xyz) is absent"),
    (node("custom::knnquery", ["nsample", "xyz", "offset"], ["a", "b", "c"]), POINTS, NSAMPLE, "expected 2 outputs, got 3"),
    (node(*NMS, score_threshold=0.1), BOXES, {}, "attribute 'iou_threshold' is missing"),
    (node(*NMS, iou_threshold=1, score_threshold=0.1), BOXES, {}, "attribute 'iou_threshold': expected a float, got an integer"),
    (node(*NMS, iou_threshold=0.1, score_threshold=0.1, top=3), BOXES, {}, "attribute 'top' is unknown: expected iou_threshold, score_threshold"),
    (
        node(*NMS, iou_threshold=0.1, score_threshold=0.1),
        {**BOXES, "boxes": (FLOAT, [1, "n", 5])},
        {},
        "the number of boxes is not known before the run",
    ),
    (
        node(*NMS, iou_threshold=0.1, score_threshold=0.1),
        {**BOXES, "scores": (FLOAT, [1, None, 10])},
        {},
        "the number of classes is not known before the run",
    ),
    (node(*NMS, iou_threshold=0.1), {**BOXES, "boxes": (FLOAT, [5])}, {}, "input 0 (boxes): expected 2 or 3 axes, got 1"),
    (node(*CONV_NODE, stride=[1]), CONV, {}, "attribute 'stride': expected 2 integers, got 1"),
    (node(*CONV_NODE, stride=1), CONV, {}, "attribute 'stride': expected a list of integers, got an integer"),
    (node(*CONV_NODE, groups=2), CONV, {}, "attribute 'groups' is 2, and the filters have 4 of 4 channels"),
    (node(*CONV_NODE, deform_groups=2), CONV, {}, "attribute 'deform_groups' is 2, and 18 offsets don't fit it"),
    (node("mmcv::MMCVDeformConv2d", ["x", "offset", "w"], padding=[1, 1, 2, 2]), CONV, {}, "attribute 'padding': expected four equal numbers"),
    (node("mmcv::MMCVCornerPool", ["x"], mode=4), X, {}, "attribute 'mode': expected 0 to 3, got 4"),
    (node("mmcv::SoftNonMaxSuppression", ["x", "x"], method=3), X, {}, "attribute 'method': expected 0, 1 or 2, got 3"),
    (node("mmcv::SoftNonMaxSuppression", ["x", "x"], offset=2), X, {}, "attribute 'offset': expected 0 or 1, got 2"),
    (node("mmdeploy::bev_pool_v2", ["x"] * 7, out_height=2), {"x": (FLOAT, [1, 2, 3, 4, 5])}, {}, "input 0 (depth): expected 4 axes, got 5"),
    (node("mmdeploy::bev_pool_v2", ["x"] * 7, out_height=2), X, {}, "attribute 'out_width' is missing"),
    (node("mmdeploy::bev_pool_v2", ["x"] * 7, output_z=2, out_height=2, out_width=2), X, {}, "attribute 'output_z': expected 1, got 2"),
    (node("::MultiScaleDeformableAttnTRT", ["x"] * 5), {"x": (FLOAT, None)}, {}, "is not known before the run"),
    (node("::MultiScaleDeformableAttnTRT", ["x"] * 5), {"x": (FLOAT, [1, 2, 1, 3])}, {}, "expected a last axis of pairs, got 3"),
    (node("ai.graphcore::LeakyRelu", ["x"], alpha="a"), X, {}, "attribute 'alpha': expected a float, got a string"),
]  # fmt: skip


@pytest.mark.parametrize(("foreign_node", "inputs", "constants", "message"), REFUSED, ids=[row[3] for row in REFUSED])
def test_a_node_that_no_op_can_replace_is_refused_by_name(
    foreign_node: NodeProto, inputs: Mapping[str, Any], constants: Mapping[str, Any], message: str
) -> None:
    model = model_of([foreign_node], inputs, list(foreign_node.output), constants)
    before = model.SerializeToString()
    (result,) = foreign.rewrite(model)
    assert message in result.refusal
    assert model.SerializeToString() == before


def test_an_old_opset_is_refused() -> None:
    model = model_of([KNN], POINTS, ["idx"], NSAMPLE, opset=10)
    (result,) = foreign.rewrite(model)
    assert result.refusal == "the model has opset 10 of ONNX: expected 11 or later"


def test_a_chain_of_foreign_nodes(library: Path) -> None:
    """The shapes behind a node are known only after it was rewritten."""
    nodes = [
        node("mmcv::MMCVCornerPool", ["x"], ["a"], mode=0),
        helper.make_node("Reshape", ["a", "shape"], ["boxes"]),
        node("mmcv::NMSRotated", ["boxes", "scores"], ["y"], iou_threshold=0.5),
        node("ai.graphcore::LeakyRelu", ["boxes"], ["z"]),
    ]
    inputs = {"x": (FLOAT, [1, 1, 6, 5]), "scores": (FLOAT, [6])}
    model = model_of(nodes, inputs, ["y", "z"], {"shape": np.array([6, 5])})
    imported = import_model(model, Setting(read_table(library), library))
    assert [result.refusal for result in imported.foreign] == [""] * 3
    assert imported.ran and not imported.unknown


def test_nodes_in_branches_and_functions(library: Path) -> None:
    def branch(name: str, mode: int) -> onnx.GraphProto:
        inner = node("mmcv::MMCVCornerPool", ["x"], [name], mode=mode)
        return helper.make_graph([inner], name, [], [helper.make_tensor_value_info(name, FLOAT, None)])

    choice = helper.make_node("If", ["chosen"], ["y"], then_branch=branch("a", 0), else_branch=branch("b", 1))
    model = model_of([choice], {"x": (FLOAT, [1, 1, 3, 3]), "chosen": (TensorProto.BOOL, [])})
    model.opset_import.append(helper.make_opsetid("mmcv", 1))
    imported = import_model(model, Setting(read_table(library), library))
    assert [result.op for result in imported.foreign] == ["opgate::CornerPool"] * 2
    assert imported.ran, imported.run

    call = node("local::Pool", ["x"], ["y"])
    model = model_of([call], {"x": (FLOAT, [1, 1, 3, 3])})
    text = '<domain: "local", opset_import: ["mmcv": 1]> Pool (x) => (y) { y = mmcv.MMCVCornerPool <mode = 1> (x) }'
    model.functions.append(parser.parse_function(text))
    (result,) = foreign.rewrite(model)
    assert "it is in a function of the model" in result.refusal


def test_branches_and_functions_keep_their_own_tensors(library: Path) -> None:
    """Each branch has a constant nsample, with another number, and a function has a tensor with a name of the graph."""

    def branch(count: int) -> onnx.GraphProto:
        inner = [helper.make_node("Constant", [], ["nsample"], value_int=count), KNN]
        return helper.make_graph(inner, "branch", [], [helper.make_tensor_value_info("idx", INT32, None)])

    nodes = [
        node("mmcv::MMCVCornerPool", ["picture"], ["pooled"], mode=0),
        helper.make_node("If", ["chosen"], ["chosen_idx"], then_branch=branch(2), else_branch=branch(5)),
        helper.make_node("Exp", ["xyz"], ["s"]),
        helper.make_node("Mul", ["s", "xyz"], ["y"]),
    ]
    inputs = {**POINTS, "picture": (FLOAT, [1, 1, 3, 3]), "chosen": (TensorProto.BOOL, [])}
    model = model_of(nodes, inputs, ["pooled", "chosen_idx", "y"])
    model.opset_import.append(helper.make_opsetid("custom", 1))
    text = '<domain: "local", opset_import: ["": 17]> Silu (xyz) => (y) { s = Sigmoid (xyz) y = Mul (s, xyz) }'
    model.functions.append(parser.parse_function(text))
    imported = import_model(model, Setting(read_table(library), library, measure=FASTER, measure_whole=FASTER))
    assert len(imported.foreign) == 3 and not imported.unknown and not imported.fusions
    (choice,) = (node for node in model.graph.node if node.op_type == "If")
    counts = {
        attribute.name: helper.get_node_attr_value(inner, "nsample")
        for attribute in choice.attribute
        for inner in attribute.g.node
        if inner.domain == "opgate"
    }
    assert counts == {"then_branch": 2, "else_branch": 5}


def test_the_operator_set_ai_onnx_stays(library: Path) -> None:
    model = model_of([KNN, helper.make_node("Relu", ["dist"], ["y"])], POINTS, ["idx", "y"], NSAMPLE)
    model.opset_import[0].domain = "ai.onnx"
    import_model(model, Setting(read_table(library), library))
    assert {opset.domain: opset.version for opset in model.opset_import} == {"ai.onnx": 17, "opgate": 1}


def test_who_runs_what_is_left() -> None:
    model = model_of(
        [
            node("com.microsoft::FusedGemm", ["x"], ["a"]),
            node("mine::Thing_TRT", ["x"], ["b"]),
            node("mine::Thing", ["x"], ["c"]),
            node("mine::Thing", ["x"], ["d"]),
            helper.make_node("NoSuchOp", ["x"], ["e"]),
            helper.make_node("Relu", ["x"], ["y"]),
        ],
        X,
    )
    found = {op.name: (op.count, op.engines) for op in unknown_ops(model, ())}
    assert found["com.microsoft::FusedGemm"] == (1, "ONNX Runtime")
    assert found["mine::Thing_TRT"] == (1, "TensorRT with a plugin of this name")
    assert found["mine::Thing"][0] == 2 and "--custom-library" in found["mine::Thing"][1]
    assert "::NoSuchOp" in found and "::Relu" not in found
    assert engines_of("org.openvinotoolkit", "Anything") == "OpenVINO"


def test_a_model_with_weights_beside_it_comes_into_a_repository(library: Path, tmp_path: Path) -> None:
    """Nothing in it is rewritten. With --to it is written all the same, with its weights."""
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        {"x": (FLOAT, ["N", 600])},
        constants={"w": np.ones(600, np.float32)},
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, ["N", 600]))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    result = in_process(tmp_path / "m.onnx", "--to", tmp_path / "models" / "added", "--library", library)
    assert result.exit_code == 0, result.output
    (tmp_path / "weights").unlink()
    written = onnx.load(tmp_path / "models" / "added" / "1" / "model.onnx")
    np.testing.assert_array_equal(numpy_helper.to_array(written.graph.initializer[0]), np.ones(600, np.float32))
    config = (tmp_path / "models" / "added" / "config.pbtxt").read_text()
    assert 'name: "added"' in config and "max_batch_size: 8" in config and "op_library_filename" not in config


@pytest.mark.parametrize(
    ("shape", "out", "config"),
    [
        ([], [], "dims: [ 1 ] reshape { shape: [ ] }"),
        (["N"], ["N"], "dims: [ 1 ] reshape { shape: [ ] }"),
        (["N", 2], ["N", 2], "dims: [ 2 ]"),
        ([-1, 3, -1], [-1, 3, -1], "dims: [ -1, 3, -1 ]"),
        ([0, 2], [0, 2], "dims: [ 0, 2 ]"),
    ],
    ids=["scalar", "row", "rows", "negative", "empty"],
)
def test_the_gateway_loads_what_is_written(
    library: Path, tmp_path: Path, shape: list[Any], out: list[Any], config: str
) -> None:
    """Scalars, rows of one number, sizes as Paddle's exporter writes them, and tensors without elements."""
    model = model_of([helper.make_node("Neg", ["x"], ["y"])], {"x": (FLOAT, shape)})
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, out))
    onnx.save(model, tmp_path / "m.onnx")
    result = in_process(tmp_path / "m.onnx", "--to", tmp_path / "models" / "m", "--library", library)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == "the gateway loads it"
    assert (tmp_path / "models" / "m" / "config.pbtxt").read_text().count(config) == 2


def test_what_the_gateway_can_not_load_is_said(library: Path, tmp_path: Path) -> None:
    """The op lies in a library that nobody has trusted."""
    model = model_of([node("mine::Thing", ["x"])], {"x": (FLOAT, ["N", 2])})
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, ["N", 2]))
    onnx.save(model, tmp_path / "m.onnx")
    result = in_process(tmp_path / "m.onnx", "--to", tmp_path / "models" / "m", "--library", library)
    assert "the gateway can't load it yet" in result.output and "mine" in result.output.splitlines()[-1]
