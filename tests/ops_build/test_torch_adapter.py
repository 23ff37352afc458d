"""The generic PyTorch adapter, tested with every case of every op and with ops that each use a part of the grammar."""

from __future__ import annotations

import ctypes
import inspect
import itertools
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from opgate.ops_build import op_functions  # noqa: E402
from opgate.ops_build.adapters.torch import gradients, registration, toolchain  # noqa: E402
from opgate.ops_build.adapters.torch.engine import (  # noqa: E402
    CompiledTorchEngine,
    TorchEngine,
    case_arguments,
    from_numpy,
    to_numpy,
)
from opgate.ops_build.adapters.torch.fake import is_dense  # noqa: E402
from opgate.ops_build.building.build import Build, build  # noqa: E402
from opgate.ops_build.building.options import DEFAULT_OUTPUT, SOURCE, out_of_tree  # noqa: E402
from opgate.ops_build.building.toolchain import LeftOut  # noqa: E402
from opgate.ops_build.case import Case  # noqa: E402
from opgate.ops_build.dtypes import numpy_types  # noqa: E402
from opgate.ops_build.op_folder import folder_of  # noqa: E402
from opgate.ops_build.op_table import Op, parse_signature, snake_case  # noqa: E402
from tests import PROJECT  # noqa: E402
from tests.conftest import ALL, silent  # noqa: E402
from tests.ops_build.conftest import symbols  # noqa: E402

TORCH_OPS = Path(__file__).parent / "fixture_ops_torch"


def library_of(built: Build) -> Path:
    if "torch" not in built.libraries:
        pytest.skip(f"the build has left out torch: {built.left_out.get('torch', 'it was not asked for')}")
    return built.libraries["torch"]


@pytest.fixture(scope="module")
def library(built: Build) -> registration.OpLibrary:
    """The library of opgate's ops."""
    return registration.load(library_of(built))


@pytest.fixture(scope="module")
def fixture_path(fixture_built: Build) -> Path:
    return library_of(fixture_built)


@pytest.fixture(scope="module")
def ops(fixture_path: Path) -> Any:
    """The fixture ops that are built for every engine."""
    registration.load(fixture_path)
    return torch.ops.fixture_ops


@pytest.fixture(scope="module")
def torch_path() -> Path:
    options = out_of_tree(TORCH_OPS, DEFAULT_OUTPUT.parent / "fixture_ops_torch")
    return library_of(build(replace(options, engines=("torch",), cuda=""), silent))


@pytest.fixture(scope="module")
def torch_ops(torch_path: Path) -> Any:
    """The fixture ops that are built only for torch."""
    registration.load(torch_path)
    return torch.ops.fixture_ops_torch


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch.compiler.reset()


POINTS = torch.arange(12, dtype=torch.float32).reshape(4, 3)
QUERY = torch.ones(2, 3)


# Every op, every case.


@pytest.fixture(scope="module")
def cases(library: registration.OpLibrary) -> list[tuple[Op, dict[str, str], Case]]:
    triples = []
    for op in library.ops:
        folder = folder_of(op, [SOURCE / "ops"])
        for types in op.type_choices():
            triples += [(op, types, case) for case in folder.cases(numpy_types(types))]
    return triples


def test_opcheck_of_every_case(library: registration.OpLibrary, cases: list[tuple[Op, dict[str, str], Case]]) -> None:
    graded = {  # the inputs that have a gradient
        op.name.removesuffix("Backward"): [
            name for output in op.outputs for name in output.name.removeprefix("grad_").split("_and_")
        ]
        for op in library.ops
        if op.name.endswith("Backward")
    } | {"RotaryEmbedding": ["x"]}
    tried: list[tuple[Op, dict[str, str], Case]] = []
    for _, group in itertools.groupby(cases, lambda one: (one[0].name, str(one[1]))):
        good = [one for one in group if not one[2].error]
        others = bool(tried and good) and tried[-1][0] is good[0][0]  # the first dtypes of the op were tried
        # `make test` takes the case with the most inputs.
        most = sorted(good, key=lambda one: len(one[2].inputs))[-1:]
        tried += good if ALL else [] if others else most
    for op, types, case in tried:
        arguments = case_arguments(op, case, types)
        call = library.overload(op)
        outputs = as_tuple(call(**arguments))
        tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
        # It adds the outputs up, in the dtype of the first one.
        summed = op.name not in graded or outputs[0].is_floating_point()
        if summed and not any(output.isnan().any() for output in outputs if output.is_floating_point()):
            tests.append("test_aot_dispatch_dynamic")  # it compares two calls, and a NaN differs from itself
        for name in graded.get(op.name, []):
            if arguments.get(name) is not None:
                arguments[name].requires_grad_()
        tensors = [arguments.pop(tensor.name, None) for tensor in op.inputs]
        while tensors[-1] is None:
            tensors.pop()
        try:
            torch.library.opcheck(call, tuple(tensors), arguments, test_utils=tests)
        except Exception as error:
            raise AssertionError(f"{op.name} {types} {case.name}: {error}") from error
    assert {op.name for op, _, _ in tried} == {op.name for op, _, _ in cases}


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def test_opcheck_of_the_fixture_ops(ops: Any, torch_ops: Any) -> None:
    segment, weight = torch.tensor([0, 1, 0, 1], dtype=torch.int32), torch.ones(2)
    for call, inputs, attributes in (
        (ops.nearest_sum, (POINTS,), {}),
        (ops.nearest_sum, (POINTS, None, QUERY), {"scale": 2.0}),
        (ops.nearest_sum, (POINTS, segment, QUERY, weight), {}),
        (ops.keep_positive, (torch.tensor([3, -1, 0, 5], dtype=torch.int32),), {}),
        (ops.sum_all, ([QUERY, QUERY, QUERY],), {}),
        (torch_ops.chunks, (torch.zeros(7, 5),), {"k": 2}),
        (torch_ops.describe, (torch.zeros(2),), {"required": 1, "flags": [False]}),
        (torch_ops.squash, (torch.randn(3, 4, requires_grad=True),), {}),
        (torch_ops.weighted, (torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)), {}),
    ):
        torch.library.opcheck(call.default, inputs, attributes)


# The grammar.


def test_schemas(library: registration.OpLibrary, ops: Any, torch_ops: Any) -> None:
    assert str(torch.ops.opgate.knn_query.default._schema) == (
        "opgate::knn_query(Tensor xyz, Tensor offset, Tensor? new_xyz=None, Tensor? new_offset=None, *, "
        "SymInt nsample=16, SymInt fill=-1) -> (Tensor, Tensor)"
    )
    assert str(ops.sum_all.default._schema) == "fixture_ops::sum_all(Tensor[] xs) -> Tensor"
    assert "SymInt required, SymInt count=-3, int[] numbers=[1, -2]" in str(torch_ops.describe.default._schema)
    for op in library.ops:
        suffix = "_all" if op.outputs[-1].on_request else ""
        assert library.overload(op).__name__ == f"{snake_case(op.name)}{suffix}.default"


def test_functions_that_return_the_required_outputs(library: registration.OpLibrary) -> None:
    few = {op.name for op in library.ops if any(out.optional and not out.on_request for out in op.outputs)}
    assert {"RMSNorm", "LayerNorm", "BallQuery", "NMSRotated"} <= few
    for op in library.ops:
        assert hasattr(torch.ops.opgate, f"{snake_case(op.name)}_required") == (op.name in few)
        assert hasattr(torch.ops.opgate, f"{snake_case(op.name)}_all") == any(out.on_request for out in op.outputs)
    assert str(torch.ops.opgate.rms_norm_required.default._schema) == (
        "opgate::rms_norm_required(Tensor x, Tensor? weight=None, Tensor? residual=None, *, "
        "float epsilon=1.0000000000000001e-05) -> Tensor"
    )
    assert str(torch.ops.opgate.nms_rotated_required.default._schema).endswith("-> (Tensor, Tensor, Tensor, Tensor)")


def test_an_output_on_request(library: registration.OpLibrary) -> None:
    head = torch.tensor([[[50.0, 9], [40, 9], [20, 1], [10, 1], [0.5, 0.9]]])
    boxes, scores, labels, count = torch.ops.opgate.detection_postprocess(head, max_detections=3)
    *same, indices = torch.ops.opgate.detection_postprocess_all(head, max_detections=3)
    for one, other in zip((boxes, scores, labels, count), same, strict=True):
        assert torch.equal(one, other)
    assert indices.tolist() == [[1, 0, -1]]
    assert library.overload(next(op for op in library.ops if op.name == "DetectionPostprocess")) is (
        torch.ops.opgate.detection_postprocess_all.default
    )


def test_a_function_that_returns_the_required_outputs_has_the_gradient(library: registration.OpLibrary) -> None:
    x, weight = torch.randn(5, 8, dtype=torch.float64), torch.rand(8, dtype=torch.float64)
    x.requires_grad_()
    weight.requires_grad_()
    residual = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    norm = torch.ops.opgate.rms_norm_required
    torch.testing.assert_close(norm(x, weight), torch.ops.opgate.rms_norm(x, weight)[0], rtol=0, atol=0)
    assert torch.autograd.gradcheck(norm, (x, weight, residual))
    torch.library.opcheck(norm.default, (x, weight, residual))
    torch.testing.assert_close(compiled(lambda *inputs: norm(*inputs) * 2)(x, weight), 2 * norm(x, weight))
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(x.float(), weight.bfloat16()).dtype == torch.float32
    vmapped = torch.vmap(norm, in_dims=(0, None))(x[:, None], weight)
    torch.testing.assert_close(vmapped[:, 0], norm(x, weight))
    scores, boxes = torch.rand(1, 3, 6), torch.rand(1, 6, 5)
    assert len(torch.ops.opgate.nms_rotated_required(boxes, scores)) == 4


@pytest.mark.parametrize("traced", [True, False], ids=["trace", "script"])
def test_a_script_of_a_function_that_returns_the_required_outputs(
    library: registration.OpLibrary, traced: bool
) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.opgate.layer_norm_required(x, epsilon=0.5)

    x = torch.randn(3, 4)
    module = torch.jit.trace(Module(), x) if traced else torch.jit.script(Module())
    assert torch.equal(module(x), torch.ops.opgate.layer_norm(x, epsilon=0.5)[0])


def test_optional_inputs(ops: Any) -> None:
    total, count = ops.nearest_sum(POINTS)
    torch.testing.assert_close(total, POINTS.sum() + POINTS.sum(1))
    assert count.tolist() == [4, 4, 4, 4] and count.dtype == torch.int64
    total, _ = ops.nearest_sum(POINTS, query=QUERY, weight=torch.tensor([1.0, 2.0]), scale=0.5)
    torch.testing.assert_close(total, (POINTS.sum() + QUERY.sum(1)) * torch.tensor([0.5, 1.0]))


def test_variadic_input(ops: Any) -> None:
    for count in (1, 2, 5):
        xs = [torch.full((2, 3), i + 1, dtype=torch.int64) for i in range(count)]
        assert torch.equal(ops.sum_all(xs), sum(xs))
    with pytest.raises(ValueError, match=r"input 'xs': expected T\[\.\.\.\] with \.\.\. = \[2\], got f32\[3\]"):
        ops.sum_all([torch.ones(2), torch.ones(3)])
    with pytest.raises(
        RuntimeError, match="no tensor arguments"
    ):  # torch raises this error, because it finds no device
        ops.sum_all([])


def test_data_dependent_size(ops: Any) -> None:
    values, indices = ops.keep_positive(torch.tensor([3.0, -1.0, 0.0, 5.0]))
    assert values.tolist() == [3, 5] and indices.tolist() == [0, 3]
    assert ops.keep_positive(torch.tensor([-1.0]))[0].shape == (0,)


def test_expressions_and_scalars_as_sizes(ops: Any) -> None:
    image, row, times = torch.arange(54, dtype=torch.uint8).reshape(6, 9), torch.zeros(18, dtype=torch.uint8), 3
    grid, tiled = ops.patches(image, row, torch.tensor(times), size=4)
    assert grid.shape == (2, 3) and grid[1, 2] == image[4:, 8:].sum() and tiled.shape == (3, 9 - 6 + 6 % 4)
    with pytest.raises(ValueError, match=r"input 'row': expected u8\[2\*w\] with 2\*w = 18, got u8\[17\]"):
        ops.patches(image, row[:17], torch.tensor(times))
    with pytest.raises(Exception, match="divided by zero"):
        ops.patches(image, row, torch.tensor(times), size=0)


def test_attributes_of_every_kind(torch_ops: Any) -> None:
    def described(**attributes: Any) -> str:
        return bytes(torch_ops.describe(torch.zeros(2), **attributes)).decode()

    assert described(required=7) == "7|-3|1 -2 |0.1|0.5 -1e-07 |1|1 0 |a 'b' \\ c|x,y z,|two"
    others = {"count": 4, "numbers": [], "ratio": 2, "ratios": [1, 2.5], "flag": False, "flags": [], "mark": "ü\n"}
    assert described(required=0, **others, words=["q"], pick="one") == "0|4||2|1 2.5 |0||ü\n|q,|one"
    with pytest.raises(ValueError, match=r"attribute 'ratios': expected float\[2\], got 1 values"):
        described(required=1, ratios=[1.0])
    with pytest.raises(ValueError, match=r"attribute 'pick': expected \{one\|two\}, got 'three'"):
        described(required=1, pick="three")
    with pytest.raises(ValueError, match=r"attribute 'words': expected elements without line feeds, got 'x\\ny'"):
        described(required=1, words=["w", "x\ny"])
    with pytest.raises(RuntimeError, match="missing value for argument 'required'"):
        described()


def test_a_float_attribute_has_single_precision(library: registration.OpLibrary) -> None:
    x = torch.tensor([-1.0], dtype=torch.float64)
    assert torch.ops.opgate.leaky_relu(x, alpha=0.1).item() == -float(np.float32(0.1))


def test_an_op_of_strings_is_left_out(fixture_path: Path) -> None:
    library = registration.load(fixture_path)
    assert set(library.left_out) == {"Shout"} and "strings" in library.left_out["Shout"]
    assert "Shout" not in {op.name for op in library.ops}
    with pytest.raises(AttributeError):
        torch.ops.fixture_ops.shout  # noqa: B018
    engine = TorchEngine(fixture_path)
    shout = SimpleNamespace(name="Shout")
    assert "strings" in (engine.refusal(shout, {}) or "")  # type: ignore[arg-type]


# How a call behaves.


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
    ],
)
def test_a_misbehaving_kernel_is_an_error(ops: Any, how: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=f"fixture_ops::Misbehave: .*{message}"):
        ops.misbehave(torch.ones(3), how=how)


def test_a_kernel_that_prepares_serves_equal_calls(ops: Any) -> None:
    def serial(columns: int, scale: float = 1.0, rows: int = 2) -> int:
        x, weight = torch.ones(rows, columns), torch.arange(columns, dtype=torch.float32)
        y, prepared, constant = ops.scaled_columns(x, weight, scale=scale)
        assert torch.equal(y, x * weight * scale) and constant.item() == 0
        return int(prepared)

    first = serial(3)
    assert serial(3) == serial(3, rows=7) == first  # prepare() asked for the columns and not for the rows
    assert serial(4) != first and serial(3, scale=2.0) != first
    assert serial(3) == first
    kept = 16
    for columns in range(100, 100 + kept):
        serial(columns)
    assert serial(100) < serial(3)  # the least recently used kernel was dropped
    with pytest.raises(ValueError, match="fixture_ops::ScaledColumns: attribute 'scale': expected a number, got nan"):
        serial(3, scale=float("nan"))
    with pytest.raises(RuntimeError, match=r"fixture_ops::ScaledColumns: thrown by prepare\(\)"):
        serial(3, scale=-1.0)


def test_threads_share_prepared_kernels(ops: Any) -> None:
    def work(seed: int) -> None:
        for i in range(200):
            columns = (seed + i) % 20 + 1  # more sizes than kernels are kept
            weight = torch.arange(columns, dtype=torch.float32)
            assert torch.equal(ops.scaled_columns(torch.ones(1, columns), weight)[0][0], weight)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_a_wrong_input_is_a_value_error_that_names_it(library: registration.OpLibrary) -> None:
    with pytest.raises(
        ValueError, match=r"opgate::KNNQuery: input 'offset': expected I\[b\] with I one of i32, i64, got u8\[1\]"
    ):
        torch.ops.opgate.knn_query(POINTS, torch.tensor([4], dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"input 'x': .* no signature can state"):
        torch.ops.opgate.mish(torch.ones(2, dtype=torch.complex64))


def test_an_output_that_memory_has_no_room_for_is_an_error_that_names_it(library: registration.OpLibrary) -> None:
    offset, heads = torch.tensor([4], dtype=torch.int32), torch.ones(1, 6, 4)
    image = torch.zeros(1, 4, 4, 3, dtype=torch.uint8)
    for size in (2**40, 2**62):
        with pytest.raises(
            ValueError, match=rf"KNNQuery: attribute 'nsample': expected at most 2147483647, got {size}"
        ):
            torch.ops.opgate.knn_query(POINTS, offset, nsample=size)
        with pytest.raises(ValueError, match=rf"attribute 'max_detections': expected at most 2147483647, got {size}"):
            torch.ops.opgate.detection_postprocess(heads, max_detections=size)
    with pytest.raises(RuntimeError, match=r"output 'tensor', f32\[1, 3, 16777216, 16777216\]: "):
        torch.ops.opgate.resize_normalize(image, height=2**24, width=2**24)
    with (
        torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True),
        pytest.raises(ValueError, match=r"ResizeNormalize: output 'tensor': expected fewer than 2\^63 bytes"),
    ):
        torch.ops.opgate.resize_normalize(image, height=2**62, width=2)


def test_tensors_on_several_devices_are_refused(library: registration.OpLibrary) -> None:
    for a, b in (("cpu", "meta"), ("meta", "cpu")):
        with pytest.raises(ValueError, match=f"input 'b': expected a tensor on {a}, as the others, got one on {b}"):
            torch.ops.opgate.my_add(torch.ones(2, device=a), torch.ones(2, device=b))


def test_inputs_that_are_not_contiguous(library: registration.OpLibrary, ops: Any) -> None:
    wide = torch.randn(6, 8)
    for x in (wide.t(), wide[::2, 1:], wide[0].expand(4, 8), wide.flip(0)[1:], wide[3:, 0]):
        torch.testing.assert_close(torch.ops.opgate.mish(x), torch.nn.functional.mish(x))
    assert torch.equal(torch.ops.opgate.my_add(wide.t(), wide.t()), 3 * wide.t())
    assert torch.equal(ops.sum_all([wide.t(), wide.t().contiguous()]), 2 * wide.t())
    # Only elementwise ops accept another layout.
    weight = torch.randn(6)
    torch.testing.assert_close(
        torch.ops.opgate.rms_norm(wide.t(), weight)[0], torch.nn.functional.rms_norm(wide.t(), (6,), weight, 1e-5)
    )
    assert torch.ops.opgate.rms_norm(wide.t(), weight)[0].is_contiguous()
    # A view with torch's negative bit: its values are negated when they are read.
    negated = torch.view_as_complex(torch.randn(4, 2)).conj().imag
    assert negated.is_neg()
    torch.testing.assert_close(torch.ops.opgate.mish(negated), torch.nn.functional.mish(negated))


def test_empty_and_scalar_tensors(library: registration.OpLibrary) -> None:
    for shape in ((), (0,), (3, 0, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(torch.ops.opgate.mish(x), torch.nn.functional.mish(x))


def test_inputs_are_released(library: registration.OpLibrary, ops: Any) -> None:
    def references() -> list[int]:
        return [x._use_count(), torch._C._storage_Use_Count(x.untyped_storage()._cdata)]

    x = torch.randn(64, 3)
    before = references()
    for _ in range(3):
        torch.ops.opgate.mish(x)
        torch.ops.opgate.mish(x.t())
        ops.nearest_sum(x, None, x, None)
        ops.sum_all([x, x])
        for wrong in (lambda: torch.ops.opgate.my_add(x, x[:2]), lambda: ops.nearest_sum(x, x)):
            with pytest.raises(ValueError):
                wrong()
    assert references() == before


def test_torchs_own_threads_run_a_kernel(library: registration.OpLibrary) -> None:
    """Runs in a separate process, because torch fixes the size of its thread pool once."""
    program = f"""
import os, torch
from opgate.ops_build.adapters.torch.registration import load
load({str(library.path)!r})
threads = lambda: len(os.listdir("/proc/self/task"))
x = torch.randn(5_000_011)
torch.set_num_threads(1)
before = threads()
alone = torch.ops.opgate.leaky_relu(x, alpha=0.5)
assert threads() == before, "a thread was started"
torch.set_num_threads(3)
torch.relu(x)
own = threads()
assert own >= before + 2, "torch has started no threads"
assert torch.equal(torch.ops.opgate.leaky_relu(x, alpha=0.5), alone)
assert threads() == own, "the op has started threads beside torch's"
assert torch.equal(alone, torch.where(x < 0, x * 0.5, x))
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


def test_an_op_runs_while_another_thread_holds_python(library: registration.OpLibrary) -> None:
    from concurrent.futures import ThreadPoolExecutor

    x = torch.randn(100_003)
    expected = torch.nn.functional.mish(x)
    with ThreadPoolExecutor(4) as pool:
        for y in pool.map(lambda _: torch.ops.opgate.mish(x), range(32)):
            torch.testing.assert_close(y, expected)


# Tracing.


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    result: Callable[..., Any] = torch.compile(function, fullgraph=True, backend="aot_eager", **options)
    return result


@pytest.mark.parametrize("dynamic", [True, False])
def test_compile_of_every_op(
    library: registration.OpLibrary, cases: list[tuple[Op, dict[str, str], Case]], dynamic: bool
) -> None:
    """Compiles one case for each op, and in `make test-all` for each choice of types. `make test` compiles some of the ops
    only with dynamic sizes."""
    ops = library.ops if ALL or dynamic else library.ops[::4]
    done = set()
    for op, types, case in [one for one in cases if one[0] in ops]:
        arguments = case_arguments(op, case, types)
        key = (op.name, *types.values()) if ALL else (op.name,)
        if case.error or key in done or not all(t.numel() for t in arguments.values() if isinstance(t, torch.Tensor)):
            continue
        done.add(key)
        call = library.overload(op)
        torch.compiler.reset()
        run = compiled(lambda arguments, call=call: call(**arguments), dynamic=dynamic)
        for ours, eager in zip(as_tuple(run(arguments)), as_tuple(call(**arguments)), strict=True):
            torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)
    assert {name for name, *_ in done} == {op.name for op in ops}


def test_a_compiled_graph_serves_every_size(library: registration.OpLibrary, torch_ops: Any) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")

    def body(x: Any) -> Any:
        a, b, c = torch_ops.chunks(torch.ops.opgate.mish(x), k=2)
        return a + 1, b.sum(), c.shape[0], x.shape[0] + 1

    run = torch.compile(body, fullgraph=True, dynamic=True, backend=counter)
    for n, m in ((7, 5), (8, 6), (12, 5), (6, 11)):
        x = torch.randn(n, m)
        ours, eager = run(x), body(x)
        assert ours[0].shape == eager[0].shape and torch.equal(ours[0], eager[0]) and ours[2:] == eager[2:]
    assert counter.frame_count == 1


def test_a_compiled_graph_serves_every_integer_attribute(library: registration.OpLibrary) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    offset = torch.tensor([40], dtype=torch.int32)
    run = torch.compile(
        lambda xyz, nsample: torch.ops.opgate.knn_query(xyz, offset, nsample=nsample)[0] + 1,
        fullgraph=True, dynamic=True, backend=counter,
    )  # fmt: skip
    xyz = torch.randn(40, 3)
    for nsample in (3, 5, 9):
        assert run(xyz, nsample).shape == (40, nsample)
    assert counter.frame_count == 1


def test_inductor_runs_an_op_beside_its_own_kernels(library: registration.OpLibrary) -> None:
    def body(x: Any) -> Any:
        return torch.ops.opgate.mish(x * 2).sum(0) + 1

    from torch._inductor import config

    run = torch.compile(body, fullgraph=True)
    try:
        with config.patch(compile_threads=1):  # others would be processes that import torch
            y = run(torch.ones(3, 4))
    except torch._inductor.exc.InductorError as error:
        pytest.skip(f"inductor can't compile here: {error}")
    torch.testing.assert_close(y, body(torch.ones(3, 4)))


def test_a_data_dependent_size_is_a_symbol(ops: Any) -> None:
    def body(x: Any) -> Any:
        values, indices = ops.keep_positive(x)
        torch._check(values.shape[0] <= x.shape[0])
        return values + 1, indices * 2

    x = torch.tensor([3.0, -1.0, 0.0, 5.0, -2.0])
    for dynamic in (True, False):
        for ours, eager in zip(compiled(body, dynamic=dynamic)(x), body(x), strict=True):
            assert torch.equal(ours, eager)
    # Without fullgraph torch breaks the graph at the op.
    for ours, eager in zip(torch.compile(body, backend="aot_eager")(x), body(x), strict=True):
        assert torch.equal(ours, eager)


def test_a_size_in_a_tensor_is_a_symbol(ops: Any) -> None:
    image, row = torch.ones(6, 9, dtype=torch.uint8), torch.zeros(18, dtype=torch.uint8)
    run = compiled(lambda times: ops.patches(image, row, times)[1] + 1)
    for times in (2, 5):
        assert run(torch.tensor(times)).shape == (times, 5)


def test_a_trace_refuses_what_a_call_refuses(library: registration.OpLibrary, ops: Any) -> None:
    """The trace and the call raise the same message."""

    def refusal(call: Callable[[], object]) -> str:
        with pytest.raises(ValueError, match=": ") as refused:
            call()
        return str(refused.value)

    x, times = torch.ones(4, 3), torch.tensor(2)
    for call, message in (
        (lambda x: torch.ops.opgate.my_add(x, x[:2]), "input 'b': expected T[...] with ... = [4, 3], got f32[2, 3]"),
        (lambda x: torch.ops.opgate.my_add(x, x.double()), "input 'b': expected T[...] with T = f32, got f64[4, 3]"),
        (
            lambda x: torch.ops.opgate.knn_query(x, x),
            "input 'offset': expected I[b] with I one of i32, i64, got f32[4, 3]",
        ),
        (lambda x: torch.ops.opgate.knn_query(x[0], x[0].int()), "input 'xyz': expected T[n, d], got f32[3]"),
        (
            lambda x: torch.ops.opgate.resize_normalize(x.byte(), height=-1, width=2),
            "'height' is a size: expected a number from 0, got -1",
        ),
        (
            lambda x: torch.ops.opgate.draw_bounding_boxes(
                x[:, :, None].expand(4, 3, 3).byte(), x[:, [0, 0, 0, 0]], names=["a\nb"]
            ),
            "attribute 'names': expected elements without line feeds, got 'a\\nb'",
        ),
        (
            lambda x: ops.patches(x.byte(), x[:, 0].byte(), times),
            "input 'row': expected u8[2*w] with 2*w = 6, got u8[4]",
        ),
        (lambda x: ops.patches(x.byte(), x.byte().flatten()[:6], times, size=0), "a size is divided by zero"),
    ):
        eager = refusal(lambda call=call: call(x))
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
            assert refusal(lambda call=call: call(torch.ones(4, 3))) == eager
        assert eager.endswith(f": {message}")


LAYOUTS = {
    "contiguous": lambda: torch.randn(2, 3, 4, 5),
    "channels_last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "transposed": lambda: torch.randn(6, 8).t(),
    "permuted": lambda: torch.randn(2, 3, 4, 5).permute(3, 1, 0, 2),
    "of one channel": lambda: torch.randn(2, 1, 4, 5).to(memory_format=torch.channels_last),
    "with gaps": lambda: torch.randn(6, 8)[:, ::2],
    "with gaps, channels_last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)[:, :2],
    "expanded": lambda: torch.randn(1, 8).expand(6, 8),
    "empty": lambda: torch.randn(0, 3, 4, 5).to(memory_format=torch.channels_last),
    "a scalar": lambda: torch.randn(()),
}


def same_layout(output: Any, *inputs: Any) -> bool:
    """Returns whether the output has the layout of the first input that has neither gaps nor overlaps."""
    for x in inputs:
        if x.is_contiguous():  # also true for a tensor with one channel, whatever its strides are
            return output.is_contiguous()
        if is_dense(x):
            return output.stride() == x.stride()
    return output.is_contiguous()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_elementwise_op_keeps_any_dense_layout(library: registration.OpLibrary, ops: Any, layout: str) -> None:
    x = LAYOUTS[layout]()
    y = torch.ops.opgate.mish(x)
    torch.testing.assert_close(y, torch.nn.functional.mish(x))
    assert same_layout(y, x)
    with torch._subclasses.FakeTensorMode() as mode:
        assert torch.ops.opgate.mish(mode.from_tensor(x)).stride() == y.stride()
    for other in (x.contiguous(), torch.randn(x.shape)):
        for a, b in ((x, other), (other, x)):
            total = torch.ops.opgate.my_add(a, b)
            torch.testing.assert_close(total, 2 * a + b)
            assert same_layout(total, a, b)
            with torch._subclasses.FakeTensorMode() as mode:
                assert torch.ops.opgate.my_add(*map(mode.from_tensor, (a, b))).stride() == total.stride()
    torch.testing.assert_close(ops.sum_all([x, x, other]), 2 * x + other)


@pytest.mark.parametrize("layout", ["channels_last", "permuted", "with gaps", "expanded"])
def test_layouts_through_gradients_and_compilers(library: registration.OpLibrary, layout: str) -> None:
    x = LAYOUTS[layout]().detach().requires_grad_()
    torch.ops.opgate.mish(x).sum().backward()  # sum() passes an expanded gradient
    ours, x.grad = x.grad, None
    torch.nn.functional.mish(x).sum().backward()
    torch.testing.assert_close(ours, x.grad)

    def body(x: Any) -> Any:
        return torch.ops.opgate.mish(x * 2) + torch.ops.opgate.leaky_relu(x)

    run = torch.compile(body, fullgraph=True, backend="aot_eager", dynamic=True)
    y = run(x.detach())
    torch.testing.assert_close(y, body(x.detach()))
    assert y.stride() == body(x.detach()).stride()


def test_unequal_sizes_of_a_dynamic_graph(library: registration.OpLibrary) -> None:
    run = compiled(torch.ops.opgate.my_add, dynamic=True)
    assert run(torch.ones(5), torch.ones(5)).shape == (5,)
    with pytest.raises(Exception, match="input 'b': expected"):
        run(torch.ones(5), torch.ones(4))


def test_sizes_that_only_a_kernel_knows_reach_an_elementwise_op(library: registration.OpLibrary) -> None:
    def positive(x: Any) -> Any:
        return torch.ops.opgate.mish(x.nonzero().float())

    def turned(x: Any) -> Any:
        return torch.ops.opgate.mish(x.nonzero().float().t().unsqueeze(-1).expand(-1, -1, 2))

    class Model(torch.nn.Module):
        def forward(self, data: Any) -> Any:
            return torch.ops.opgate.mish(torch.ops.opgate.decode_image(data).permute(2, 0, 1).float())

    x = torch.tensor([0.0, 1.0, 2.0, 0.0])
    for function in (positive, turned):
        assert torch.equal(torch.compile(function, fullgraph=True, backend="aot_eager")(x), function(x))
    data = torch.from_numpy(np.frombuffer((PROJECT / "docs" / "examples" / "digits.jpg").read_bytes(), np.uint8).copy())
    program = torch.export.export(Model(), (data,))
    assert torch.equal(program.module()(data), Model()(data))


def test_export_with_dynamic_shapes(library: registration.OpLibrary, ops: Any, tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, xyz: Any, offset: Any) -> Any:
            idx, dist = torch.ops.opgate.knn_query(xyz, offset, nsample=4)
            kept, _ = ops.keep_positive(dist.flatten())
            return idx, torch.ops.opgate.mish(dist), kept + 1

    def inputs(n: int) -> tuple[Any, Any]:
        return torch.randn(n, 3), torch.tensor([n], dtype=torch.int32)

    n = torch.export.Dim("n", min=4)
    program = torch.export.export(Model(), inputs(9), dynamic_shapes=({0: n}, None))
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    targets = {str(node.target) for node in loaded.graph.nodes if node.op == "call_function"}
    assert {"opgate.knn_query.default", "opgate.mish.default", "fixture_ops.keep_positive.default"} <= targets
    for size in (9, 31):
        tensors = inputs(size)
        for ours, eager in zip(loaded.module()(*tensors), Model()(*tensors), strict=True):
            assert torch.equal(ours, eager)


# Gradients.


#: Ops whose gradcheck is in tests/ops. The gradient of FakeQuantize is none: it passes through where x is in the range.
GRADCHECKED_ELSEWHERE = {
    *("BevPoolV2", "DeformConv2d", "FakeQuantize", "Gelu", "LayerNorm", "MultiScaleDeformableAttention", "RMSNorm"),
    *("RoiAlignRotated", "RotaryEmbedding", "SigmoidFocalLoss", "Swish"),
}


def test_gradcheck_of_every_op_with_a_gradient(library: registration.OpLibrary) -> None:
    x = torch.linspace(-4, 4, 24, dtype=torch.float64, requires_grad=True).reshape(4, 6)
    assert torch.autograd.gradcheck(torch.ops.opgate.mish, x)
    assert torch.autograd.gradcheck(torch.ops.opgate.mish, x.t())
    by_name = {op.name: op for op in library.ops}
    differentiable = {name.removesuffix("Backward") for name in by_name if name.endswith("Backward")}
    differentiable |= {op.name for op in library.ops if op.gradient}
    points, queries = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (9, 5))
    ends = torch.tensor([4, 9])
    assert torch.autograd.gradcheck(lambda x: torch.ops.opgate.knn_query(x, ends, nsample=4)[1], points)
    assert torch.autograd.gradcheck(
        lambda x, q: torch.ops.opgate.knn_query(x, ends[1:], q, nsample=3)[1], (points, queries)
    )
    features, weight = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((9, 4), (5, 3)))
    rows = torch.randint(-1, 9, (5, 3), dtype=torch.int32)
    assert torch.autograd.gradcheck(lambda f, w: torch.ops.opgate.three_interpolate(f, rows, w), (features, weight))
    images, factor = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 6, 5), (6,)))
    assert torch.autograd.gradcheck(lambda x, w: torch.ops.opgate.group_norm(x, w, w, groups=3)[0], (images, factor))
    here = {"GroupNorm", "KNNQuery", "Mish", "ThreeInterpolate"}
    assert differentiable == here | GRADCHECKED_ELSEWHERE, "add a gradcheck of the new op here, or in tests/ops"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients_of_other_dtypes_agree_with_torch(library: registration.OpLibrary, dtype: Any) -> None:
    x = torch.linspace(-6, 6, 49).to(dtype)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch.ops.opgate.mish(ours).sum().backward()
    torch.nn.functional.mish(theirs).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_gradients_from_inputs_outputs_and_attributes(torch_ops: Any) -> None:
    x, weight = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    bias = weight + 1
    both = (x.requires_grad_(), weight.requires_grad_())
    assert torch.autograd.gradcheck(lambda x, w: torch_ops.weighted(x, w)[0], both)
    assert torch.autograd.gradcheck(lambda x, w: torch_ops.weighted(x, w, bias, scale=0.25)[0], both)
    assert torch.autograd.gradcheck(lambda x: torch_ops.weighted(x, weight.detach())[0], (x,))
    assert torch.autograd.gradcheck(torch_ops.squash, (x,))
    y, count = torch_ops.weighted(x, weight)
    assert y.requires_grad and not count.requires_grad


def test_compiled_gradients(torch_ops: Any, library: registration.OpLibrary) -> None:
    def body(x: Any, weight: Any) -> Any:
        return torch.ops.opgate.mish(torch_ops.weighted(torch_ops.squash(x), weight, scale=2.0)[0]).sum()

    for dynamic in (True, False):
        x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
        expected = torch.autograd.grad(body(x, weight), (x, weight))
        results = torch.autograd.grad(compiled(body, dynamic=dynamic)(x, weight), (x, weight))
        for ours, eager in zip(results, expected, strict=True):
            torch.testing.assert_close(ours, eager)


def test_an_op_without_a_gradient_says_so(library: registration.OpLibrary, ops: Any) -> None:
    x = torch.randn(4, requires_grad=True)
    y = torch.ops.opgate.leaky_relu(x)
    assert y.requires_grad
    with pytest.raises(NotImplementedError, match=r"opgate::leaky_relu can't be differentiated: .*LeakyReluBackward"):
        y.sum().backward()
    with pytest.raises(NotImplementedError, match="fixture_ops::sum_all can't be differentiated"):
        ops.sum_all([x, x]).sum().backward()
    with torch.no_grad():
        assert not torch.ops.opgate.leaky_relu(x).requires_grad
    assert not torch.ops.opgate.leaky_relu(x.detach()).requires_grad
    assert not ops.keep_positive(x)[1].requires_grad  # integers


def test_a_gradient_that_is_missing_for_one_input_says_so(torch_ops: Any) -> None:
    x, weight = torch.randn(3, 4), torch.randn(4)
    bias = torch.randn(4, requires_grad=True)
    with pytest.raises(NotImplementedError, match="by its input 'bias': WeightedBackward has no output grad_bias"):
        torch_ops.weighted(x, weight, bias)[0].sum().backward()


def test_a_second_derivative_says_that_there_is_none(library: registration.OpLibrary) -> None:
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(torch.ops.opgate.mish(x).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="opgate::mish_backward can't be differentiated"):
        first.sum().backward()


@pytest.mark.parametrize(
    ("backward", "message"),
    [
        ("AddBackward(z: f32[n]) -> (grad_a: f32[n])", "input 'z' is neither"),
        ("AddBackward(grad_y: f32[n]) -> (a: f32[n])", "output 'a' is not grad_<input>"),
        ("AddBackward(grad_y: f32[n]; k: int) -> (grad_a: f32[n])", "attribute 'k' is required"),
    ],
)
def test_a_backward_op_out_of_convention_is_refused(fixture_path: Path, backward: str, message: str) -> None:
    op = parse_signature(fixture_path, "Add(a: f32[n], b: f32[n]) -> (y: f32[n])")
    with pytest.raises(ValueError, match=message):
        gradients.register_gradient(op, {"AddBackward": parse_signature(fixture_path, backward)}, None)


# What a user imports.


def test_the_public_module(library: registration.OpLibrary, torch_path: Path) -> None:
    import opgate.torch

    assert {"load", "mish", "Mish", "LeakyRelu", "knn_query"} <= set(opgate.torch.__all__) == set(dir(opgate.torch))
    for name in opgate.torch.__all__:
        assert getattr(opgate.torch, name).__doc__, name
    x = torch.randn(3, 4)
    assert torch.equal(opgate.torch.mish(x), torch.ops.opgate.mish(x))
    signature = inspect.signature(opgate.torch.knn_query)
    assert list(signature.parameters) == ["xyz", "offset", "new_xyz", "new_offset", "nsample", "fill"]
    assert signature.parameters["nsample"].default == 16
    assert signature.return_annotation == tuple[torch.Tensor, torch.Tensor]
    assert "new_xyz: f32 or f64 [m = n, d], may be left out" in opgate.torch.knn_query.__doc__
    with pytest.raises(AttributeError, match="has no 'nothing'"):
        opgate.torch.nothing  # noqa: B018
    own = opgate.torch.load(torch_path)
    assert own.squash(x).shape == (3, 4)
    model = torch.nn.Sequential(opgate.torch.LeakyRelu(alpha=0.25), opgate.torch.Mish())
    assert repr(model[0]) == "LeakyRelu(alpha=0.25)"
    assert torch.equal(compiled(model)(x), opgate.torch.mish(opgate.torch.leaky_relu(x, alpha=0.25)))
    assert torch.equal(compiled(opgate.torch.mish)(x), opgate.torch.mish(x))
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), model(x))
    with pytest.raises(TypeError, match="beta"):
        opgate.torch.LeakyRelu(beta=1)


def test_the_package_imports_no_torch() -> None:
    program = "import sys, opgate, opgate.cli; assert not {'torch', 'opgate.ops_build'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_importing_before_the_build_says_what_to_do(tmp_path: Path) -> None:
    program = f"""
import opgate.ops_build.building.options
from pathlib import Path
opgate.ops_build.building.options.BuildOptions.library = lambda self, name="x": Path({str(tmp_path)!r}) / "libopgate_torch.so"
import opgate.torch
try:
    opgate.torch.mish
except AttributeError as error:
    assert str(error).endswith("libopgate_torch.so is not there: run opgate build"), error
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_loading_a_file_that_is_no_op_library(
    library: registration.OpLibrary, fixture_path: Path, tmp_path: Path
) -> None:
    assert registration.load(library.path) is library
    with pytest.raises(ImportError, match="is not there: run opgate build"):
        registration.load(tmp_path / "none.so")
    with pytest.raises(ImportError, match="is no op library"):
        registration.load(Path(__file__))
    copy = tmp_path / "copy.so"
    copy.write_bytes(fixture_path.read_bytes())
    registration.load(fixture_path)
    with pytest.raises(ImportError, match=r"torch has the ops of domain 'fixture_ops' from .* already"):
        registration.load(copy)


def test_the_table_is_read_where_there_is_no_torch(library: registration.OpLibrary) -> None:
    """The library must load in a process without torch, register nothing there, and say why."""
    program = f"""
import ctypes, json, sys
library = ctypes.CDLL({str(library.path)!r})
library.opgate_table.restype = library.opgate_torch_register.restype = ctypes.c_char_p
assert json.loads(library.opgate_table())["domain"] == "opgate"
assert library.opgate_torch_register() == b"this process has not loaded torch: import torch first"
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# The library.


def test_exported_symbols(library: registration.OpLibrary) -> None:
    assert symbols(library.path, "--defined-only") == {
        "__tvm_ffi_opgate_function",
        "__tvm_ffi_opgate_set_num_threads",
        "opgate_table",
        "opgate_parse_signature",
        "opgate_run",
        "opgate_run_message",
        "opgate_check",
        "opgate_xla",
        "opgate_running_op",
        "opgate_torch_register",
    }


def test_nothing_of_torch_is_linked(fixture_path: Path) -> None:
    """The library links only the C and C++ runtimes. libtorch.h looks torch's functions up by name."""
    undefined = symbols(fixture_path, "--undefined-only")
    assert not [name for name in undefined if re.search(r"torch|c10|\bat::|_ZN2at|THP", name)]
    needed = subprocess.run(["readelf", "-d", str(fixture_path)], capture_output=True, text=True, check=True).stdout
    libraries = set(re.findall(r"NEEDED.*\[(.+?)\]", needed))
    assert {re.sub(r"[.-].*", "", name) for name in libraries} <= {
        "libstdc++",
        "libm",
        "libgcc_s",
        "libc",
        "libdl",
        "ld",
    }


def test_every_function_that_is_looked_up_belongs_to_the_stable_abi(library: registration.OpLibrary) -> None:
    source = (SOURCE / "adapters/torch/libtorch.h").read_text()
    names = re.findall(r"^  X\((\w+)\)", source, re.MULTILINE)
    assert len(names) > 30
    handle = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libtorch_cpu.so"))
    for name in names:
        assert re.match(r"(aoti_)?torch_", name) and hasattr(handle, name)


# The engine and the toolchain.


def test_the_engine_compares_with_the_fake_kernel(torch_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = registration.load(torch_path)
    op = next(op for op in library.ops if op.name == "Squash")
    engine = TorchEngine(torch_path)
    case = Case("one", {"x": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)})
    np.testing.assert_allclose(engine.run(op, case, {"T": "f32"})["y"], np.tanh(case.inputs["x"]), rtol=1e-6)
    monkeypatch.setattr(registration.OpLibrary, "overload", lambda self, op: wrong)

    def wrong(x: Any) -> Any:
        return torch.ones(2) if isinstance(x, torch._subclasses.FakeTensor) else torch.ones(3)

    with pytest.raises(AssertionError, match=r"output 'y': the fake kernel tells torch.float32 \[2\]"):
        engine.run(op, case, {"T": "f32"})

    def wrong_by_one(x: Any) -> Any:
        return torch.ones(2, x.shape[1] + isinstance(x, torch._subclasses.FakeTensor))

    monkeypatch.setattr(registration.OpLibrary, "overload", lambda self, op: wrong_by_one)
    with pytest.raises(AssertionError, match=r"the fake kernel tells torch.float32 \[2, 4\].*the run gave .* \[2, 3\]"):
        engine.run(op, case, {"T": "f32"})


def test_the_compiled_engine_computes_the_same(torch_path: Path) -> None:
    engine = CompiledTorchEngine(torch_path)
    op = next(op for op in registration.load(torch_path).ops if op.name == "Squash")
    case = Case("one", {"x": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)})
    np.testing.assert_allclose(engine.run(op, case, {"T": "f32"})["y"], np.tanh(case.inputs["x"]), rtol=1e-6)


def test_numpy_and_back() -> None:
    import ml_dtypes

    for dtype, array in (
        (torch.bfloat16, np.array([1.5, -2], ml_dtypes.bfloat16)),
        (torch.float16, np.array([1.5, -2], np.float16)),
        (torch.bool, np.array([[True], [False]])),
        (torch.int64, np.array(3)),
        (torch.float32, np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::-1]),
    ):
        tensor = from_numpy(array, dtype)
        assert tensor.dtype == dtype and tensor.shape == array.shape
        np.testing.assert_array_equal(to_numpy(tensor), array.astype(to_numpy(tensor).dtype))


def test_documented_expressions(fixture_path: Path) -> None:
    op = parse_signature(fixture_path, "F(x: f32[n,...], y?: i32[m=2*(n+1)]) -> (z: f32[v<=min(n,m-1),n%m])")
    texts = [op_functions.dims_text(tensor.dims) for tensor in (*op.inputs, *op.outputs)]
    assert texts == ["n, ...", "m = 2*(n + 1)", "v <= min(n, (m - 1)), n%m"]


@pytest.mark.parametrize(
    ("version", "header", "message"),
    [
        ("2.9.1", True, "torch is 2.9, 2.10 or later is needed"),
        ("2.13.0+cpu", False, "a build of torch without its headers"),
        (None, True, "torch is not installed: pip install 'opgate\\[torch\\]'"),
    ],
)
def test_why_there_are_no_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, header: bool, message: str
) -> None:
    root = tmp_path / "torch"
    (root / "include" / toolchain.HEADER).parent.mkdir(parents=True)
    (root / "version.py").write_text(f"__version__ = '{version}'\n")
    if header:
        (root / "include" / toolchain.HEADER).touch()
    spec = SimpleNamespace(submodule_search_locations=[str(root)]) if version else None
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.delenv("OPGATE_TORCH_INCLUDE", raising=False)
    with pytest.raises(LeftOut, match=message):
        toolchain.find_torch_headers()
    monkeypatch.setenv("OPGATE_TORCH_INCLUDE", str(root / "include"))
    if header:
        assert toolchain.find_torch_headers() == [root / "include"]
    else:
        with pytest.raises(LeftOut, match="OPGATE_TORCH_INCLUDE is"):
            toolchain.find_torch_headers()
