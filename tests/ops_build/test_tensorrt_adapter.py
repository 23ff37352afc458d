"""The TensorRT adapter without a GPU: the symbols that the library exports and the layers that TensorRT-RTX creates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from opgate.onnx_tools.for_tensorrt import for_tensorrt, rewrite_file
from opgate.ops_build import dtypes
from opgate.ops_build.building.build import Build
from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.case import Case
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.onnx.one_node_model import one_node_model
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.op_table import Op, parse_signature, read_table
from tests.conftest import ALL
from tests.ops_build import tensorrt_rtx
from tests.ops_build.conftest import symbols
from tests.ops_build.walking import walk_of

#: Ops whose names TensorRT's parser knows. It creates this layer, which computes the same, instead of a plugin.
OWN_LAYERS = {
    "Asinh": "UNARY",
    "Gelu": "ACTIVATION",
    "LeakyRelu": "ACTIVATION",
    "Mish": "ELEMENTWISE",
    "RotaryEmbedding": "ROTARY_EMBEDDING",
    "Swish": "ELEMENTWISE",
}

#: Such an op whose layer wants to know the size of a head.
KNOWN_SIZES_ONLY = {"RotaryEmbedding": "rotaryEmbeddingDim <= headSize|hiddenSize % numHeads == 0"}

#: Types that the parser refuses for such an op. The plugin accepts them, but the parser looks for its own layers first.
OWN_REFUSALS = {("Mish", "bf16"): "Only FLOAT32 or FLOAT16 input is supported for the Mish operator"}

#: The dtypes that TensorRT's plugins accept, with TensorRT's names for them.
DTYPES = {dtype.name: dtype.tensorrt for dtype in dtypes.DTYPES.values() if dtype.tensorrt}


@pytest.fixture(scope="module")
def plugins(built: Build) -> Path:
    return plugins_of(built)


@pytest.fixture(scope="module")
def fixture_plugins(fixture_built: Build) -> Path:
    return plugins_of(fixture_built)


def plugins_of(built: Build) -> Path:
    if reason := built.left_out.get("tensorrt"):
        pytest.skip(f"tensorrt was left out: {reason}")
    return built.libraries["tensorrt"]


@pytest.fixture(scope="module", autouse=True)
def _rtx() -> None:
    if reason := tensorrt_rtx.missing():
        pytest.skip(reason)


def test_the_library_exports_two_entries_and_needs_neither_tensorrt_nor_a_driver(plugins: Path) -> None:
    assert symbols(plugins, "--defined-only") == {"setLoggerFinder", "getCreators"}
    strange = [
        name for name in symbols(plugins, "--undefined-only") if "nvinfer" in name.lower() or name.startswith("cu")
    ]
    assert strange == []


def carried(op: Op) -> Iterator[dict[str, str]]:
    """Yields the choices of types for which TensorRT has tensors."""
    for types in op.type_choices():
        if all(types.get(name, name) in DTYPES for name in op.tensor_types):
            yield types


def suitable(cases: Iterator[Case]) -> Iterator[Case]:
    """Yields one case for each combination of present inputs. It skips cases with empty tensors."""
    seen = set()
    for case in cases:
        arrays = [a for value in case.inputs.values() for a in (value if isinstance(value, list) else [value])]
        pattern = tuple(sorted(case.inputs))
        if case.error or pattern in seen or any(np.asarray(a).size == 0 for a in arrays):
            continue
        seen.add(pattern)
        yield case


def expected_outputs(op: Op, types: Mapping[str, str], case: Case, *, static: bool) -> list[list[Any]]:
    """Returns the shape and dtype of each output by the signature. An unknown size is -1."""
    walk = walk_of(op, case, static=static)
    shapes = [walk.output_dims(output) or () for output in op.outputs]
    return [
        [[-1 if size is None else size for size in shape], DTYPES[types.get(output.type, output.type)]]
        for output, shape in zip(op.outputs, shapes, strict=True)
    ]


def check(op: Op, types: Mapping[str, str], case: Case, answer: dict[str, Any], *, static: bool) -> None:
    where = f"{op.name} {types} {case.name}"
    if refusal := OWN_REFUSALS.get((op.name, *types.values())):
        assert not answer["parsed"] and refusal in answer["errors"][0], where
        return
    if not static and (refusal := KNOWN_SIZES_ONLY.get(op.name)):
        assert not answer["parsed"] and re.search(refusal, answer["errors"][0]), where
        return
    assert answer["parsed"], (where, answer["errors"])
    names = [layer["type"] for layer in answer["layers"]]
    if op.name in OWN_LAYERS:
        assert "PLUGIN_V3" not in names and OWN_LAYERS[op.name] in names, (where, names)
        return
    (layer,) = [layer for layer in answer["layers"] if layer["type"] == "PLUGIN_V3"]
    assert layer["outputs"][: len(op.outputs)] == expected_outputs(op, types, case, static=static), where
    assert all(size == [[], "INT32"] for size in layer["outputs"][len(op.outputs) :]), where
    assert answer["engines"].keys() and all(answer["engines"].values()), (where, answer["engines"], answer["log"])


def check_all(library: Path, ops: list[Op], folder: Path, tmp_path: Path, python: Path | None = None) -> int:
    """Checks every op of the library with each choice of types and each combination of present inputs, with unknown sizes,
    and with the first types (in `make test-all` with all) once more with known sizes. Returns the number of trials.
    `python` is the interpreter of another environment, whose TensorRT-RTX is asked."""
    trials = []
    for op in ops:
        op_folder = folder_of(op, [folder])
        for i, types in enumerate(carried(op)):
            for case in suitable(op_folder.cases(numpy_types(types))):
                trials += [(op, types, case, static) for static in (False, *[True] * (ALL or not i))]
    models, shapes = [], []
    for op, types, case, static in trials:
        one = one_node_model(op, case, types, static=static)
        models.append(for_tensorrt(one.model, ops))
        read = {tensor.name for tensor in op.inputs if tensor.const}  # TensorRT gets their values
        shapes.append({name: [int(a)] if name in read else list(a.shape) for name, a in one.feeds.items()})
    answers = tensorrt_rtx.inspect(library, models, tmp_path, shapes, python=python)
    for (op, types, case, static), answer in zip(trials, answers, strict=True):
        check(op, types, case, answer, static=static)
    return len(trials)


def on_cuda(library: Path) -> list[Op]:
    return [op for op in read_table(library) if "cuda" in op.devices]


def test_every_op_becomes_a_layer_and_an_engine(built: Build, plugins: Path, tmp_path: Path) -> None:
    ops = on_cuda(built.libraries["onnxruntime_cuda"])
    assert check_all(plugins, ops, SOURCE / "ops", tmp_path) > len(ops)


F = np.float32
POINTS = np.ones((5, 3), F)
SEGMENT = np.zeros(5, np.int32)


def fixture_trials() -> Iterator[tuple[str, Case, dict[str, str]]]:
    for dtype in ("f32", "i32"):
        x = np.ones(7, {"f32": F, "i32": np.int32}[dtype])
        yield "KeepPositive", Case("a size that the kernel binds", {"x": x}), {"T": dtype}
    for count in (1, 3):
        yield "SumAll", Case(f"{count} of a variadic input", {"xs": [np.ones((2, 3), F)] * count}), {"T": "f32"}
    every = {"points": POINTS, "segment": SEGMENT, "query": POINTS[:2], "weight": POINTS[:2, 0]}
    for names in (["points"], ["points", "query"], ["points", "segment"], ["points", "query", "weight"], list(every)):
        yield "NearestSum", Case(" ".join(names), {name: every[name] for name in names}, {"scale": 2.0}), {}
    yield "ScaledColumns", Case("a kernel that prepares", {"x": POINTS, "weight": POINTS[0]}, {"scale": 2.0}), {}
    x, row = np.ones((9, 7), F), np.ones(14, F)
    yield "Tiles", Case("expressions and a host scalar", {"x": x, "row": row, "times": np.array(3)}), {}


def test_every_part_of_the_grammar_becomes_a_layer(fixture_built: Build, fixture_plugins: Path, tmp_path: Path) -> None:
    ops = {op.name: op for op in on_cuda(fixture_built.libraries["onnxruntime_cuda"])}
    trials = list(fixture_trials())
    models = [for_tensorrt(one_node_model(ops[name], case, types).model, ops.values()) for name, case, types in trials]
    values = [{t.name: [int(case.inputs[t.name])] for t in ops[name].inputs if t.const} for name, case, _ in trials]
    answers = tensorrt_rtx.inspect(fixture_plugins, models, tmp_path, values)
    for (name, case, types), answer in zip(trials, answers, strict=True):
        check(ops[name], types, case, answer, static=True)


REFUSALS = [
    ("a size read on the host, in a model that was not rewritten", "Tiles",
     {"x": np.ones((9, 7), F), "row": np.ones(14, F), "times": np.array(3)}, {}, False,
     "Tiles: input 'times' is read on the host: its node needs the attribute tensorrt_plugin_shape_input_indices"),
    ("a wrong rank", "NearestSum", {"points": np.ones(5, F)}, {}, True,
     "NearestSum: input 'points': expected f32[n, d], got a tensor of shape [5]"),
    ("an attribute of another type", "NearestSum", {"points": POINTS}, {"scale": "much"}, True,
     "NearestSum: attribute 'scale': expected float (1.0, not 1), got "),
]  # fmt: skip


def test_a_refusal_names_the_op_and_the_reason(fixture_built: Build, fixture_plugins: Path, tmp_path: Path) -> None:
    ops = {op.name: op for op in on_cuda(fixture_built.libraries["onnxruntime_cuda"])}
    models = []
    for _, name, inputs, attributes, rewritten, _ in REFUSALS:
        model = one_node_model(ops[name], Case("", inputs), {}).model
        for key, value in attributes.items():
            model.graph.node[0].attribute.append(helper.make_attribute(key, value))
        models.append(for_tensorrt(model, ops.values()) if rewritten else model)
    answers = tensorrt_rtx.inspect(fixture_plugins, models, tmp_path)
    for (title, *_, reason), answer in zip(REFUSALS, answers, strict=True):
        assert not answer["parsed"], title
        assert any(f"fixture_ops::{reason}" in line for line in answer["log"]), (title, answer["log"])


def test_an_op_of_bytes_is_refused(built: Build, plugins: Path, tmp_path: Path) -> None:
    ops = {op.name: op for op in on_cuda(built.libraries["onnxruntime_cuda"])}
    case = Case("", {"image": np.ones((1, 2, 2, 3), np.uint8)}, {"height": 2, "width": 2})
    model = for_tensorrt(one_node_model(ops["ResizeNormalize"], case, {}).model, ops.values())
    (answer,) = tensorrt_rtx.inspect(plugins, [model], tmp_path)
    assert not answer["parsed"]
    reason = "opgate::ResizeNormalize: input 'image': TensorRT's plugins take no tensors of type u8"
    assert reason in answer["log"]


def test_a_rewritten_model_is_as_the_parser_wants_it(fixture_built: Build) -> None:
    ops = {op.name: op for op in read_table(fixture_built.libraries["onnxruntime"])}
    inputs = {"points": POINTS, "query": POINTS[:2]}
    model = for_tensorrt(one_node_model(ops["NearestSum"], Case("", inputs), {}).model, ops.values())
    (node,) = model.graph.node
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert list(node.input) == ["points", "query"]
    assert attributes == {"opgate_inputs": [0, 2], "scale": 1.0}
    model = for_tensorrt(
        one_node_model(ops["KeepPositive"], Case("", {"x": np.ones(3, F)}), {"T": "f32"}).model, ops.values()
    )
    assert list(model.graph.node[0].output) == ["values", "indices", "KeepPositive_v"]


def test_a_node_without_inputs_is_rewritten(library: Path) -> None:
    op = replace(parse_signature(library, "Ramp(x?: f32[n=4]; k: int=3) -> (y: f32[k])"), domain="local")
    node = helper.make_node(op.name, [], ["y"], domain=op.domain)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(op.domain, 1)]
    model = helper.make_model(helper.make_graph([node], "g", [], [y]), opset_imports=opsets, ir_version=10)
    (rewritten,) = for_tensorrt(model, [op]).graph.node
    attributes = {a.name: helper.get_attribute_value(a) for a in rewritten.attribute}
    assert attributes == {"opgate_inputs": [], "k": 3}


def local_function(node: onnx.NodeProto) -> onnx.ModelProto:
    """Returns a model whose only node calls a local function, which has the inputs x and w and contains `node`."""
    opsets = [helper.make_opsetid(domain, version) for domain, version in (("", 18), ("opgate", 1), ("local", 1))]
    body = helper.make_function("local", "F", ["x", "w"], ["y"], [node], opsets[:2])
    call = helper.make_node("F", ["x", "w"], ["z"], domain="local")
    tensors = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2, 4]), ("w", [4]), ("z", [2, 4]))
    ]
    graph = helper.make_graph([call], "g", tensors[:2], tensors[2:])
    return helper.make_model(graph, functions=[body], opset_imports=opsets, ir_version=10)


def test_nodes_in_functions_are_rewritten_once(library: Path, tmp_path: Path) -> None:
    ops = read_table(library)
    model = local_function(helper.make_node("RMSNorm", ["x", "w"], ["y"], domain="opgate"))
    once = for_tensorrt(model, ops)
    (node,) = once.functions[0].node
    assert len(node.output) == 2 and "opgate_inputs" in [attribute.name for attribute in node.attribute]
    assert for_tensorrt(once, ops) == once


def with_plugins(library: Path) -> list[Op]:
    """The table of a library, as if every op had a CUDA kernel."""
    return [replace(op, devices=("cpu", "cuda")) for op in read_table(library)]


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "says"),
    [
        (
            "ResizeNormalize",
            {"x": "UINT8"},
            {"height": 4, "width": 4},
            "tensor 'x' of ResizeNormalize is u8, and TensorRT passes only f16 bf16 f32 i8 i32 i64 to",
        ),
        ("Mish", {"x": "DOUBLE"}, {}, "tensor 'x' of Mish is f64"),
        ("Mish", {"x": None}, {}, "tensor 'cast' of Mish is f64"),
        ("ResizeNormalize", {"x": "FLOAT"}, {"height": 4, "width": 4}, "expected u8"),
    ],
)
def test_a_dtype_that_no_plugin_takes_is_refused(
    library: Path, tmp_path: Path, op_type: str, inputs: dict[str, str | None], attributes: dict[str, int], says: str
) -> None:
    (kind,) = inputs.values()
    x = helper.make_tensor_value_info("x", getattr(onnx.TensorProto, kind or "FLOAT"), [1, 5, 5, 3])
    nodes = [helper.make_node(op_type, ["x" if kind else "cast"], ["y"], domain="opgate", **attributes)]
    if kind is None:  # the dtype of an intermediate tensor
        nodes.insert(0, helper.make_node("Cast", ["x"], ["cast"], to=onnx.TensorProto.DOUBLE))
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("opgate", 1)]
    source = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), source)
    with pytest.raises(ValueError, match=says):
        rewrite_file(source, tmp_path / "out.onnx", with_plugins(library))
    assert not (tmp_path / "out.onnx").exists()


def test_ops_that_nobody_knows_are_named(library: Path, tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3])
    mine = helper.make_node("ClampAdd", ["x"], ["y"], domain="my_ops")
    opsets = [helper.make_opsetid(name, 1 + 17 * (not name)) for name in ("", "opgate", "my_ops")]
    source = tmp_path / "model.onnx"

    def save(nodes: list[onnx.NodeProto]) -> None:
        graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")])
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), source)

    save([mine])
    with pytest.raises(ValueError, match="nothing to rewrite; my_ops::ClampAdd is no op of them"):
        rewrite_file(source, tmp_path / "out.onnx", with_plugins(library))
    save([helper.make_node("Mish", ["x"], ["z"], domain="opgate"), mine])
    rewritten = rewrite_file(source, tmp_path / "out.onnx", with_plugins(library))
    assert rewritten.counts == {"Mish": 1}
    assert [(op.name, op.count) for op in rewritten.left] == [("my_ops::ClampAdd", 1)]


def test_a_file_without_anything_to_rewrite_is_refused(built: Build, tmp_path: Path) -> None:
    ops = read_table(built.libraries["onnxruntime_cuda"]) if "onnxruntime_cuda" in built.libraries else []
    if not ops:
        pytest.skip("CUDA was left out")
    source, target = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(local_function(helper.make_node("Add", ["x", "w"], ["y"])), source)
    with pytest.raises(ValueError, match="there is nothing to rewrite"):
        rewrite_file(source, target, ops)
    onnx.save(local_function(helper.make_node("DecodeImage", ["x"], ["y"], domain="opgate")), source)
    with pytest.raises(ValueError, match="DecodeImage, which has no CUDA kernel"):
        rewrite_file(source, target, ops)
    onnx.save(local_function(helper.make_node("RMSNorm", ["x", "w"], ["y"], domain="opgate")), source)
    assert rewrite_file(source, target, ops).counts == {"RMSNorm": 1}
    source.write_bytes(b"no model")
    with pytest.raises(ValueError, match="is no ONNX model"):
        rewrite_file(source, target, ops)
