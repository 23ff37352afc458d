"""The generic LiteRT adapter, tested with cases of every op, with models that TensorFlow's converter makes, and with
models that are damaged."""

from __future__ import annotations

import ctypes
import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if find_spec("ai_edge_litert") is None:
    pytest.skip("the Python package ai_edge_litert is not installed", allow_module_level=True)

from ai_edge_litert.interpreter import Interpreter, load_delegate
from flatbuffers import flexbuffers

from opgate.ops_build.adapters.litert import toolchain
from opgate.ops_build.adapters.litert.engine import LiteRtEngine
from opgate.ops_build.adapters.litert.limits import NO_STRINGS
from opgate.ops_build.adapters.litert.model import one_node_model
from opgate.ops_build.building.build import Build
from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.building.toolchain import LeftOut
from opgate.ops_build.case import Case
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.op_table import Op, read_table
from opgate.ops_build.verification.verify import References, try_case
from tests.conftest import ALL
from tests.ops_build.choosing import chosen_cases
from tests.ops_build.conftest import symbols
from tests.skips import need

OPS = SOURCE / "ops"
POINTS = np.arange(12, dtype=np.float32).reshape(4, 3)
QUERY = np.ones((2, 3), np.float32)

Run = Callable[..., dict[str, np.ndarray]]


def library_of(built: Build) -> Path:
    if "litert" not in built.libraries:
        pytest.skip(f"the build has left out litert: {built.left_out.get('litert', 'it was not asked for')}")
    return built.libraries["litert"]


@pytest.fixture(scope="module")
def path(built: Build) -> Path:
    return library_of(built)


@pytest.fixture(scope="module")
def fixture_path(fixture_built: Build) -> Path:
    return library_of(fixture_built)


@pytest.fixture(scope="module")
def own_ops(fixture_path: Path) -> dict[str, Op]:
    return {op.name: op for op in read_table(fixture_path)}


@pytest.fixture(scope="module")
def run(fixture_path: Path, own_ops: dict[str, Op]) -> Run:
    engine = LiteRtEngine(fixture_path)

    def call(
        name: str, inputs: dict[str, Any], types: dict[str, str] | None = None, **attributes: Any
    ) -> dict[str, np.ndarray]:
        return engine.run(own_ops[name], Case(name, inputs, attributes), types or {})

    return call


# Other versions.


@pytest.mark.parametrize("more", [0, 8, 16])
def test_a_runtime_with_other_tensors_is_refused(path: Path, more: int) -> None:
    """A runtime whose struct of a tensor has `more` bytes: with none the delegate goes on, and asks for the nodes."""
    size, asked, said = 112 + more, [], []
    tensors = ctypes.create_string_buffer(2 * size)
    texts = [ctypes.create_string_buffer(b"x"), ctypes.create_string_buffer(b"y")]
    for place, text in enumerate(texts):
        # A float in memory of the arena, with a name: the type, the kind of allocation, the bytes, and the name.
        for offset, value in ((0, 1), (32, 2), (40, 4), (56, ctypes.addressof(text))):
            ctypes.c_uint64.from_buffer(tensors, place * size + offset).value = value
    plan = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: asked.append(True) or 1)
    tell = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)(lambda *texts: said.append(texts))
    # TfLiteContext up to ReportError. What lies behind it is 0.
    context = (ctypes.c_void_p * 64)(
        2, ctypes.cast(plan, ctypes.c_void_p), ctypes.addressof(tensors), None, None, ctypes.cast(tell, ctypes.c_void_p)
    )
    library = ctypes.CDLL(str(path))
    library.tflite_plugin_create_delegate.restype = ctypes.POINTER(ctypes.c_void_p)
    delegate = library.tflite_plugin_create_delegate(None, None, ctypes.c_size_t(0), None)
    prepare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(delegate[1])
    assert prepare(ctypes.addressof(context), ctypes.cast(delegate, ctypes.c_void_p)) == 1
    library.tflite_plugin_destroy_delegate(delegate)
    if more:
        ((_, _, text),) = said
        assert re.match(
            rb"op library 'opgate' fits LiteRT 1\.1 to 2\.\d, and the tensors of this one lie otherwise", text
        )
    assert asked == ([] if more else [True])


# One node.


def test_cases_of_every_op(path: Path) -> None:
    """Few cases of each op and dtype, or all with OPGATE_TEST_ALL."""
    engine, failures, tried = LiteRtEngine(path), [], 0
    for op, types, cases in chosen_cases(read_table(path), OPS, everything=ALL):
        refused = engine.refusal(op, types)
        assert (refused is None) == ("str" not in op.tensor_types), op.name
        if refused:
            continue
        references = References(op, folder_of(op, [OPS]))
        for case in cases:
            failure = try_case(op, references, case, types, engine)
            failures += [f"{op.name} {types} {case.name}: {failure}"] if failure else []
            tried += 1
    assert not failures, "\n".join(failures)
    assert tried > 100


def test_optional_inputs(run: Run) -> None:
    np.testing.assert_allclose(run("NearestSum", {"points": POINTS})["sum"], POINTS.sum() + POINTS.sum(1))
    segment, weight = np.array([0, 1, 0, 1], np.int32), np.array([2, 3], np.float32)
    outputs = run("NearestSum", {"points": POINTS, "query": QUERY, "weight": weight})
    np.testing.assert_allclose(outputs["sum"], (POINTS.sum() + QUERY.sum(1)) * weight)
    outputs = run("NearestSum", {"points": POINTS, "segment": segment})
    np.testing.assert_allclose(outputs["sum"], POINTS[::2].sum() + POINTS.sum(1))


@pytest.mark.parametrize(("dtype", "numpy_type"), [("f32", np.float32), ("i32", np.int32)])
def test_a_size_that_only_the_kernel_knows(run: Run, dtype: str, numpy_type: type) -> None:
    x = np.array([3, -1, 0, 5, -2, 7]).astype(numpy_type)
    outputs = run("KeepPositive", {"x": x}, {"T": dtype})
    np.testing.assert_array_equal(outputs["values"], [3, 5, 7])
    np.testing.assert_array_equal(outputs["indices"], [0, 3, 5])
    assert run("KeepPositive", {"x": -x - 10}, {"T": dtype})["values"].shape == (0,)


def test_a_variadic_input(run: Run) -> None:
    for count in (1, 2, 5):
        xs = [np.full((2, 3), i + 1, np.int64) for i in range(count)]
        np.testing.assert_array_equal(run("SumAll", {"xs": xs}, {"T": "i64"})["y"], sum(xs))
    with pytest.raises(
        RuntimeError, match=r"SumAll: input 'xs': expected T\[\.\.\.\] with \.\.\. = \[2\], got f32\[3\]"
    ):
        run("SumAll", {"xs": [np.ones(2, np.float32), np.ones(3, np.float32)]}, {"T": "f32"})


def test_expressions_and_scalars_as_sizes(run: Run) -> None:
    image = np.arange(54, dtype=np.uint8).reshape(6, 9)
    inputs = {"image": image, "row": np.zeros(18, np.uint8), "times": np.array(3, np.int64)}
    outputs = run("Patches", inputs)
    assert outputs["grid"][1, 2] == image[4:, 8:].sum() and outputs["tiled"].shape == (3, 9 - 6 + 6 % 4)
    with pytest.raises(RuntimeError, match=r"input 'row': expected u8\[2\*w\] with 2\*w = 18, got u8\[17\]"):
        run("Patches", inputs | {"row": np.zeros(17, np.uint8)})
    with pytest.raises(RuntimeError, match="'times' is a size: expected a number from 0, got -1"):
        run("Patches", inputs | {"times": np.array(-1, np.int64)})


def test_a_kernel_prepares_once_for_each_node_and_sees_constants(fixture_path: Path, own_ops: dict[str, Op]) -> None:
    weight = np.array([1, 2, 3], np.float32)
    case = Case("", {"x": np.ones((2, 3), np.float32), "weight": weight}, {"scale": 2.0})
    one = one_node_model(own_ops["ScaledColumns"], case, {}, constants=True)
    interpreter = LiteRtEngine(fixture_path).interpreter(one.model)
    numbers = set()
    for rows in (1, 4, 2):
        interpreter.resize_tensor_input(interpreter.get_input_details()[0]["index"], [rows, 3])
        interpreter.allocate_tensors()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], np.ones((rows, 3), np.float32))
        interpreter.invoke()
        y, prepared, constant = (interpreter.get_tensor(out["index"]) for out in interpreter.get_output_details())
        np.testing.assert_array_equal(y, [2 * weight] * rows)
        assert constant == 1
        numbers.add(int(prepared))
    assert len(numbers) == 1


# What goes wrong.


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("throws", "thrown by the kernel"),
        ("throws_in_pool", "thrown in the pool"),
        ("leaves_open", "left the size of output 'y' open"),
        ("binds_too_much", r"set 'v' to 4, which is not in 0\.\.3"),
        ("runs_out", "out of memory"),
        ("dances", "attribute 'how': expected .* got 'dances'"),
        (3, "attribute 'how': expected .* got a value of another type"),
        ([], "attribute 'how': expected .* got a value of another type"),
        ([1, "a"], "attribute 'how': expected .* got a value of another type"),
    ],
)
def test_a_misbehaving_kernel_is_an_error(run: Run, how: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=f"(?s)fixture_ops::Misbehave: .*{message}"):
        run("Misbehave", {"x": np.ones(3, np.float32)}, how=how)


def test_a_missing_attribute_and_a_wrong_dtype(run: Run) -> None:
    with pytest.raises(RuntimeError, match="attribute 'how' is required"):
        run("Misbehave", {"x": np.ones(3, np.float32)})
    with pytest.raises(RuntimeError, match=r"SumAll: input 'xs': expected T\[\.\.\.\] with T one of .*, got bool\[2\]"):
        run("SumAll", {"xs": [np.ones(2, bool)]}, {"T": "bool"})


def test_strings_are_refused(fixture_path: Path, own_ops: dict[str, Op]) -> None:
    engine = LiteRtEngine(fixture_path)
    assert engine.refusal(own_ops["Shout"], {}) == NO_STRINGS
    one = one_node_model(own_ops["Shout"], Case("", {"texts": np.array(["a"], object)}), {})
    with pytest.raises((RuntimeError, ValueError), match="Shout: LiteRT's delegates can't have tensors of strings"):
        engine.interpreter(one.model).allocate_tensors()


def test_damaged_options_are_an_error_and_no_crash(fixture_path: Path, own_ops: dict[str, Op]) -> None:
    """Bytes of the options are changed. The model is good or refused; the process goes on."""
    case = Case("", {"points": POINTS, "query": QUERY}, {"scale": 2.0})
    one = one_node_model(own_ops["NearestSum"], case, {})
    engine, rng = LiteRtEngine(fixture_path), random.Random(4)
    options = flexbuffers.Dumps({"scale": 2.0})
    begin = one.model.index(options)
    refused = 0
    for _ in range(400 if ALL else 150):
        damaged = bytearray(one.model)
        for _ in range(rng.randint(1, 3)):
            damaged[begin + rng.randrange(len(options))] = rng.randrange(256)
        try:
            engine.interpreter(bytes(damaged)).allocate_tensors()
        except (RuntimeError, ValueError):
            refused += 1
    assert refused > 20


def test_a_delegate_takes_no_options(fixture_path: Path) -> None:
    with pytest.raises(ValueError, match="the delegate takes no options, got 'threads'"):
        load_delegate(str(fixture_path), {"threads": 2})


def test_a_library_needs_nothing_of_litert(path: Path) -> None:
    assert not {name for name in symbols(path, "--undefined-only") if "TfLite" in name}
    assert symbols(path, "--defined-only") == {
        "__tvm_ffi_opgate_function",
        "__tvm_ffi_opgate_set_num_threads",
        "opgate_parse_signature",
        "opgate_run",
        "opgate_run_message",
        "opgate_check",
        "opgate_xla",
        "opgate_running_op",
        "opgate_table",
        "tflite_plugin_create_delegate",
        "tflite_plugin_destroy_delegate",
    }


def test_why_there_are_no_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPGATE_LITERT_INCLUDE", raising=False)
    with pytest.raises(LeftOut, match=f"{toolchain.HEADER} was not found. git clone --depth 1 {toolchain.REPOSITORY}"):
        toolchain.find_litert_headers(tmp_path)
    monkeypatch.setenv("OPGATE_LITERT_INCLUDE", str(tmp_path))
    with pytest.raises(LeftOut, match=f"OPGATE_LITERT_INCLUDE is {tmp_path}: no {toolchain.HEADER} there"):
        toolchain.find_litert_headers(tmp_path)
    header = tmp_path / "LiteRT" / toolchain.HEADER
    header.parent.mkdir(parents=True)
    header.touch()
    monkeypatch.delenv("OPGATE_LITERT_INCLUDE")
    assert toolchain.find_litert_headers(tmp_path) == tmp_path / "LiteRT"


# Models that TensorFlow's converter makes.


@pytest.fixture(scope="module")
def ops(built: Build) -> Any:
    """opgate.tensorflow."""
    need("tensorflow")
    if "tensorflow" not in built.libraries:
        pytest.skip("the build has left out tensorflow")
    import opgate.tensorflow

    return opgate.tensorflow


def converted(function: Any, *specs: Any) -> bytes:
    """Returns a function of TensorFlow as a LiteRT model."""
    import tensorflow as tf

    traced = tf.function(function, input_signature=specs).get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([traced])
    converter.allow_custom_ops = True
    model: bytes = converter.convert()
    return model


def outputs_of(path: Path, model: bytes, inputs: list[np.ndarray], **options: Any) -> list[np.ndarray]:
    interpreter = Interpreter(model_content=model, experimental_delegates=[load_delegate(str(path))], **options)
    for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.resize_tensor_input(detail["index"], value.shape)
    interpreter.allocate_tensors()
    for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_converted_network(path: Path, ops: Any, threads: int) -> None:
    """Two nodes of ours beside one another, between nodes of LiteRT; an absent and a present optional input."""
    import tensorflow as tf

    kernel = tf.random.stateless_normal([3, 8], [1, 2])

    def network(x: Any) -> Any:
        hidden = ops.mish(tf.matmul(x, kernel))
        return tf.nn.relu(ops.rms_norm(hidden, residual=hidden * 2.0, epsilon=0.5)[0]) + 1.0

    model = converted(network, tf.TensorSpec([None, 3]))
    for rows in (2, 50_000):
        x = np.random.default_rng(1).standard_normal((rows, 3)).astype(np.float32)
        (y,) = outputs_of(path, model, [x], num_threads=threads)
        np.testing.assert_allclose(y, network(tf.constant(x)), rtol=1e-5, atol=1e-5)


def test_a_converted_network_with_sizes_that_the_run_finds(path: Path, ops: Any) -> None:
    """What comes behind a dynamic output: an op of LiteRT and one of ours, and again with other sizes."""
    import tensorflow as tf

    def network(points: Any) -> Any:
        features, _, counts = ops.voxelize(points, tf.constant([2.0, 2.0, 2.0]))
        return ops.mish(features * 2.0), counts

    model = converted(network, tf.TensorSpec([None, 3]))
    for rows in (4, 40):
        points = np.random.default_rng(rows).uniform(0, 9, (rows, 3)).astype(np.float32)
        expected = network(tf.constant(points))
        found = outputs_of(path, model, [points])
        for one in expected:
            assert any(one.shape == other.shape and np.allclose(one, other, rtol=1e-6) for other in found)


def test_attributes_of_every_kind_survive_the_conversion(path: Path, ops: Any) -> None:
    import tensorflow as tf

    def network(image: Any) -> Any:
        return ops.resize_normalize(
            image, height=4, width=6, mean=[1.0, 2.0, 3.0], std=[4.0, 5.0, 6.0], interpolation="linear", antialias=True
        )

    image = np.random.default_rng(1).integers(0, 256, (2, 9, 7, 3), np.uint8)
    (tensor,) = outputs_of(path, converted(network, tf.TensorSpec([None, None, None, 3], tf.uint8)), [image])
    np.testing.assert_allclose(tensor, network(image), rtol=1e-6)

    def drawn(image: Any, boxes: Any, labels: Any) -> Any:
        return ops.draw_bounding_boxes(image, boxes, labels=labels, names=["one", "two"], thickness=2)

    specs = tf.TensorSpec([None, None, 3], tf.uint8), tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int32)
    inputs = [np.zeros((40, 60, 3), np.uint8), np.array([[5, 15, 30, 35]], np.float32), np.array([1], np.int32)]
    (picture,) = outputs_of(path, converted(drawn, *specs), inputs)
    np.testing.assert_array_equal(picture, drawn(*inputs))


def test_outputs_that_nobody_reads(path: Path, ops: Any) -> None:
    """LiteRT holds no memory for them: one is optional, the other is not."""
    import tensorflow as tf

    x = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    model = converted(lambda x: tf.nn.relu(ops.rms_norm(x)[0]), tf.TensorSpec([None, 3]))
    np.testing.assert_allclose(outputs_of(path, model, [x])[0], np.maximum(ops.rms_norm(x)[0], 0), rtol=1e-6)
    model = converted(lambda x: ops.knn_query(x, tf.constant([4]), nsample=2)[1] * 2.0, tf.TensorSpec([None, 3]))
    expected = ops.knn_query(x, np.array([4], np.int32), nsample=2)[1] * 2.0
    np.testing.assert_allclose(outputs_of(path, model, [x])[0], expected, rtol=1e-6)


def test_the_error_of_a_converted_model(path: Path, ops: Any) -> None:
    import tensorflow as tf

    model = converted(ops.my_add, tf.TensorSpec([None]), tf.TensorSpec([None]))
    ones = np.ones(3, np.float32)
    with pytest.raises(
        RuntimeError, match=r"opgate::MyAdd: input 'b': expected T\[\.\.\.\] with \.\.\. = \[3\], got f32\[2\]"
    ):
        outputs_of(path, model, [ones, ones[:2]])
    assert outputs_of(path, model, [ones, ones])[0].tolist() == [3, 3, 3]
    with pytest.raises(RuntimeError, match="Opgate>MyAdd"):
        Interpreter(model_content=model).allocate_tensors()


def test_interpreters_in_several_threads(path: Path, ops: Any) -> None:
    import tensorflow as tf

    model = converted(ops.mish, tf.TensorSpec([None]))
    x = np.linspace(-4, 4, 200_000, dtype=np.float32)
    expected = ops.mish(x)
    with ThreadPoolExecutor(6) as pool:
        for (y,) in pool.map(lambda _: outputs_of(path, model, [x]), range(24)):
            np.testing.assert_allclose(y, expected, rtol=1e-6)
