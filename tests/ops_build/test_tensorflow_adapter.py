"""The generic TensorFlow adapter, tested with cases of every op and with ops that each use a part of the grammar.

TensorFlow is imported when a test first needs it, because that takes seconds in each process that collects the tests.
"""

from __future__ import annotations

import inspect
import itertools
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

if find_spec("tensorflow") is None:
    pytest.skip("the Python package tensorflow is not installed", allow_module_level=True)

from opgate.ops_build.adapters.tensorflow import toolchain
from opgate.ops_build.adapters.tensorflow.names import type_of
from opgate.ops_build.building.build import Build
from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.building.toolchain import LeftOut
from opgate.ops_build.case import Case
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.op_table import Op
from opgate.ops_build.verification.verify import References, try_case
from tests import PROJECT
from tests.conftest import ALL
from tests.ops_build.choosing import chosen_cases

OPS = SOURCE / "ops"
POINTS = np.arange(12, dtype=np.float32).reshape(4, 3)
QUERY = np.ones((2, 3), np.float32)


def library_of(built: Build) -> Path:
    if "tensorflow" not in built.libraries:
        pytest.skip(f"the build has left out tensorflow: {built.left_out.get('tensorflow', 'it was not asked for')}")
    return built.libraries["tensorflow"]


@pytest.fixture(scope="module")
def tf() -> Any:
    import tensorflow

    return tensorflow


@pytest.fixture(scope="module")
def path(built: Build) -> Path:
    return library_of(built)


@pytest.fixture(scope="module")
def ops(path: Path) -> Any:
    """opgate.tensorflow, with opgate's ops."""
    import opgate.tensorflow

    return opgate.tensorflow


@pytest.fixture(scope="module")
def fixture_path(fixture_built: Build) -> Path:
    return library_of(fixture_built)


@pytest.fixture(scope="module")
def own(ops: Any, fixture_path: Path) -> SimpleNamespace:
    """The fixture ops, which are built out of tree."""
    return ops.load(fixture_path)


@pytest.fixture(scope="module")
def engine(path: Path) -> Any:
    from opgate.ops_build.adapters.tensorflow.engine import TensorflowEngine

    return TensorflowEngine(path)


def differentiable(table: list[Op]) -> list[Op]:
    names = {op.name for op in table}
    return [op for op in table if f"{op.name}Backward" in names]


# Every op.


def test_cases_of_every_op(engine: Any, ops: Any) -> None:
    """Few cases of each op and dtype, or all with OPGATE_TEST_ALL."""
    failures, tried = [], 0
    for op, types, cases in chosen_cases(ops.ops(), OPS, everything=ALL):
        references = References(op, folder_of(op, [OPS]))
        for case in cases:
            failure = try_case(op, references, case, types, engine)
            failures += [f"{op.name} {types} {case.name}: {failure}"] if failure else []
            tried += 1
    assert not failures, "\n".join(failures)
    assert tried > 100


def test_gradients_against_differences(tf: Any, ops: Any) -> None:
    """The derivative in a random direction, of each op that has a gradient, in f64."""
    tried = 0
    for op in differentiable(ops.ops()):
        types = next((one for one in op.type_choices() if one.get("T") == "f64"), None)
        if op.name == "FakeQuantize" or types is None:  # its gradient is not its derivative; f32 has too few digits
            continue
        cases = folder_of(op, [OPS]).cases(numpy_types(types))
        good = [case for case in cases if not case.error and 0 < total_size(case) < 3000]
        for case in good[:: -(-len(good) // 3)][:3]:
            tried += check_derivative(tf, ops, op, case)
    assert tried > 15


def total_size(case: Case) -> int:
    return sum(np.size(value) for value in case.inputs.values())


def check_derivative(tf: Any, ops: Any, op: Op, case: Case) -> bool:
    """Returns False where the op has no derivative."""
    from opgate.ops_build.op_table import snake_case

    rng = np.random.default_rng(5)
    function = getattr(ops, snake_case(op.name))
    backward = next(other for other in ops.ops() if other.name == f"{op.name}Backward")
    graded = {name for out in backward.outputs for name in out.name.removeprefix("grad_").split("_and_")}
    inputs = {name: tf.constant(value) for name, value in case.inputs.items()}
    moved = [name for name in inputs if name in graded]
    directions = {name: rng.standard_normal(inputs[name].shape) for name in moved}
    weights: list[Any] = []

    def loss(step: float) -> Any:
        given = {
            name: value + step * directions[name] if name in directions else value for name, value in inputs.items()
        }
        found = function(**given, **case.attributes)
        outputs = [out for out in (found if isinstance(found, tuple) else (found,)) if out.dtype.is_floating]
        weights[:] = weights or [rng.standard_normal(out.shape) for out in outputs]
        return sum(tf.reduce_sum(out * weight) for out, weight in zip(outputs, weights, strict=True))

    step = tf.Variable(0.0, dtype=tf.float64)
    with tf.GradientTape() as tape:
        value = loss(step)
    analytic = float(tape.gradient(value, step))
    numeric = float(loss(1e-6) - loss(-1e-6)) / 2e-6
    nearer = float(loss(1e-7) - loss(-1e-7)) / 2e-7
    if numeric != pytest.approx(nearer, rel=1e-3, abs=1e-4):
        return False  # the case lies where the op jumps
    assert analytic == pytest.approx(numeric, rel=1e-4, abs=1e-5), f"{op.name}: {case.name}"
    return True


# Optional, variadic, data-dependent.


def test_every_pattern_of_present_optional_inputs(own: SimpleNamespace) -> None:
    segment = np.array([0, 1, 0, 1], np.int32)
    for has_segment, has_query, has_weight in itertools.product((False, True), repeat=3):
        rows = 2 if has_query else 4
        weight = np.linspace(1, 2, rows, dtype=np.float32)
        optional = {"segment": segment if has_segment else None}
        optional |= {"query": QUERY} if has_query else {}
        optional |= {"weight": weight} if has_weight else {}
        total, count = own.nearest_sum(POINTS, **optional)
        counted = POINTS[segment == 0] if has_segment else POINTS
        expected = (counted.sum() + (QUERY if has_query else POINTS).sum(1)) * (weight if has_weight else 1)
        np.testing.assert_allclose(total, expected, rtol=1e-6)
        np.testing.assert_array_equal(count, [4] * rows)


def test_an_optional_output_left_out(tf: Any, own: SimpleNamespace) -> None:
    np.testing.assert_allclose(own.nearest_sum_required(POINTS), POINTS.sum() + POINTS.sum(1))
    graph = tf.function(own.nearest_sum_required).get_concrete_function(tf.TensorSpec([None, 3])).graph
    (node,) = [node for node in graph.get_operations() if node.type == "FixtureOps>NearestSum"]
    assert len(node.outputs) == 1


def test_a_size_that_only_the_kernel_knows(tf: Any, own: SimpleNamespace) -> None:
    for dtype in (np.float32, np.int32):
        x = np.array([3, -1, 0, 5, -2, 7], dtype)
        values, indices = own.keep_positive(x)
        np.testing.assert_array_equal(values, [3, 5, 7])
        np.testing.assert_array_equal(indices, [0, 3, 5])
        assert own.keep_positive(-x - 10)[0].shape == (0,)
    traced = tf.function(own.keep_positive).get_concrete_function(tf.TensorSpec([6]))
    assert [shape.as_list() for shape in (out.shape for out in traced.outputs)] == [[None], [None]]
    empty = tf.function(own.keep_positive).get_concrete_function(tf.TensorSpec([0]))
    assert empty.outputs[0].shape == (0,)


def test_a_variadic_input(tf: Any, own: SimpleNamespace) -> None:
    for count, dtype in itertools.product((1, 2, 5), (np.float32, np.float64, np.int64)):
        xs = [np.full((2, 3), i + 1, dtype) for i in range(count)]
        np.testing.assert_array_equal(own.sum_all(xs), sum(xs))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"SumAll: input 'xs': expected T\[\.\.\.\] with \.\.\. = \[2\]"
    ):
        own.sum_all([np.ones(2, np.float32), np.ones(3, np.float32)])


def test_strings_and_attributes_of_every_kind(own: SimpleNamespace) -> None:
    texts = np.array([["ab", "grüß"], ["", "z\0y"]], object)
    shouted = own.shout(texts).numpy()
    assert [text.decode() for text in shouted.ravel()] == ["AB!", "GRüß!", "!", "Z\0Y!"]
    shouted = own.shout(texts, mark="?", words=["one", "two"], twice=True, letters="lower").numpy()
    assert shouted[0, 1].decode() == "grüß one two??"


def test_expressions_and_scalars_as_sizes(tf: Any, own: SimpleNamespace) -> None:
    image = np.arange(54, dtype=np.uint8).reshape(6, 9)
    row, times = np.zeros(18, np.uint8), np.array(3, np.int64)
    grid, tiled = own.patches(image, row, times)
    assert grid.shape == (2, 3) and grid[1, 2] == image[4:, 8:].sum() and tiled.shape == (3, 9 - 6 + 6 % 4)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"'row': expected u8\[2\*w\] with 2\*w = 18, got u8\[17\]"
    ):
        own.patches(image, row[1:], times)
    with pytest.raises(tf.errors.InvalidArgumentError, match="'times' is a size: expected a number from 0, got -1"):
        own.patches(image, row, np.array(-1, np.int64))
    with pytest.raises(tf.errors.InvalidArgumentError, match="divided by zero"):
        own.patches(image, row, times, size=0)


# Graphs.


@pytest.mark.parametrize("known", [True, False])
def test_shapes_in_a_graph(tf: Any, own: SimpleNamespace, known: bool) -> None:
    """A scalar that is a constant of the graph tells a size, one that is an input doesn't."""

    @tf.function
    def traced(image: Any, times: Any) -> Any:
        return own.patches(image, tf.zeros(18, tf.uint8), tf.constant(3, tf.int64) if known else times, size=4)

    grid, tiled = traced.get_concrete_function(tf.TensorSpec([None, 9], tf.uint8), tf.TensorSpec([], tf.int64)).outputs
    assert grid.shape.as_list() == [None, 3] and tiled.shape.as_list() == [3 if known else None, None]
    assert traced(np.ones((6, 9), np.uint8), np.array(3, np.int64))[0].shape == (2, 3)


def test_an_unknown_rank_stays_unknown_and_runs(tf: Any, ops: Any) -> None:
    traced = tf.function(ops.mish, input_signature=[tf.TensorSpec(None)])
    assert traced.get_concrete_function().outputs[0].shape.rank is None
    for shape in ((), (3,), (2, 0, 4)):
        assert traced(tf.ones(shape)).shape == shape


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        (([5, 4], [1]), {"nsample": -1}, "nsample"),
        (([5, None], [2, 1]), {}, r"input 'offset': expected I\[b\], got i32\[2, 1\]"),
        (([None, 3, 1], [1]), {}, r"input 'xyz': expected T\[n, d\], got f32\[\?, 3, 1\]"),
        (([5, 3], [1]), {"nsample": 2**62}, "nsample|fewer than"),
    ],
)
def test_what_no_run_can_use_is_refused_while_tracing(
    tf: Any, ops: Any, shapes: Any, attributes: dict[str, int], message: str
) -> None:
    specs = [tf.TensorSpec(shapes[0]), tf.TensorSpec(shapes[1], tf.int32)]
    with pytest.raises(ValueError, match=f"opgate::KNNQuery: .*({message})"):
        tf.function(lambda xyz, offset: ops.knn_query(xyz, offset, **attributes)).get_concrete_function(*specs)


def test_a_saved_model_needs_the_library_alone(tf: Any, ops: Any, path: Path, tmp_path: Path) -> None:
    class Model(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[tf.TensorSpec([None, 3])])
        def __call__(self, points: Any) -> Any:
            return ops.rms_norm_required(points)

    tf.saved_model.save(Model(), str(tmp_path / "model"))
    program = (
        "import sys, tensorflow as tf; tf.load_op_library(sys.argv[2]); model = tf.saved_model.load(sys.argv[1]);"
        "print(model(tf.constant([[3.0, 3.0, 3.0]])).numpy().round(3).tolist())"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "model"), str(path)]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.stdout.strip() == "[[1.0, 1.0, 1.0]]", finished.stderr


# What goes wrong.


def test_the_error_of_a_call(tf: Any, own: SimpleNamespace) -> None:
    data = np.frombuffer(b"12x7-4", np.uint8)
    value, status = own.parse_number(data, np.array([2, 3, 4, 4, 6], np.int32))
    assert value.numpy().tolist() == [12, 0, 7, 0, -4] and status.numpy().tolist() == [0, 1, 0, 1, 0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="'ends': expected ascending ends up to 6, got 9 at 1"):
        own.parse_number(data, np.array([2, 9], np.int32))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("throws", "thrown by the kernel"),
        ("throws_in_pool", "thrown in the pool"),
        ("leaves_open", "left the size of output 'y' open"),
        ("binds_too_much", r"set 'v' to 4, which is not in 0\.\.3"),
        ("asks_unknown", "asks for input 'nothing'"),
        ("runs_out", "out of memory"),
        ("reads_as_double", r"the kernel accesses tensor 'x', which is f32\[3\], as f64"),
        ("dances", "attribute 'how': expected .* got 'dances'"),
    ],
)
def test_a_misbehaving_kernel_is_an_error(tf: Any, own: SimpleNamespace, how: str, message: str) -> None:
    with pytest.raises(tf.errors.OpError, match=f"(?s)fixture_ops::Misbehave: .*{message}"):
        own.misbehave(np.ones(3, np.float32), how=how)


def test_wrong_arguments(tf: Any, ops: Any, own: SimpleNamespace) -> None:
    for call, message in (
        (lambda: own.misbehave([1.0]), "misbehave\\(\\) misses its attribute 'how'"),
        (ops.mish, "mish\\(\\) misses its input 'x'"),
        (lambda: ops.mish([1.0], [2.0]), "takes at most 1 tensors by position, got 2"),
        (lambda: ops.mish([1.0], x=[2.0]), "got two values for argument 'x'"),
        (lambda: ops.leaky_relu([1.0], beta=2.0), "got an unknown argument 'beta'"),
        (lambda: ops.leaky_relu([1.0], alpha="much"), "alpha"),
    ):
        with pytest.raises(TypeError, match=message):
            call()
    with pytest.raises(
        (tf.errors.InvalidArgumentError, TypeError, ValueError, tf.errors.NotFoundError), match=r"string|int32"
    ):
        ops.mish(tf.constant(["a"]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="double"):
        ops.voxelize(tf.constant(POINTS, tf.float64), np.ones(3, np.float32))


def test_sizes_that_are_not_numbers(tf: Any, ops: Any) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="opgate::Voxelize: input 'size'"):
        ops.voxelize(POINTS, np.array([1, np.nan, 1], np.float32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="opgate::KNNQuery: input 'offset'"):
        ops.knn_query(POINTS, np.array([2**31 - 1], np.int32))


def test_a_tensor_that_no_memory_holds(tf: Any, ops: Any) -> None:
    with pytest.raises(tf.errors.OpError, match=r"opgate::ResizeNormalize: output 'tensor', f32\[1, 3, 16777216, "):
        ops.resize_normalize(np.zeros((1, 2, 2, 3), np.uint8), height=1 << 24, width=1 << 24)


def test_denormal_numbers_stay_what_they_are(ops: Any) -> None:
    tiny = np.full(100_000, 1e-40, np.float32)
    np.testing.assert_array_equal(ops.my_add(tiny, tiny), tiny + tiny + tiny)


def test_a_kernel_prepares_once_for_each_size(own: SimpleNamespace) -> None:
    weight = np.array([1, 2, 3], np.float32)
    numbers = []
    for columns in (3, 3, 2, 3):
        y, prepared, constant = own.scaled_columns(np.ones((2, columns), np.float32), weight[:columns], scale=2.0)
        np.testing.assert_array_equal(y, [2 * weight[:columns]] * 2)
        numbers.append(int(prepared))
        assert constant == 0
    assert numbers[0] == numbers[1] == numbers[3] != numbers[2]


def test_another_tensorflow_is_refused_before_anything_of_it_is_used(path: Path, tmp_path: Path) -> None:
    """A library that goes before TensorFlow's says that this is another one."""
    (tmp_path / "other.c").write_text('const char *TF_Version(void) { return "2.1.0"; }')
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "other.so", tmp_path / "other.c"], check=True)
    code = f"import opgate.ops_build.adapters.tensorflow.registration as r; r.load({str(path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_PRELOAD": str(tmp_path / "other.so")},
        capture_output=True,
        text=True,
        cwd=PROJECT,
    )
    assert done.returncode == 1 and "LoadError" in done.stderr, done.stderr
    fits = rf"fits TensorFlow {'.'.join(version('tensorflow').split('.')[:2])}, and this is "
    assert re.search(fits + r"2\.1\.0: it registers nothing", done.stderr), done.stderr
    assert re.search(fits + r"[\d.]+: opgate build builds it again", done.stderr), done.stderr


def test_a_library_for_another_tensorflow_is_not_even_opened(ops: Any, path: Path, tmp_path: Path) -> None:
    """TensorFlow 2.20 lacks functions that a library for 2.21 needs, so only the bytes of the file can tell."""
    other, content = tmp_path / "other.so", path.read_bytes()
    start = content.index(b"fits TensorFlow ") + len(b"fits TensorFlow ")
    other.write_bytes(content[:start] + b"1.99" + content[start + 4 :])
    with pytest.raises(ImportError, match=r"other\.so fits TensorFlow 1\.99, and this is 2\."):
        ops.load(other)
    assert str(other) not in Path("/proc/self/maps").read_text()


def test_libraries_that_can_not_be_loaded(ops: Any, path: Path, tmp_path: Path) -> None:
    with pytest.raises(ImportError, match="is not there: run opgate build"):
        ops.load(tmp_path / "nothing.so")
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(ImportError, match="can't load"):
        ops.load(tmp_path / "text.so")
    assert ops.load(path).mish is not None  # again
    program = "import sys, opgate.tensorflow as ops\ntry: ops.load(sys.argv[1])\nexcept ImportError as error: print('another library has registered the ops of domain opgate' in str(error), ops.mish([0.0]).numpy())"
    copy = shutil.copy(path, tmp_path / "copy.so")
    finished = subprocess.run([sys.executable, "-c", program, str(copy)], capture_output=True, text=True)
    assert finished.stdout.strip() == "True [0.]", finished.stderr


# Gradients.


def test_gradients_of_optional_tensors(tf: Any, ops: Any) -> None:
    rng = np.random.default_rng(3)
    x, residual = (tf.constant(rng.standard_normal((3, 4))) for _ in "xr")
    weight = tf.constant(rng.standard_normal(4))
    traced = tf.function(ops.rms_norm)
    for function in (ops.rms_norm, traced):
        with tf.GradientTape() as tape:
            tape.watch([x, weight, residual])
            y, total = function(x, weight, residual)
            loss = tf.reduce_sum(y * y + total)
        by_x, by_weight, by_residual = tape.gradient(loss, [x, weight, residual])
        np.testing.assert_allclose(by_x, by_residual)
        assert by_weight.shape == (4,)
    # The function without `sum`, which the gradient needs: it is computed again.
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, weight])
        required, every = ops.rms_norm_required(x, weight), ops.rms_norm(x, weight)[0]
    for source in (x, weight):
        np.testing.assert_allclose(tape.gradient(required, source), tape.gradient(every, source))


def test_what_has_no_gradient_says_so(tf: Any, ops: Any) -> None:
    x = tf.Variable(np.ones((2, 3)))
    with tf.GradientTape() as tape:
        y = ops.clamped_relu(x)
    with pytest.raises(
        LookupError, match="ClampedRelu can't be differentiated: the op table has no ClampedReluBackward"
    ):
        tape.gradient(y, x)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as tape:
            y = ops.mish(x)
        gradient = tape.gradient(y, x)
    with pytest.raises(LookupError, match="no MishBackwardBackward"):
        outer.gradient(gradient, x)
    scale, zero = tf.constant(np.ones(1, np.float32)), np.zeros(1, np.int32)
    with tf.GradientTape() as tape:
        y = ops.fake_quantize(x, scale, zero)
    np.testing.assert_array_equal(tape.gradient(y, x), np.ones((2, 3)))
    with tf.GradientTape() as tape:
        tape.watch(scale)
        y = ops.fake_quantize(x, scale, zero)
    with pytest.raises(LookupError, match="by its input 'scale': FakeQuantizeBackward has no output grad_scale"):
        tape.gradient(y, [x, scale])


# Python.


def test_functions_are_documented(tf: Any, ops: Any) -> None:
    assert {"mish", "Mish", "knn_query", "rms_norm", "rms_norm_required", "RMSNorm", "load"} <= set(dir(ops))
    signature = inspect.signature(ops.rms_norm)
    assert list(signature.parameters) == ["x", "weight", "residual", "epsilon"]
    assert (
        signature.parameters["residual"].default is None and signature.return_annotation == tuple[tf.Tensor, tf.Tensor]
    )
    assert "epsilon: float, default 1e-05" in ops.rms_norm.__doc__ and "Has a gradient." in ops.rms_norm.__doc__
    assert "asking for one raises LookupError" in ops.knn_query_backward.__doc__
    with pytest.raises(AttributeError, match="has no 'nothing'"):
        ops.nothing  # noqa: B018


def test_keras_layers(tf: Any, ops: Any, tmp_path: Path) -> None:
    layers = [tf.keras.layers.Dense(8), ops.Mish(), ops.RMSNorm(epsilon=1e-3, name="norm"), tf.keras.layers.Dense(1)]
    network = tf.keras.Sequential(layers)
    network.compile("sgd", "mse")
    rng = np.random.default_rng(2)
    x = rng.standard_normal((32, 4)).astype(np.float32)
    before = network.evaluate(x, x[:, :1], verbose=0)
    network.fit(x, x[:, :1], epochs=3, verbose=0)
    assert network.evaluate(x, x[:, :1], verbose=0) < before
    norm = network.get_layer("norm")
    assert norm.attributes == {"epsilon": 1e-3} and [weight.shape for weight in norm.weights] == [(8,)]
    network.save(tmp_path / "network.keras")
    again = tf.keras.models.load_model(tmp_path / "network.keras")
    np.testing.assert_array_equal(network.predict(x, verbose=0), again.predict(x, verbose=0))
    grouped = ops.GroupNorm(groups=2)
    assert grouped(np.ones((1, 4, 5, 5), np.float32)).shape == (1, 4, 5, 5) and len(grouped.weights) == 2
    with pytest.raises(TypeError, match="groups"):
        ops.GroupNorm()
    with pytest.raises(ValueError, match="RMSNorm: its weights need the sizes"):
        ops.RMSNorm().build((2, None))
    mixed = ops.LayerNorm(dtype="mixed_float16")
    assert mixed(np.ones((2, 4), np.float32)).dtype == tf.float16


@pytest.mark.parametrize(
    ("domain", "name"),
    [("opgate", "Opgate>Op"), ("my_ops", "MyOps>Op"), ("ai.graph-core", "AiGraphCore>Op"), ("3d", "Ops3d>Op")],
)
def test_the_name_of_an_op(ops: Any, domain: str, name: str) -> None:
    from dataclasses import replace

    assert type_of(replace(ops.ops()[0], domain=domain, name="Op")) == name


def test_why_there_is_no_toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPGATE_TENSORFLOW", str(tmp_path))
    with pytest.raises(LeftOut, match=f"OPGATE_TENSORFLOW is {tmp_path}: no include/{toolchain.HEADER} there"):
        toolchain.find_tensorflow()
    monkeypatch.delenv("OPGATE_TENSORFLOW")
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LeftOut, match=r"pip install 'opgate\[tensorflow\]'"):
        toolchain.find_tensorflow()
