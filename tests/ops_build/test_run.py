"""`opgate run`: a finished library, shape functions in a Python file, and a run in each engine. The example is Graphcore's
LeakyRelu, as PopRT's documentation describes it, with files of this test."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import typer
from onnx import TensorProto, helper
from typer.testing import CliRunner

from opgate.commands.run import run
from opgate.onnx_tools import shape_functions
from opgate.onnx_tools.model_inputs import InputError, feeds
from opgate.onnx_tools.shape_functions import ShapeFunctionError, get_dtype, get_shape, infer_shapes, unknown_shapes
from opgate.ops_build.adapters.onnxruntime.toolchain import find_onnxruntime_headers
from opgate.ops_build.building.toolchain import toolchain_folder

HERE = Path(__file__).parent

POPRT_FORM = """
import onnx
from poprt.passes import ShapeFunc, get_dtype, get_shape, register_shape_func

@register_shape_func(["LeakyRelu"])
class Same(ShapeFunc):
    def __call__(self, model, node):
        shape, dtype = get_shape(model.graph, node.input[0]), get_dtype(model.graph, node.input[0])
        if not shape or not dtype:
            return model, False
        value = onnx.helper.make_tensor_value_info(node.output[0], dtype, shape)
        return self.update_value_info(model, value), True
"""
FIRST_POPRT_FORM = POPRT_FORM.replace(
    "from poprt.passes import ShapeFunc, get_dtype, get_shape, register_shape_func",
    "from poprt.passes.onnx_helper import get_dtype, get_shape\\n"
    "from poprt.passes.shape_inference import ShapeInference as ShapeFunc, register as register_shape_func",
).replace("\\n", "\n")
PLAIN_FORM = 'shape_functions = {"ai.graphcore::LeakyRelu": lambda node, inputs: inputs}'


def command(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opgate", "run", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
    )


def example(open_dims: bool = False) -> onnx.ModelProto:
    """Returns the model of the example: LeakyRelu, then Relu, of 8 x 8."""
    shape = ["n", 8] if open_dims else [8, 8]
    graph = helper.make_graph(
        [
            helper.make_node("LeakyRelu", ["X"], ["Y"], domain="ai.graphcore", alpha=0.01),
            helper.make_node("Relu", ["Y"], ["Z"]),
        ],
        "custom_op_test",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, shape)],
        [helper.make_empty_tensor_value_info(name) for name in "YZ"],
    )
    opsets = [helper.make_opsetid("", 11), helper.make_opsetid("ai.graphcore", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the example: the model, the finished library and the shape functions."""
    if not shutil.which("g++"):
        pytest.skip("there is no g++")
    folder = tmp_path_factory.mktemp("custom_op_example")
    headers = find_onnxruntime_headers(toolchain_folder(), lambda line: None)
    compile_line = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-isystem{headers.include}"]
    subprocess.run(
        [*compile_line, HERE / "finished_library" / "leaky_relu.cpp", "-o", folder / "custom_ops.so"], check=True
    )
    onnx.save(example(), folder / "custom_op_test.onnx")
    onnx.save(example(open_dims=True), folder / "open.onnx")
    (folder / "custom_shape_inference.py").write_text(POPRT_FORM)
    return folder


def test_graphcores_example(folder: Path) -> None:
    finished = command(
        "--input_model", "custom_op_test.onnx", "--custom_library_so_paths", "custom_ops.so",
        "--custom_shape_inference", "custom_shape_inference.py", "--run", "--save", "all.npz", "--output_model", "shaped.onnx",
        folder=folder,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith(
        "shape of Y: [8, 8]\nshape of Z: [8, 8]\nwrote shaped.onnx\ninput X: float32 [8, 8]\n"
    )
    assert re.search(r"latency: \d+ us in onnxruntime, the median of 20 runs\nwrote all.npz\n$", finished.stdout)
    saved = np.load(folder / "all.npz")
    x = saved["X"]
    assert (x < 0).any()
    np.testing.assert_array_equal(saved["Y"], np.where(x >= 0, x, np.float32(0.01) * x))
    np.testing.assert_array_equal(saved["Z"], np.maximum(x, 0))
    shaped = onnx.load(folder / "shaped.onnx")
    assert get_shape(shaped.graph, "Y") == [8, 8] and get_dtype(shaped.graph, "Z") == TensorProto.FLOAT


def test_both_spellings_given_inputs_and_no_run(folder: Path) -> None:
    np.save(folder / "x.npy", np.full((2, 8), -3, np.float32))
    arguments = ["--input-model", "open.onnx", "--custom-library-so-paths", "custom_ops.so"]
    shapes = ["--custom-shape-inference", "custom_shape_inference.py"]
    finished = command(*arguments, *shapes, "--run", "--input", "X=x.npy", "--iterations", 0, folder=folder)
    assert "shape of Z: ['n', 8]" in finished.stdout
    assert "output Y: float32 [2, 8]" in finished.stdout and "-0.03" in finished.stdout
    assert "latency" not in finished.stdout
    one = command(*arguments, "--run", "--seed", 5, "--save", "a.npz", "--size", "n=3", folder=folder)
    assert "no shape function tells the shape of Y, Z" in one.stdout
    command(*arguments, "--run", "--seed", 5, "--save", "b.npz", "--input", "X=f32[3,8]", folder=folder)
    command(*arguments, "--run", "--seed", 6, "--save", "c.npz", "--size", "n=3", folder=folder)
    a, b, c = (np.load(folder / f"{name}.npz")["X"] for name in "abc")
    np.testing.assert_array_equal(a, b)
    assert a.shape == (3, 8) and not np.array_equal(a, c)
    finished = command(*arguments, *shapes, folder=folder)
    assert finished.returncode == 0 and "output" not in finished.stdout


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        (TensorProto.UINT8, [0, 255], [256]),
        (TensorProto.UINT8, [], [-1]),
        (TensorProto.INT8, [-128, 127], [300]),
        (TensorProto.INT64, [2**62], [1.5]),
        (TensorProto.FLOAT16, [1, 65504.0], [1e6]),
        (TensorProto.BOOL, [True], [2]),
        (TensorProto.STRING, ["a", "ü"], [1]),
    ],
)
def test_numbers_in_json_fit_the_type_or_are_refused(dtype: int, good: list, bad: list) -> None:
    x, y = (helper.make_tensor_value_info(name, dtype, ["n"]) for name in "xy")
    model = helper.make_model(helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y]))
    assert feeds(model, [f"x={json.dumps(good)}"])["x"].tolist() == good
    with pytest.raises(InputError, match="input 'x': expected a"):
        feeds(model, [f"x={json.dumps(bad)}"])


@pytest.mark.parametrize("name", ["file", "allow_pickle", "a b/ü"])
def test_every_name_is_saved(tmp_path: Path, name: str) -> None:
    x, y = helper.make_tensor_value_info(name, TensorProto.STRING, [1]), helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph([helper.make_node("Identity", [name], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "m.onnx")
    finished = command(
        "--input_model", "m.onnx", "--run", "--input", f'{name}=["t"]', "--save", "values", folder=tmp_path
    )
    assert finished.returncode == 0 and finished.stdout.endswith("wrote values.npz\n"), finished.stderr
    saved = np.load(tmp_path / "values.npz", allow_pickle=True)
    assert saved[name].tolist() == ["t"] == saved["y"].tolist()


def test_several_libraries_behind_one_option(folder: Path, library: Path) -> None:
    files = ["--input_model", "custom_op_test.onnx", "--custom_library_so_paths", library, "custom_ops.so", "--run"]
    finished = command(*files, folder=folder)
    assert finished.returncode == 0, finished.stderr
    assert "output Z: float32 [8, 8]" in finished.stdout


def test_what_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "text.onnx").write_text("no model")
    (folder / "cut.onnx").write_bytes((folder / "custom_op_test.onnx").read_bytes()[:-9])
    (folder / "nothing.py").write_text("x = 1")
    (folder / "broken.py").write_text("raise RuntimeError('no')")
    (folder / "other.py").write_text("from poprt.compiler import Compiler")
    (folder / "fails.py").write_text('shape_functions = {"ai.graphcore::LeakyRelu": lambda node, inputs: 1 / 0}')
    (folder / "wrong.py").write_text(
        POPRT_FORM.replace("return self.update_value_info(model, value), True", "return 1")
    )
    (folder / "config.pbtxt").write_text('name: "custom_op_test"')
    shaped = example()
    shaped.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    onnx.save(shaped, folder / "whole_numbers.onnx")
    shaped.graph.node[0].domain, shaped.opset_import[1].domain = "opgate", "opgate"
    onnx.save(shaped, folder / "contradiction.onnx")
    outside = helper.make_tensor("w", TensorProto.FLOAT, [1], b"1234", raw=True)
    outside.ClearField("raw_data")
    outside.data_location = TensorProto.EXTERNAL
    outside.external_data.add(key="location", value="gone.data")
    shaped.graph.initializer.append(outside)
    onnx.save(shaped, folder / "no_weights.onnx")
    model, custom = ["--input_model", "custom_op_test.onnx"], ["--custom_library_so_paths", "custom_ops.so"]
    for arguments, message in [
        (["--input_model", "text.onnx"], "text.onnx is no ONNX model"),
        (["--input_model", "cut.onnx"], "cut.onnx is no ONNX model"),
        (["--input_model", "config.pbtxt"], "config.pbtxt is no ONNX model"),
        (["--input_model", "no_weights.onnx"], "no_weights.onnx: its weights in other files can't be read"),
        (["--input_model", "contradiction.onnx"], "the shapes of the model contradict each other: opgate::LeakyRelu"),
        (["--input_model", "whole_numbers.onnx", "--run", "--input", "X=f32[8,8]"], "input 'X': expected i64, got f32"),
        (["--input_model", "open.onnx", *custom, "--run", "--size", "N=4"], "--size: the model has no open dim 'N': expected n"),
        ([*model, *custom, "--run", "--input", "X=f32[8,8]", "--input", "X=f32[8,8]"], "an input has two values: X, X"),
        ([*model, "--save", "x.npz"], "--save writes the results of a run: give --run too"),
        ([*model, "custom_ops.so"], "custom_ops.so: expected options, such as --custom_library_so_paths A.so B.so"),
        ([*model, "--custom_library_so_paths", "gone.so"], "gone.so is not there"),
        ([*model, "--custom_library_so_paths", "x.npy", "--run"], "x.npy"),
        ([*model, "--run"], "ai.graphcore"),
        ([*model, *custom, "--run", "--engine", "reference"], "the engine reference doesn't have ai.graphcore::LeakyRelu"),
        ([*model, *custom, "--run", "--engine", "tensorrt"], "--engine: expected onnxruntime, reference, torch, got 'tensorrt'"),
        ([*model, *custom, "--run", "--input", "X=f32[8,9]"], "input 'X': expected the shape [8, 8], got [8, 9]"),
        ([*model, "--custom_shape_inference", "nothing.py"], "nothing.py has no shape function"),
        ([*model, "--custom_shape_inference", "broken.py"], "broken.py: RuntimeError: no"),
        ([*model, "--custom_shape_inference", "other.py"], "other.py: ModuleNotFoundError: No module named 'poprt.compiler'"),
        ([*model, "--custom_shape_inference", "fails.py"], "the shape function of ai.graphcore::LeakyRelu fails: ZeroDivisionError"),
        ([*model, "--custom_shape_inference", "wrong.py"], "the shape function of ai.graphcore::LeakyRelu: expected a model and a bool, got int"),
    ]:  # fmt: skip
        app = typer.Typer(pretty_exceptions_enable=False)
        app.command()(run)
        refused = CliRunner().invoke(app, arguments)
        assert refused.exit_code == 1, arguments
        assert message in refused.output, (arguments, refused.output)


@pytest.mark.parametrize("text", [POPRT_FORM, FIRST_POPRT_FORM, PLAIN_FORM], ids=["poprt", "first", "plain"])
def test_the_forms_of_shape_functions(tmp_path: Path, text: str) -> None:
    (tmp_path / "shapes.py").write_text(text)
    functions = shape_functions.load(tmp_path / "shapes.py")
    assert "poprt" not in sys.modules
    model = infer_shapes(example(), functions)
    assert get_shape(model.graph, "Y") == [8, 8] == get_shape(model.graph, "Z")
    assert not unknown_shapes(model)
    assert unknown_shapes(infer_shapes(example(), {})) == ["Y", "Z"]


def test_a_shape_function_is_asked_again_when_more_is_known(tmp_path: Path) -> None:
    """The nodes stand in the order of the graph, and each needs what the one before it gives."""
    nodes = [
        helper.make_node("LeakyRelu", ["X" if i == 0 else f"t{i - 1}"], [f"t{i}"], domain="ai.graphcore")
        for i in range(4)
    ]
    model = example()
    del model.graph.node[:]
    model.graph.node.extend([*nodes, helper.make_node("Relu", ["t3"], ["Y"]), helper.make_node("Relu", ["Y"], ["Z"])])
    (tmp_path / "shapes.py").write_text(PLAIN_FORM.replace("inputs}", "None if None in inputs else inputs}"))
    model = infer_shapes(model, shape_functions.load(tmp_path / "shapes.py"))
    assert get_shape(model.graph, "Z") == [8, 8]
    (tmp_path / "shapes.py").write_text("shape_functions = 3")
    with pytest.raises(ShapeFunctionError, match="got int"):
        shape_functions.load(tmp_path / "shapes.py")


@pytest.mark.parametrize("engine", ["onnxruntime", "reference", "torch"])
def test_opgates_ops_run_in_each_engine(tmp_path: Path, library: Path, engine: str) -> None:
    if engine == "torch":
        pytest.importorskip("torch")
    nodes = [
        helper.make_node("KNNQuery", ["xyz", "offset"], ["idx", "dist"], domain="opgate", nsample=3),
        helper.make_node("Mish", ["dist"], ["mish"], domain="opgate"),
        helper.make_node("Neg", ["mish"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("xyz", TensorProto.FLOAT, ["n", 3]),
        helper.make_tensor_value_info("offset", TensorProto.INT32, [1]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info(name) for name in ("idx", "y")])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("opgate", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    xyz = np.float32([[0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 4]])
    np.save(tmp_path / "xyz.npy", xyz)
    finished = command(
        "--input_model", "m.onnx", "--run", "--engine", engine, "--input", "xyz=xyz.npy", "--input", "offset=[4]", "--save", "o.npz",
        folder=tmp_path,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    saved = np.load(tmp_path / "o.npz")
    distances = np.sort(np.linalg.norm(xyz[:, None] - xyz[None], axis=2), axis=1)[:, :3]
    np.testing.assert_allclose(saved["y"], -distances * np.tanh(np.log1p(np.exp(distances))), rtol=1e-5, atol=1e-6)
    assert saved["idx"][:, 0].tolist() == [0, 1, 2, 3]
