"""The generic ONNX Runtime adapter, tested with ops that each use a part of the signature grammar."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from opgate.ops_build.adapters.onnxruntime.engine import OnnxRuntimeEngine
from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.case import Case
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.onnx.one_node_model import one_node_model
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.op_table import Op, read_table

Run = Callable[..., dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def run(fixture_library: Path, op_named: Callable[[str], Op]) -> Run:
    engine = OnnxRuntimeEngine(fixture_library)

    def call(
        name: str, inputs: dict[str, Any], types: dict[str, str] | None = None, **attributes: Any
    ) -> dict[str, np.ndarray]:
        return engine.run(op_named(name), Case(name, inputs, attributes), types or {})

    return call


def session_of(
    library: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], **options: Any
) -> ort.InferenceSession:
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("fixture_ops", 1), helper.make_opsetid("opgate", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session_options = ort.SessionOptions()
    for key, value in options.items():
        setattr(session_options, key, value)
    session_options.register_custom_ops_library(str(library))
    return ort.InferenceSession(model.SerializeToString(), session_options, providers=["CPUExecutionProvider"])


POINTS = np.arange(12, dtype=np.float32).reshape(4, 3)
QUERY = np.ones((2, 3), np.float32)


def expected_sum(points: np.ndarray, query: np.ndarray, weight: np.ndarray | float = 1.0) -> np.ndarray:
    return (points.sum() + query.sum(1)) * weight


def test_optional_inputs_left_out(run: Run) -> None:
    outputs = run("NearestSum", {"points": POINTS})
    np.testing.assert_allclose(outputs["sum"], expected_sum(POINTS, POINTS))
    np.testing.assert_array_equal(outputs["count"], [4, 4, 4, 4])


def test_an_empty_name_leaves_an_optional_input_out(run: Run) -> None:
    outputs = run("NearestSum", {"points": POINTS, "query": QUERY})  # `segment` is "" in the node
    np.testing.assert_allclose(outputs["sum"], expected_sum(POINTS, QUERY))


def test_every_pattern_of_present_optional_inputs(run: Run) -> None:
    segment = np.array([0, 1, 0, 1], np.int32)
    for has_segment in (False, True):
        for has_query in (False, True):
            for has_weight in (False, True):
                rows = 2 if has_query else 4
                weight = np.linspace(1, 2, rows, dtype=np.float32)
                inputs = {"points": POINTS}
                inputs |= {"segment": segment} if has_segment else {}
                inputs |= {"query": QUERY} if has_query else {}
                inputs |= {"weight": weight} if has_weight else {}
                counted = POINTS[segment == 0] if has_segment else POINTS
                expected = (counted.sum() + (QUERY if has_query else POINTS).sum(1)) * (weight if has_weight else 1)
                np.testing.assert_allclose(run("NearestSum", inputs)["sum"], expected, rtol=1e-6)


def test_optional_output_left_out(fixture_library: Path) -> None:
    points = helper.make_tensor_value_info("points", TensorProto.FLOAT, ["n", 3])
    total = helper.make_tensor_value_info("sum", TensorProto.FLOAT, None)
    for outputs in (["sum"], ["sum", ""]):
        node = helper.make_node("NearestSum", ["points"], outputs, domain="fixture_ops")
        result = session_of(fixture_library, [node], [points], [total]).run(None, {"points": POINTS})
        np.testing.assert_allclose(result[0], expected_sum(POINTS, POINTS))


@pytest.mark.parametrize(("dtype", "numpy_type"), [("f32", np.float32), ("i32", np.int32)])
def test_data_dependent_size(run: Run, dtype: str, numpy_type: type) -> None:
    x = np.array([3, -1, 0, 5, -2, 7]).astype(numpy_type)
    outputs = run("KeepPositive", {"x": x}, {"T": dtype})
    np.testing.assert_array_equal(outputs["values"], [3, 5, 7])
    np.testing.assert_array_equal(outputs["indices"], [0, 3, 5])
    assert outputs["values"].dtype == numpy_type
    assert run("KeepPositive", {"x": -x - 10}, {"T": dtype})["values"].shape == (0,)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(("dtype", "numpy_type"), [("f32", np.float32), ("f64", np.float64), ("i64", np.int64)])
def test_variadic_input(run: Run, count: int, dtype: str, numpy_type: type) -> None:
    xs = [np.full((2, 3), i + 1, numpy_type) for i in range(count)]
    np.testing.assert_array_equal(run("SumAll", {"xs": xs}, {"T": dtype})["y"], sum(xs))


def test_variadic_inputs_must_agree(run: Run) -> None:
    with pytest.raises(
        Exception, match=r"fixture_ops::SumAll: input 'xs': expected T\[\.\.\.\] with \.\.\. = \[2\], got f32\[3\]"
    ):
        run("SumAll", {"xs": [np.ones(2, np.float32), np.ones(3, np.float32)]}, {"T": "f32"})


def test_the_status_of_a_row_and_the_error_of_a_call(run: Run) -> None:
    data = np.frombuffer(b"12x7-4", np.uint8)
    outputs = run("ParseNumber", {"data": data, "ends": np.array([2, 3, 4, 4, 6], np.int32)})
    np.testing.assert_array_equal(outputs["value"], [12, 0, 7, 0, -4])
    np.testing.assert_array_equal(outputs["status"], [0, 1, 0, 1, 0])
    with pytest.raises(Exception, match="ParseNumber: input 'ends': expected ascending ends up to 6, got 9 at 1"):
        run("ParseNumber", {"data": data, "ends": np.array([2, 9], np.int32)})


def test_strings_and_attributes_of_every_kind(run: Run) -> None:
    texts = np.array([["ab", "grüß"], ["", "z\0y"]], object)
    shouted = run("Shout", {"texts": texts})["shouted"]
    assert shouted.tolist() == [["AB!", "GRüß!"], ["!", "Z\0Y!"]]
    shouted = run("Shout", {"texts": texts}, mark="?", words=["one", "two"], twice=True, letters="lower")["shouted"]
    assert shouted.tolist() == [["ab one two??", "grüß one two??"], [" one two??", "z\0y one two??"]]


def test_expressions_and_scalars_as_sizes(run: Run) -> None:
    image = np.arange(54, dtype=np.uint8).reshape(6, 9)
    inputs = {"image": image, "row": np.zeros(18, np.uint8), "times": np.array(3, np.int64)}
    outputs = run("Patches", inputs)
    assert outputs["grid"].shape == (2, 3)
    assert outputs["grid"][1, 2] == image[4:, 8:].sum()
    assert outputs["tiled"].shape == (3, 9 - 6 + 6 % 4)
    assert run("Patches", inputs, size=2)["grid"].shape == (3, 5)
    with pytest.raises(Exception, match=r"input 'row': expected u8\[2\*w\] with 2\*w = 18, got u8\[17\]"):
        run("Patches", inputs | {"row": np.zeros(17, np.uint8)})
    with pytest.raises(Exception, match="'times' is a size: expected a number from 0, got -1"):
        run("Patches", inputs | {"times": np.array(-1, np.int64)})
    with pytest.raises(Exception, match="divided by zero"):
        run("Patches", inputs, size=0)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("throws", "thrown by the kernel"),
        ("throws_in_pool", "thrown in the pool"),
        ("leaves_open", "left the size of output 'y' open"),
        ("binds_too_much", r"set 'v' to 4, which is not in 0\.\.3"),
        ("asks_unknown", "asks for input 'nothing'"),
        ("runs_out", "."),
        ("reads_as_double", r"the kernel accesses tensor 'x', which is f32\[3\], as f64"),
        ("writes_as_double", r"the kernel accesses tensor 'y', which is f32\[3\], as f64"),
    ],
)
def test_a_misbehaving_kernel_is_an_error(run: Run, how: str, message: str) -> None:
    with pytest.raises(Exception, match=f"(?s)fixture_ops::Misbehave: .*{message}"):
        run("Misbehave", {"x": np.ones(3, np.float32)}, how=how)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, r"attribute 'how' is required: \{throws\|"),
        ({"how": "dances"}, r"attribute 'how': expected \{throws\|.*\}, got 'dances'"),
        ({"how": 3}, "attribute 'how': expected .* got an integer"),
        ({"how": 3.0}, "attribute 'how': expected .* got a float"),
        ({"how": ["a", "b"]}, "attribute 'how': expected .* got a list that is empty or of strings"),
    ],
)
def test_bad_attributes_are_refused_when_the_model_loads(
    fixture_library: Path, attributes: dict[str, Any], message: str
) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("Misbehave", ["x"], ["y"], domain="fixture_ops", **attributes)
    with pytest.raises(Exception, match=message):
        session_of(fixture_library, [node], [x], [y])


@pytest.mark.parametrize(
    ("mean", "got"),
    [([0, 0, 0], "integers"), (0, "an integer"), (0.5, "a float"), ("0.5", "a string"), ([0.5, 0.5], "2 values")],
)
def test_an_attribute_of_another_type_is_refused_with_its_type(library: Path, mean: object, got: str) -> None:
    inputs = [
        helper.make_tensor_value_info("image", TensorProto.UINT8, ["n", "h", "w", 3]),
        helper.make_tensor_value_info("matrix", TensorProto.FLOAT, ["n", 2, 3]),
    ]
    attributes = {"height": 8, "width": 8, "mean": mean}
    node = helper.make_node("WarpAffine", ["image", "matrix"], ["tensor"], domain="opgate", **attributes)
    expected = rf"opgate::WarpAffine: attribute 'mean': expected float\[3\].*, got {got}"
    with pytest.raises(Exception, match=expected):
        session_of(library, [node], inputs, [float_info("tensor", None)])


def refused_cases(library: Path, pattern: str) -> list[tuple[Op, dict[str, str], Case]]:
    """Returns the cases of all ops that are refused with an error that matches the pattern."""
    found = []
    for op in read_table(library):
        types = next(iter(op.type_choices()))
        cases = folder_of(op, [SOURCE / "ops"]).cases(numpy_types(types))
        found += [(op, types, case) for case in cases if case.error and re.search(pattern, case.error)]
    return found


#: Errors in attributes that only some inputs make wrong.
BY_INPUTS = "as head has|whose rank is|divisor of|at most the head size|for each of the 4 channels"


def test_attributes_that_no_run_can_use_are_refused_when_the_model_loads(library: Path) -> None:
    refused = refused_cases(library, f"^(?!.*({BY_INPUTS})).*attribute|^-1$|^height$|^nsample$")
    assert {op.name for op, _, _ in refused} >= {
        "DecodeImage",
        "DBPostprocess",
        "DetectionPostprocess",
        "DrawBoundingBoxes",
        "EncodeImage",
        "ImagePreprocess",
        "KNNQuery",
        "PerspectiveCrop",
        "ResizeNormalize",
        "RMSNorm",
    }
    for op, types, case in refused:
        model = one_node_model(op, case, types, static=False).model
        with pytest.raises(Exception, match=rf"opgate::{op.name}: .*{case.error}"):
            OnnxRuntimeEngine(library).session(model)


def test_static_shapes_that_no_run_can_use_are_refused_when_the_model_loads(library: Path) -> None:
    """The signature alone can't say this, so the kernels check it: c >= 3, for example."""
    refused = refused_cases(library, r"c >= 3|got c = 3|(?<!')channels|input 'image': expected sides|got no ends")
    assert {op.name for op, _, _ in refused} >= {
        "DetectionPostprocess",
        "EncodeImage",
        "KNNQuery",
        "ResizeNormalize",
        "SegmentReduce",
        "Voxelize",
    }
    for op, types, case in refused:
        with pytest.raises(Exception, match=f"opgate::{op.name}: .*{case.error}"):
            OnnxRuntimeEngine(library).session(one_node_model(op, case, types).model)
        OnnxRuntimeEngine(library).session(one_node_model(op, case, types, static=False).model)


@pytest.mark.parametrize("nsample", [2**31, 2**62])
def test_an_output_that_no_memory_holds_is_refused_when_the_model_loads(library: Path, nsample: int) -> None:
    inputs = [float_info("xyz", [5, 3]), helper.make_tensor_value_info("offset", TensorProto.INT32, [1])]
    node = helper.make_node("KNNQuery", ["xyz", "offset"], ["idx", "dist"], domain="opgate", nsample=nsample)
    expected = rf"opgate::KNNQuery: (attribute 'nsample': expected at most|output 'idx': expected fewer) .*{nsample}"
    with pytest.raises(Exception, match=expected):
        session_of(library, [node], inputs, [float_info("dist", None)])


def test_an_allocation_that_fails_names_the_output_and_its_dims(library: Path) -> None:
    side = 1 << 24
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["n", "h", "w", 3])
    node = helper.make_node("ResizeNormalize", ["image"], ["tensor"], domain="opgate", height=side, width=side)
    session = session_of(library, [node], [image], [float_info("tensor", None)])
    expected = rf"opgate::ResizeNormalize: output 'tensor', f32\[1, 3, {side}, {side}\]: "
    with pytest.raises(Exception, match=expected):
        session.run(None, {"image": np.zeros((1, 2, 2, 3), np.uint8)})


def float_info(name: str, shape: list[Any] | None) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def scaled_columns(
    library: Path, shape: list[Any], weights: list[np.ndarray | None], **attributes: Any
) -> ort.InferenceSession:
    """Returns a session with one ScaledColumns node per weight: None is an input of the model, an array a constant."""
    nodes, inputs, outputs, initializers = [], [float_info("x", shape)], [], []
    for i, weight in enumerate(weights):
        names = [f"y{i}", f"prepared{i}", f"constant{i}"]
        nodes.append(helper.make_node("ScaledColumns", ["x", f"w{i}"], names, domain="fixture_ops", **attributes))
        types = (TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32)
        outputs += [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(names, types, strict=True)]
        if weight is None:
            inputs.append(float_info(f"w{i}", shape[1:]))
        else:
            initializers.append(helper.make_tensor(f"w{i}", TensorProto.FLOAT, weight.shape, weight))
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("fixture_ops", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def test_a_kernel_prepares_once_for_each_node_from_its_constants(fixture_library: Path) -> None:
    weights = [np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32)]
    session = scaled_columns(fixture_library, ["n", "c"], list(weights), scale=2.0)
    first = second = None
    for rows in (1, 4, 2):
        x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
        y0, prepared0, constant0, y1, prepared1, constant1 = session.run(None, {"x": x})
        np.testing.assert_array_equal(y0, x * weights[0] * 2)
        np.testing.assert_array_equal(y1, x * weights[1] * 2)
        assert (constant0, constant1) == (1, 1)
        first, second = first or int(prepared0), second or int(prepared1)
        assert (prepared0, prepared1) == (first, second)
    assert abs(first - second) == 1


@pytest.mark.parametrize("columns", [3, "c"])
def test_an_input_that_is_no_constant_is_read_in_each_run(fixture_library: Path, columns: int | str) -> None:
    session = scaled_columns(fixture_library, ["n", columns], [None])
    serials = set()
    for count in (3, 3) if columns == 3 else (3, 5, 3):
        x, weight = np.ones((2, count), np.float32), np.arange(count, dtype=np.float32)
        y, prepared, constant = session.run(None, {"x": x, "w0": weight})
        np.testing.assert_array_equal(y, x * weight)
        assert constant == 0
        serials.add(int(prepared))
    assert len(serials) == 1  # one prepared kernel serves every run


@pytest.mark.parametrize(
    ("scale", "message"),
    [(float("nan"), "attribute 'scale': expected a number, got nan"), (-1.0, r"thrown by prepare\(\)")],
)
def test_a_kernel_that_can_not_prepare_is_refused_when_the_model_loads(
    fixture_library: Path, scale: float, message: str
) -> None:
    with pytest.raises(Exception, match=f"fixture_ops::ScaledColumns: {message}"):
        scaled_columns(fixture_library, ["n", 3], [None], scale=scale)


@pytest.mark.parametrize("rows", [5, "points"])
def test_a_shape_that_contradicts_the_signature_is_refused_when_the_model_loads(library: Path, rows: int | str) -> None:
    inputs = [float_info("xyz", [rows, 3]), helper.make_tensor_value_info("offset", TensorProto.INT32, [1])]
    inputs.append(float_info("new_xyz", [rows, 4]))
    node = helper.make_node("KNNQuery", ["xyz", "offset", "new_xyz"], ["idx", "dist"], domain="opgate")
    expected = rf"opgate::KNNQuery: input 'new_xyz': expected T\[m, d\] with d = 3, got f32\[{rows}, 4\]"
    with pytest.raises(Exception, match=expected):
        session_of(library, [node], inputs, [float_info("dist", None)])
    # Inside a graph ONNX Runtime infers the shape.
    inputs[2] = float_info("points", [rows, 2])
    nodes = [helper.make_node("Concat", ["points", "points"], ["new_xyz"], axis=1), node]
    with pytest.raises(Exception, match=rf"with d = 3, got f32\[{rows}, 4\]"):
        session_of(library, nodes, inputs, [float_info("dist", None)])


def test_wrong_dtypes_are_refused_when_the_model_loads(fixture_library: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["n"])
    node = helper.make_node("KeepPositive", ["x"], ["values", "indices"], domain="fixture_ops")
    with pytest.raises(Exception, match=r"tensor\(double\)"):
        session_of(fixture_library, [node], [x], [helper.make_tensor_value_info("values", TensorProto.DOUBLE, None)])


def test_symbolic_shapes_propagate(fixture_library: Path) -> None:
    points = helper.make_tensor_value_info("points", TensorProto.FLOAT, ["n", 3])
    query = helper.make_tensor_value_info("query", TensorProto.FLOAT, ["queries", 3])
    nodes = [
        helper.make_node("NearestSum", ["points", "", "query"], ["sum", "count"], domain="fixture_ops"),
        helper.make_node("SumAll", ["sum", "sum", "sum"], ["tripled"], domain="fixture_ops"),
        helper.make_node("KeepPositive", ["tripled"], ["kept", "indices"], domain="fixture_ops"),
        helper.make_node("NearestSum", ["points"], ["own"], domain="fixture_ops"),
    ]
    names = {
        "tripled": TensorProto.FLOAT,
        "count": TensorProto.INT64,
        "kept": TensorProto.FLOAT,
        "own": TensorProto.FLOAT,
    }
    outputs = [helper.make_tensor_value_info(name, dtype, None) for name, dtype in names.items()]
    session = session_of(fixture_library, nodes, [points, query], outputs)
    shapes = {output.name: output.shape for output in session.get_outputs()}
    assert shapes["tripled"] == ["queries"]
    assert shapes["count"] == ["queries"]
    assert shapes["own"] == ["n"]
    assert len(shapes["kept"]) == 1 and not isinstance(shapes["kept"][0], int)


@pytest.mark.parametrize("element", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE])
def test_one_name_holds_several_dtypes_and_infers_them(library: Path, element: int) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    nodes = [
        helper.make_node("Cast", ["x"], ["cast"], to=element),
        helper.make_node("Mish", ["cast"], ["a"], domain="opgate"),
        helper.make_node("Mish", ["a"], ["b"], domain="opgate"),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    session = session_of(library, nodes, [x], [y])
    assert session.get_outputs()[0].shape == ["n", 3]
    assert session.run(None, {"x": np.ones((2, 3), np.float32)})[0][0, 0] == pytest.approx(0.7254791, rel=2e-2)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_parallel_for_covers_every_element_once(library: Path, threads: int) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("LeakyRelu", ["x"], ["y"], domain="opgate", alpha=0.5)
    session = session_of(library, [node], [x], [y], intra_op_num_threads=threads)
    for size in (1, 16_383, 16_385, 100_003, 5_000_011):
        values = np.random.default_rng(size).standard_normal(size).astype(np.float32)
        np.testing.assert_array_equal(
            session.run(None, {"x": values})[0], np.where(values < 0, values * np.float32(0.5), values)
        )


def test_two_libraries_of_different_domains_in_one_session(library: Path, fixture_library: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    nodes = [
        helper.make_node("LeakyRelu", ["x"], ["h"], domain="opgate"),
        helper.make_node("SumAll", ["h", "x"], ["y"], domain="fixture_ops"),
    ]
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    opsets = [helper.make_opsetid("opgate", 1), helper.make_opsetid("fixture_ops", 1)]
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library))
    options.register_custom_ops_library(str(fixture_library))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": np.array([1, 2], np.float32)})[0], [2, 4])


def test_out_of_tree_ops_are_all_in_the_table(fixture_library: Path) -> None:
    names = [op.name for op in read_table(fixture_library)]
    assert names == [
        "ClampAdd",
        "ClampAddBackward",
        "DiesOn",
        "KeepPositive",
        "Misbehave",
        "NearestSum",
        "ParseNumber",
        "Patches",
        "ScaledColumns",
        "Shout",
        "SumAll",
        "Tiles",
    ]


def test_names_of_sizes_propagate_past_an_absent_input(op_named: Callable[[str], Op], fixture_library: Path) -> None:
    case = Case("x", {"points": POINTS, "query": QUERY})
    one = one_node_model(op_named("NearestSum"), case, {}, static=False)
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(fixture_library))
    session = ort.InferenceSession(one.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert [output.shape for output in session.get_outputs()] == [["query_0"], ["query_0"]]


def test_an_unknown_rank_is_not_read_as_a_scalar(library: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    nodes = [helper.make_node("Mish", ["x"], ["h"], domain="opgate"), helper.make_node("Relu", ["h"], ["y"])]
    session = session_of(library, nodes, [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    for shape in ((), (3,), (2, 3, 4)):
        assert session.run(None, {"x": np.ones(shape, np.float32)})[0].shape == shape


def test_names_of_new_sizes_differ_from_process_to_process(fixture_library: Path) -> None:
    """A model that ONNX Runtime has optimized and saved holds such names. Another process must not invent them anew."""
    node = helper.make_node("KeepPositive", ["x"], ["values", "indices"], domain="fixture_ops")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    values = helper.make_tensor_value_info("values", TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("fixture_ops", 1)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [values]), opset_imports=opsets, ir_version=10)
    program = (
        "import sys, onnxruntime as ort; options = ort.SessionOptions(); options.register_custom_ops_library(sys.argv[1]);"
        "print(ort.InferenceSession(sys.stdin.buffer.read(), options, ['CPUExecutionProvider']).get_outputs()[0].shape[0])"
    )
    command = [sys.executable, "-c", program, str(fixture_library)]
    names = [
        subprocess.run(command, input=model.SerializeToString(), capture_output=True, check=True).stdout for _ in "12"
    ]
    assert names[0] != names[1] and all(name.startswith(b"KeepPositive_v_") for name in names), names


def test_an_op_that_prepares_is_tried_with_constant_inputs_too(
    fixture_library: Path, op_named: Callable[[str], Op]
) -> None:
    """The output `constant` of ScaledColumns says whether prepare() saw a constant weight, so both runs must differ."""
    op = op_named("ScaledColumns")
    assert "cpu" in op.prepares and not op_named("Shout").prepares
    case = Case("", {"x": np.ones((2, 3), np.float32), "weight": np.arange(3, dtype=np.float32)})
    with pytest.raises(
        AssertionError, match=r"output '(prepared|constant)' with constant inputs: 1 of 1 elements differ"
    ):
        OnnxRuntimeEngine(fixture_library).run(op, case, {})


def test_an_engine_on_cuda_never_runs_on_the_cpu(library: Path, op_named: Callable[[str], Op]) -> None:
    """The library has CPU kernels, and ONNX Runtime would use them if its CUDA provider can't be loaded."""
    ones = np.ones(2, np.float32)
    case = Case("", {"a": ones, "b": ones})
    assert OnnxRuntimeEngine(library).run(op_named("MyAdd"), case, {"T": "f32"})["y"].tolist() == [3, 3]
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this onnxruntime has a CUDA provider")
    with (
        pytest.warns(UserWarning, match="CUDAExecutionProvider"),
        pytest.raises(Exception, match=r"fallback to CPU EP|expected a session"),
    ):
        OnnxRuntimeEngine(library, "cuda").run(op_named("MyAdd"), case, {"T": "f32"})
