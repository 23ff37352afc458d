"""The ops as onnx.defs schemas: onnx's checker accepts them, and shape inference agrees with the references."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.defs import OpSchema

from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.onnx.nodes import element_type
from opgate.ops_build.onnx.one_node_model import one_node_model
from opgate.ops_build.onnx.schema import register, schema
from opgate.ops_build.op_folder import folder_of, run_reference
from opgate.ops_build.op_table import Op, read_table
from tests import PROJECT


@pytest.fixture(scope="module", autouse=True)
def registered(library: Path, fixture_library: Path) -> None:
    register([*read_table(library), *read_table(fixture_library)])


def sizes(value: onnx.ValueInfoProto) -> list[int | str]:
    """Returns the dims as numbers and names. An unknown size, for which inference invents a name, is ""."""
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param.split("unk__")[0] for dim in dims]


def model_of(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("fixture_ops", 1), helper.make_opsetid("opgate", 1)]
    return helper.make_model(helper.make_graph(nodes, "g", inputs, outputs), opset_imports=opsets, ir_version=10)


def infer(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[str]
) -> dict[str, list[int | str]]:
    model = model_of(nodes, inputs, [onnx.ValueInfoProto(name=name) for name in outputs])
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, check_type=True)
    return {output.name: sizes(output) for output in inferred.graph.output}


def test_inference_agrees_with_the_reference(library: Path) -> None:
    tried = 0
    for op in read_table(library):
        folder = folder_of(op, [SOURCE / "ops"])
        for types in op.type_choices():
            for case in folder.cases(numpy_types(types)):
                if case.error is not None or tried % 5:
                    tried += 1
                    continue
                tried += 1
                one = one_node_model(op, case, types)
                for output in one.model.graph.output:
                    output.ClearField("type")
                inferred = onnx.shape_inference.infer_shapes(one.model, strict_mode=True, check_type=True)
                expected = run_reference(op, folder.reference, case)
                for tensor, output in zip(op.outputs, inferred.graph.output, strict=True):
                    dtype = types.get(tensor.type, tensor.type)
                    assert output.type.tensor_type.elem_type == element_type("f32" if dtype == "bf16" else dtype)
                    actual = expected[tensor.name].shape
                    assert len(sizes(output)) == len(actual)
                    assert all(size in ("", known) for size, known in zip(sizes(output), actual, strict=True))
    assert tried > 300


def test_served_models_pass_the_full_check() -> None:
    for file in sorted((PROJECT / "model_repository").glob("*/1/model.onnx")):
        onnx.checker.check_model(onnx.load(file), full_check=True)


def test_names_optional_inputs_and_kernel_sizes() -> None:
    points = helper.make_tensor_value_info("points", TensorProto.FLOAT, ["n", 3])
    query = helper.make_tensor_value_info("query", TensorProto.FLOAT, ["q", 3])
    nodes = [
        helper.make_node("NearestSum", ["points", "", "query"], ["sum", "count"], domain="fixture_ops"),
        helper.make_node("NearestSum", ["points"], ["own"], domain="fixture_ops"),
        helper.make_node("SumAll", ["sum", "sum"], ["both"], domain="fixture_ops"),
        helper.make_node("KeepPositive", ["own"], ["values", "indices"], domain="fixture_ops"),
    ]
    inferred = infer(nodes, [points, query], ["sum", "count", "own", "both", "values"])
    assert inferred == {"sum": ["q"], "count": ["q"], "own": ["n"], "both": ["q"], "values": [""]}


def test_an_input_of_an_unknown_type_may_be_present() -> None:
    points = helper.make_tensor_value_info("points", TensorProto.FLOAT, [5, 3])
    nodes = [
        helper.make_node("Unheard", ["points"], ["query"], domain="local"),
        helper.make_node("NearestSum", ["points", "", "query"], ["sum"], domain="fixture_ops"),
    ]
    model = model_of(nodes, [points], [onnx.ValueInfoProto(name="sum")])
    model.opset_import.append(helper.make_opsetid("local", 1))
    assert sizes(onnx.shape_inference.infer_shapes(model).graph.output[0]) == [""]


@pytest.mark.parametrize("shape", [[1], [2]])
def test_a_constant_that_is_no_scalar_is_refused(shape: list[int]) -> None:
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, [6, 9])
    row = helper.make_tensor_value_info("row", TensorProto.UINT8, [18])
    nodes = [
        helper.make_node(
            "Constant", [], ["times"], value=helper.make_tensor("t", TensorProto.INT64, shape, [3] * shape[0])
        ),
        helper.make_node("Patches", ["image", "row", "times"], ["grid"], domain="fixture_ops", size=2),
    ]
    with pytest.raises(Exception, match=rf"input 'times': expected i64\[\], got i64\[{shape[0]}\]"):
        infer(nodes, [image, row], ["grid"])


def test_a_newer_version_of_an_op_replaces_the_older_one(op_named: Callable[[str], Op]) -> None:
    first = replace(op_named("KeepPositive"), name="Versioned")
    for version in (1, 2, 1):
        register([replace(first, since_version=version)])
        assert onnx.defs.get_schema("Versioned", domain="fixture_ops").since_version == version


def test_expressions_and_attributes() -> None:
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, [6, 9])
    row = helper.make_tensor_value_info("row", TensorProto.UINT8, [18])
    times = helper.make_tensor_value_info("times", TensorProto.INT64, [])
    node = helper.make_node("Patches", ["image", "row", "times"], ["grid", "tiled"], domain="fixture_ops", size=2)
    assert infer([node], [image, row, times], ["grid", "tiled"]) == {"grid": [3, 5], "tiled": ["", 3]}


def test_a_contradiction_names_the_op_and_the_input() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    node = helper.make_node("KeepPositive", ["x"], ["values", "indices"], domain="fixture_ops")
    with pytest.raises(Exception, match=r"fixture_ops::KeepPositive: input 'x': expected T\[n\], got f32\[2, 3\]"):
        infer([node], [x], ["values"])


def test_a_contradiction_is_found_beside_an_unknown_size() -> None:
    points = helper.make_tensor_value_info("points", TensorProto.FLOAT, ["n", 2])
    offset = helper.make_tensor_value_info("offset", TensorProto.INT32, [1])
    nodes = [
        helper.make_node("Concat", ["points", "points"], ["xyz"], axis=1),
        helper.make_node("KNNQuery", ["xyz", "offset", "points"], ["idx", "dist"], domain="opgate"),
    ]
    expected = r"opgate::KNNQuery: input 'new_xyz': expected T\[m, d\] with d = 4, got f32\[n, 2\]"
    with pytest.raises(Exception, match=expected):
        infer(nodes, [points, offset], ["idx"])


def test_the_checker_refuses_a_missing_attribute_and_a_wrong_type() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["v"])
    with pytest.raises(onnx.checker.ValidationError, match="Required attribute 'how' is missing"):
        onnx.checker.check_model(
            model_of([helper.make_node("Misbehave", ["x"], ["y"], domain="fixture_ops")], [x], [y])
        )
    doubles = helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["n"])
    with pytest.raises(Exception, match=r"input 'x': expected T\[n\] with T one of f32, i32, got f64\[n\]"):
        infer([helper.make_node("KeepPositive", ["x"], ["v", "p"], domain="fixture_ops")], [doubles], ["v"])


def test_a_schema_agrees_with_its_signature(op_named: Callable[[str], Op]) -> None:
    shout = schema(op_named("Shout"))
    assert shout.doc.startswith("Each text in capitals")
    defaults = {name: helper.get_attribute_value(a.default_value) for name, a in shout.attributes.items()}
    assert defaults == {"mark": b"!", "words": b"", "twice": 0, "letters": b"upper"}
    assert [str(parameter.option) for parameter in schema(op_named("NearestSum")).inputs] == [
        "FormalParameterOption.Single", *["FormalParameterOption.Optional"] * 3,
    ]  # fmt: skip
    assert np.isclose(helper.get_attribute_value(schema(op_named("LeakyRelu")).attributes["alpha"].default_value), 0.01)


def test_float_attributes_with_integral_defaults_stay_floats(library: Path) -> None:
    """A default of 0 must not become an integer: onnx.checker must accept a node that states the float."""
    for op in read_table(library):
        for attribute in op.attributes:
            if attribute.kind == "float" and not attribute.required:
                values = attribute.default if attribute.list else [attribute.default]
                assert all(isinstance(value, float) for value in values), (op.name, attribute.name)
                stated = schema(op).attributes[attribute.name]
                assert stated.type == (OpSchema.AttrType.FLOATS if attribute.list else OpSchema.AttrType.FLOAT)
