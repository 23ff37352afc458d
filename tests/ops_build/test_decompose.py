"""The functions that `opgate decompose` adds: a model computes the same with the op library and without it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.case import Array, Case
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.engines.comparison import TOLERANCES, difference
from opgate.ops_build.onnx import schema
from opgate.ops_build.onnx.decompose import Decomposed, DecompositionError, decompose
from opgate.ops_build.onnx.one_node_model import one_node_model
from opgate.ops_build.op_folder import folder_of, run_reference
from opgate.ops_build.op_table import Op, parse_signature, read_table
from tests.conftest import ALL

OPS = SOURCE / "ops"
DECOMPOSED = [
    "Asinh", "BevPoolV2", "ClampedRelu", "GroupNorm", "KNNQuery", "LayerNorm", "LayerNormBackward", "LeakyRelu", "Mish", "MishBackward",
    "MultiScaleDeformableAttention", "MyAdd", "ThreeInterpolate",
    "ResizeNormalize", "RMSNorm", "RMSNormBackward", "Swish", "SwishBackward", "VoxelOfPoint", "Voxelize", "SlidingWindow"]  # fmt: skip


@pytest.fixture(scope="module")
def ops(library: Path) -> dict[str, Op]:
    return {op.name: op for op in read_table(library)}


def run(
    model: onnx.ModelProto, feeds: Mapping[str, Array], library: Path | None, profile: Path | None = None
) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if library:
        options.register_custom_ops_library(str(library.resolve()))
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    outputs: list[Array] = session.run(None, dict(feeds))
    if profile:
        session.end_profiling()
    return outputs


def good_cases(op: Op, types: Mapping[str, str]) -> Iterator[Case]:
    """Yields cases without an error: two for each combination of present inputs, in `make test-all` every one."""
    tried: Counter[tuple[str, ...]] = Counter()
    for case in folder_of(op, [OPS]).cases(numpy_types(types)):
        # ONNX's Resize can't return empty tensors.
        resized = op.name == "ResizeNormalize" and (0 in case.inputs["image"].shape or 0 in case.attributes.values())
        if case.error is None and not resized and (ALL or tried[pattern(op, case)] < 2):
            tried[pattern(op, case)] += 1
            yield case


def pattern(op: Op, case: Case) -> tuple[str, ...]:
    return tuple(tensor.name for tensor in op.inputs if tensor.optional and tensor.name in case.inputs)


def test_the_ops_that_have_a_decomposition(ops: dict[str, Op]) -> None:
    folders = {folder.parent.name for folder in OPS.glob("*/decomposition.py")}
    assert folders == {folder_of(ops[name], [OPS]).path.name for name in DECOMPOSED}


@pytest.mark.parametrize("name", DECOMPOSED)
def test_without_the_library_the_function_agrees_with_the_reference(ops: dict[str, Op], name: str) -> None:
    op = ops[name]
    reference = folder_of(op, [OPS]).reference
    patterns = set()
    for types in op.type_choices():
        # ONNX Runtime has no bf16 arithmetic on the CPU. The functions of the norms compute in f64.
        if "bf16" in types.values() and "Norm" not in name:
            continue
        for case in good_cases(op, types):
            one = one_node_model(op, case, types, static=False)
            assert list(decompose(one.model, [op], [OPS]).functions) == [(name, "_and_".join(pattern(op, case)))]
            outputs = run(one.model, one.feeds, None)
            expected = run_reference(op, reference, case)
            for tensor, output in zip(op.outputs, outputs, strict=True):
                tolerance = TOLERANCES.get(types.get(tensor.type, tensor.type), (0.0, 0.0))
                if name == "ResizeNormalize":  # ONNX Runtime computes its taps in f32
                    tolerance = (1e-4, 1e-4)
                failure = difference(output, expected[tensor.name], tolerance)
                assert failure is None, f"{types} {case.name}: {tensor.name}: {failure}"
            patterns.add(pattern(op, case))
    some = {
        "BevPoolV2": 2,
        "GroupNorm": 7,
        "KNNQuery": 3,
        "LayerNorm": 8,
        "LayerNormBackward": 4,
        "RMSNorm": 4,
        "RMSNormBackward": 4,
        "VoxelOfPoint": 2,
        "Voxelize": 2,
    }
    assert len(patterns) == some.get(name, 1)


@pytest.mark.parametrize("name", DECOMPOSED)
def test_with_the_library_the_kernel_runs(ops: dict[str, Op], library: Path, tmp_path: Path, name: str) -> None:
    op = ops[name]
    for types in op.type_choices():
        seen: dict[tuple[str, ...], Case] = {}
        for case in good_cases(op, types):
            seen.setdefault(pattern(op, case), case)
        for case in seen.values():
            one = one_node_model(op, case, types, static=False)
            plain = run(one.model, one.feeds, library)
            decompose(one.model, [op], [OPS])
            outputs = run(one.model, one.feeds, library, tmp_path / "profile")
            for output, expected in zip(outputs, plain, strict=True):
                np.testing.assert_array_equal(output, expected)
            (file,) = tmp_path.iterdir()
            events = json.loads(file.read_text())
            ran = {
                event["args"]["op_name"] for event in events if event["cat"] == "Node" and "op_name" in event["args"]
            }
            assert ran - {"Cast"} == {name}
            file.unlink()


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, int],
    outputs: Sequence[str],
    opset: int = 18,
    ir_version: int = 10,
) -> onnx.ModelProto:
    """Returns a model of f32 tensors. `inputs` maps names to ranks. With `opset` 0 it imports no opset of ONNX."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank) for name, rank in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in outputs],
    )
    opsets = [helper.make_opsetid("opgate", 1), *([helper.make_opsetid("", opset)] if opset else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def norm(inputs: Sequence[str], outputs: Sequence[str], **attributes: float) -> onnx.NodeProto:
    return helper.make_node("RMSNorm", inputs, outputs, domain="opgate", **attributes)


FEEDS = {
    "x": np.float32([[3, 4], [1, 7]]),
    "weight": np.float32([1, 2]),
    "residual": np.float32([[1, 1], [2, -3]]),
}
RANKS = {"x": 2, "weight": 1, "residual": 2}


def test_every_pattern_of_present_inputs_and_outputs(ops: dict[str, Op], library: Path) -> None:
    """One model has two overloads, trailing "" and absent inputs, "" and absent outputs, defaults and attributes."""
    nodes = [
        norm(["x", "weight"], ["a"]),
        norm(["x", "weight", ""], ["b", ""], epsilon=0.5),
        norm(["x", "weight", "residual"], ["c", "d"]),
        norm(["a", "weight", "c"], ["e"], epsilon=2.0),
    ]
    model = model_of(nodes, RANKS, "abcde")
    plain = run(model, FEEDS, library)
    decomposed = decompose(model, ops.values(), [OPS])
    assert decomposed == Decomposed({("RMSNorm", "weight"): 2, ("RMSNorm", "weight_and_residual"): 2}, ())
    schema.register(ops.values())
    onnx.checker.check_model(model, full_check=True)
    for with_library in (library, None):
        for output, expected in zip(run(model, FEEDS, with_library), plain, strict=True):
            np.testing.assert_allclose(output, expected, rtol=1e-6)


def test_nodes_in_branches_and_functions(ops: dict[str, Op], library: Path) -> None:
    def branch(name: str, node: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph(
            [node], name, [], [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, [None, None])]
        )

    condition = parser.parse_node("chosen = Constant <value: tensor = bool {1}> ()")
    choice = helper.make_node(
        "If",
        ["chosen"],
        ["y"],
        then_branch=branch("then", norm(["x", "weight", "residual"], ["t"])),
        else_branch=branch("else", norm(["x", "weight"], ["e"])),
    )
    call = helper.make_node("Twice", ["y"], ["z"], domain="local")
    model = model_of([condition, choice, call], RANKS, ["z"])
    model.functions.append(
        parser.parse_function("""
            <domain: "local", opset_import: ["opgate": 1]>
            Twice (x) => (z) { y = opgate.Mish (x) z = opgate.MyAdd (x, y) }
        """)
    )
    model.opset_import.append(helper.make_opsetid("local", 1))
    expected = run(model, FEEDS, library)
    decomposed = decompose(model, ops.values(), [OPS])
    norms = {("RMSNorm", "weight"): 1, ("RMSNorm", "weight_and_residual"): 1}
    assert decomposed.functions == norms | {("Mish", ""): 1, ("MyAdd", ""): 1}
    for with_library in (library, None):
        np.testing.assert_allclose(run(model, FEEDS, with_library), expected, rtol=1e-5)


def test_versions_are_completed(ops: dict[str, Op]) -> None:
    plain, fused = norm(["x"], ["y"]), norm(["x", "weight", "residual"], ["y"])
    for node, ir_version in [(plain, 8), (fused, 10)]:
        model = model_of([node], RANKS, ["y"], opset=0, ir_version=7)
        decompose(model, ops.values(), [OPS])
        assert model.ir_version == ir_version
        assert {opset.domain: opset.version for opset in model.opset_import} == {"opgate": 1, "": 18}
        run(model, FEEDS, None)
    for opset in (19, 21, 23):
        model = model_of([fused], RANKS, ["y"], opset=opset)
        decompose(model, ops.values(), [OPS])
        run(model, FEEDS, None)
    with pytest.raises(DecompositionError, match="the model has opset 17 of ONNX, the function of RMSNorm needs 18"):
        decompose(model_of([plain], RANKS, ["y"], opset=17), ops.values(), [OPS])


def test_decomposing_a_second_time_changes_nothing(ops: dict[str, Op]) -> None:
    model = model_of([norm(["x", "weight"], ["a"]), norm(["x", "weight", "residual"], ["b"])], RANKS, "ab")
    decompose(model, ops.values(), [OPS])
    once = model.SerializeToString(deterministic=True)
    decompose(model, ops.values(), [OPS])
    assert model.SerializeToString(deterministic=True) == once


SCALE = """
from __future__ import annotations

def decomposition(present: frozenset[str]) -> str:
    inputs = ", ".join(name for name in ("x", "scale", "bias") if name == "x" or name in present)
    scaled = "scaled = Mul (x, scale)" if "scale" in present else "scaled = Identity (x)"
    biased = "y = Add (scaled, bias)" if "bias" in present else "y = Identity (scaled)"
    return f'<domain: "mine", opset_import: ["": 18]> Scale ({inputs}) => (y) {{ {scaled} {biased} }}'
"""


@pytest.fixture
def scale(library: Path, tmp_path: Path) -> tuple[Op, Path]:
    """A user's op with two optional inputs, and the folder that holds the op's folder."""
    (tmp_path / "scale").mkdir()
    (tmp_path / "scale" / "decomposition.py").write_text(SCALE)
    signature = "Scale(x: f32[...], scale?: f32[...], bias?: f32[...]) -> (y: f32[...])"
    return replace(parse_signature(library, signature), domain="mine"), tmp_path


@pytest.mark.parametrize(
    ("inputs", "overload", "expected"),
    [
        (["x"], "", [[3, 4], [1, 7]]),
        (["x", "", ""], "", [[3, 4], [1, 7]]),
        (["x", "residual"], "scale", [[3, 4], [2, -21]]),
        (["x", "", "residual"], "bias", [[4, 5], [3, 4]]),
        (["x", "residual", "residual"], "scale_and_bias", [[4, 5], [4, -24]]),
    ],
)
def test_an_input_left_out_in_the_middle(
    scale: tuple[Op, Path], inputs: list[str], overload: str, expected: object
) -> None:
    op, folder = scale
    model = model_of([helper.make_node("Scale", inputs, ["y"], domain="mine")], RANKS, ["y"])
    model.opset_import.append(helper.make_opsetid("mine", 1))
    assert decompose(model, [op], [folder]).functions == {("Scale", overload): 1}
    assert run(model, FEEDS, None)[0].tolist() == expected


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("Scale (", "Scales (", r"expected the domain and name \['mine', 'Scale'\], got \['mine', 'Scales'\]"),
        ('"x", "scale"', '"scale", "x"', r"with scale, bias: expected the inputs \['x', 'scale', 'bias'\]"),
        ("Scale (", "Scale <alpha: float = 1.0> (", r"expected the attributes \[\], got \['alpha'\]"),
        ("=> (y)", "=> (y, scaled)", "expected 1 outputs, got 2"),
        ("=> (y)", "= (y)", "decomposition.py of Scale with scale, bias: "),
    ],
)
def test_a_decomposition_that_does_not_fit(scale: tuple[Op, Path], right: str, wrong: str, message: str) -> None:
    op, folder = scale
    assert SCALE.count(right) == 1
    (folder / "scale" / "decomposition.py").write_text(SCALE.replace(right, wrong))
    model = model_of([helper.make_node("Scale", ["x", "residual", "residual"], ["y"], domain="mine")], RANKS, ["y"])
    with pytest.raises(DecompositionError, match=message):
        decompose(model, [op], [folder])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "node 'n' of RMSNorm: input 'x' is missing"),
        (["", "weight"], "node 'n' of RMSNorm: input 'x' is missing"),
        (["x", "weight", "residual", "x"], "node 'n' of RMSNorm: expected at most 3 inputs, got 4"),
    ],
)
def test_a_node_that_does_not_fit(ops: dict[str, Op], inputs: list[str], message: str) -> None:
    node = helper.make_node("RMSNorm", inputs, ["y"], name="n", domain="opgate")
    with pytest.raises(DecompositionError, match=message):
        decompose(model_of([node], RANKS, ["y"]), ops.values(), [OPS])


def opgate(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opgate", *map(str, arguments)], capture_output=True, text=True, timeout=120
    )


def test_the_command(library: Path, tmp_path: Path) -> None:
    encode = helper.make_node("EncodeImage", ["picture"], ["bytes"], domain="opgate")
    model = model_of(
        [norm(["x", "weight"], ["a"]), norm(["x", "weight", "residual"], ["b"]), norm(["b", "weight"], ["c"])],
        RANKS,
        "abc",
    )
    onnx.save(model, tmp_path / "plain.onnx")
    finished = opgate("decompose", tmp_path / "plain.onnx", "--library", library)
    assert finished.returncode == 0, finished.stderr
    target = tmp_path / "plain_decomposed.onnx"
    assert finished.stdout.splitlines() == [
        "RMSNorm with weight: 2 nodes",
        "RMSNorm with weight_and_residual: 1 node",
        f"wrote {target}",
    ]
    run(onnx.load(target), FEEDS, None)

    model.graph.node.append(encode)
    onnx.save(model, tmp_path / "left.onnx")
    finished = opgate("decompose", tmp_path / "left.onnx", "-o", tmp_path / "out.onnx", "--library", library)
    assert "EncodeImage has no decomposition: its nodes still need the op library" in finished.stdout
    assert len(onnx.load(tmp_path / "out.onnx").functions) == 2


def test_the_command_says_what_is_wrong(library: Path, tmp_path: Path) -> None:
    relu = model_of([helper.make_node("Relu", ["x"], ["y"])], RANKS, ["y"])
    onnx.save(relu, tmp_path / "relu.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    model = model_of([norm(["x", "weight"], ["y"])], {"x": 2}, ["y"])
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "weight"))
    onnx.save(model, tmp_path / "large.onnx", save_as_external_data=True, size_threshold=0)
    (tmp_path / "elsewhere").mkdir()
    for arguments, message in [
        (["relu.onnx"], "relu.onnx has no node of the ops of opgate: there is nothing to decompose"),
        (["text.onnx"], "text.onnx is no ONNX model"),
        (
            ["large.onnx", "-o", tmp_path / "elsewhere" / "large.onnx"],
            "has weights in files beside it: expected an output in the same folder",
        ),
    ]:
        finished = opgate("decompose", tmp_path / arguments[0], *arguments[1:], "--library", library)
        assert finished.returncode == 1
        assert message in finished.stderr and "Traceback" not in finished.stderr
    assert opgate("decompose", tmp_path / "large.onnx", "--library", library).returncode == 0
