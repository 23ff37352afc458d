"""The ops in OpenVINO, which reads them from ONNX models.

OpenVINO is imported when a test first needs it, because that takes a while in each process that collects the tests.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

if find_spec("openvino") is None:
    pytest.skip("the Python package openvino is not installed", allow_module_level=True)

from opgate.ops_build.building.options import SOURCE
from tests.conftest import ALL
from tests.ops_build.choosing import failures_on

OPS = SOURCE / "ops"
F32 = np.float32


@pytest.fixture(scope="module")
def ops(library: Path) -> Any:
    import opgate.openvino

    return opgate.openvino.load(library)


@pytest.fixture(scope="module")
def core(ops: Any, fixture_library: Path) -> Any:
    import openvino

    import opgate.openvino

    made = openvino.Core()
    made.add_extension([*ops.extensions(), *opgate.openvino.load(fixture_library).extensions()])
    return made


def test_cases_of_every_op(library: Path, ops: Any) -> None:
    """Few cases of each op and dtype, or all with OPGATE_TEST_ALL."""
    from opgate.ops_build.adapters.openvino.engine import OpenVinoEngine

    failures, tried = failures_on(OpenVinoEngine(library), ops.ops.values(), OPS, everything=ALL)
    assert not failures, "\n".join(failures)
    assert tried > 100


def test_ops_that_openvino_cannot_have_say_why(ops: Any) -> None:
    assert "strings" in ops.left_out["Tokenize"] and "f64" in ops.left_out["SpeechSegments"]
    assert not ops.left_out.keys() & ops.ops.keys() and len(ops.ops) > 40
    with pytest.raises(KeyError, match="strings"):
        ops.node("Tokenize", [], {})


def model(nodes: list[Any], rank: int = 2, domains: tuple[str, ...] = ("opgate",)) -> bytes:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m", "k"][:rank])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid(domain, 1) for domain in domains] + [helper.make_opsetid("", 18)]
    graph = helper.make_graph(nodes, "g", [x], [y])
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def test_ops_stand_among_operators_of_openvino(core: Any) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("LeakyRelu", ["a"], ["b"], domain="opgate", alpha=0.5),
        helper.make_node("MyAdd", ["b", "x"], ["c"], domain="opgate"),
        helper.make_node("Neg", ["c"], ["y"]),
    ]
    compiled = core.compile_model(core.read_model(model(nodes), b""), "CPU")
    for shape in ((2, 3), (5, 1), (0, 4)):  # with dynamic shapes
        x = np.random.default_rng(0).standard_normal(shape).astype(F32)
        assert np.allclose(compiled([x])[0], -(2 * np.maximum(x, 0) + x), atol=1e-6)


def test_an_absent_input_in_the_middle(core: Any) -> None:
    bias = helper.make_node(
        "Constant", [], ["bias"], value=helper.make_tensor("v", TensorProto.FLOAT, [4], [1, 2, 3, 4])
    )
    norm = helper.make_node("LayerNorm", ["x", "", "bias"], ["y"], domain="opgate")
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(F32)
    compiled = core.compile_model(core.read_model(model([bias, norm]), b""), "CPU")
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) + [1, 2, 3, 4]
    assert np.allclose(compiled([x])[0], expected, atol=1e-5)


def test_nodes_that_differ_in_an_attribute_or_in_what_is_absent_stay_two(core: Any) -> None:
    weight = helper.make_node("Constant", [], ["w"], value=helper.make_tensor("v", TensorProto.FLOAT, [2], [3, 3]))
    for first, second in (
        (("LeakyRelu", ["x"], {"alpha": 0.5}), ("LeakyRelu", ["x"], {"alpha": 0.1})),
        (("LayerNorm", ["x", "w"], {}), ("LayerNorm", ["x"], {})),
    ):
        nodes = [
            helper.make_node(name, inputs, [output], domain="opgate", **attributes)
            for (name, inputs, attributes), output in ((first, "a"), (second, "b"))
        ]
        nodes = [weight, *nodes, helper.make_node("Sub", ["a", "b"], ["y"])]
        compiled = core.compile_model(core.read_model(model(nodes), b""), "CPU")
        assert np.abs(compiled([np.array([[-1, -2]], F32)])[0]).min() > 0.3


def test_a_size_that_only_the_kernel_finds(core: Any) -> None:
    node = helper.make_node("KeepPositive", ["x"], ["y"], domain="fixture_ops")
    compiled = core.compile_model(core.read_model(model([node], 1, ("fixture_ops",)), b""), "CPU")
    assert compiled([np.array([1, -2, 3], F32)])[0].tolist() == [1, 3]
    assert compiled([np.array([-1], F32)])[0].tolist() == []


def test_what_contradicts_the_signature_is_refused_when_the_model_is_read(core: Any) -> None:
    bad = helper.make_node("RMSNorm", ["x", "w"], ["y"], domain="opgate")
    w = helper.make_node("Constant", [], ["w"], value=helper.make_tensor("v", TensorProto.INT32, [1], [1]))
    with pytest.raises(Exception, match="opgate::RMSNorm: input 'weight': expected"):
        core.read_model(model([w, bad]), b"")


def test_what_the_kernel_refuses_is_an_error_of_the_run(core: Any) -> None:
    ends = helper.make_node("Constant", [], ["e"], value=helper.make_tensor("v", TensorProto.INT32, [1], [9]))
    node = helper.make_node("KNNQuery", ["x", "e"], ["i", "y"], domain="opgate", nsample=2)
    compiled = core.compile_model(core.read_model(model([ends, node]), b""), "CPU")
    with pytest.raises(RuntimeError, match="opgate::KNNQuery: input 'offset': expected the last end to be 4"):
        compiled([np.zeros((4, 3), F32)])


def test_a_node_in_a_model_made_in_python(ops: Any) -> None:
    import openvino
    from openvino import opset13

    x = opset13.parameter([-1, 2], F32)
    found = openvino.Model([ops.node("LeakyRelu", [x], {"alpha": 0.5})], [x])
    assert np.allclose(openvino.Core().compile_model(found, "CPU")([np.full((1, 2), -1, F32)])[0], -0.5)
    with pytest.raises(TypeError, match="has no argument 'alfa'"):
        ops.node("LeakyRelu", [x], {"alfa": 1})
