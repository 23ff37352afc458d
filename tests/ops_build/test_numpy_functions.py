"""Ops as functions of NumPy arrays, tested with the cases of all ops and with ops that each use a part of the grammar."""

from __future__ import annotations

import ctypes
import inspect
import mmap
import os
import re
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import opgate.numpy
from opgate.ops_build.adapters.numpy.library import LoadError
from opgate.ops_build.building.build import Build, build
from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.case import Array, Case
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.engines.comparison import difference
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.op_functions import functions_of
from opgate.ops_build.op_table import Op
from opgate.ops_build.verification.verify import References, try_case
from tests import PROJECT
from tests.conftest import ALL, silent
from tests.ops_build.choosing import chosen_cases
from tests.ops_build.conftest import op_of_ones_own

#: Says where its input lies, so that a test can see what is copied.
WHERE = """
OPGATE_OP(Where, "<T: f16|bf16|f32|f64|i8|u8|i32|i64|bool> Where(x: T[...]) -> (address: i64[])", "The address of x.")

namespace opgate::ops {
struct WhereCpu {
  template <typename T>
  Status operator()(Context&, const Inputs& in, const Attributes&, Outputs& out) const {
    out["address"].data<std::int64_t>()[0] = reinterpret_cast<std::int64_t>(in["x"].raw());
    return {};
  }
};
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(Where, opgate::ops::WhereCpu)

OPGATE_OP(ThreadsUsed, "ThreadsUsed(x: u8[count]) -> (threads: i64[], tasks: i64[])", "How many threads ran tasks.")

#include <mutex>
#include <set>
#include <thread>

namespace opgate::ops {
struct ThreadsUsedCpu {
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    std::mutex mutex;
    std::set<std::thread::id> threads;
    std::int64_t tasks = 0;
    context.parallel_for(in.size("count"), 1, [&](std::int64_t begin, std::int64_t end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      const std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
      tasks += end - begin;
    });
    out["threads"].data<std::int64_t>()[0] = static_cast<std::int64_t>(threads.size());
    out["tasks"].data<std::int64_t>()[0] = tasks;
    return {};
  }
};
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(ThreadsUsed, opgate::ops::ThreadsUsedCpu)

OPGATE_OP(RawBytes, "RawBytes(texts: str[n]) -> (lengths: i64[n], first?: str[m<=n])", "Byte lengths, and texts.")

namespace opgate::ops {
struct RawBytesCpu {
  Status operator()(Context&, const Inputs& in, const Attributes&, Outputs& out) const {
    const auto texts = in["texts"].span<std::string_view>();
    OPGATE_RETURN_IF_ERROR(out.bind("m", static_cast<std::int64_t>(texts.size()) / 2));
    for (std::size_t i = 0; i < texts.size(); ++i)
      out["lengths"].data<std::int64_t>()[i] = static_cast<std::int64_t>(texts[i].size());
    if (!out.has("first")) return {};
    for (std::size_t i = 0; i < texts.size() / 2; ++i) out["first"].data<std::string>()[i] = texts[i];
    return {};
  }
};
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(RawBytes, opgate::ops::RawBytesCpu)
"""

F32 = np.float32
MAP_NORESERVE = 0x4000  # Python has no name for it before 3.13


class NumpyEngine:
    """Runs the ops of a library by their functions, for verification."""

    name, device = "numpy", "cpu"

    def __init__(self, functions: SimpleNamespace) -> None:
        self._functions = functions

    def refusal(self, op: Op, types: Mapping[str, str]) -> str | None:
        return None

    def run(self, op: Op, case: Case, types: Mapping[str, str]) -> dict[str, Array]:
        """Returns the outputs by name. Raises AssertionError if an output is no array of its own, or if the function
        that returns fewer outputs gives others."""
        outputs: dict[str, Array] = {}
        for name, returned in functions_of(op):
            found = getattr(self._functions, name)(**case.inputs, **case.attributes)
            arrays = found if isinstance(found, tuple) else (found,)
            for tensor, array in zip(returned.outputs, arrays, strict=True):
                assert type(array) is np.ndarray and array.flags.owndata | (array.dtype == object)
                assert array.flags.writeable and array.flags.aligned and array.flags.c_contiguous
                if tensor.name in outputs:
                    failure = difference(array, outputs[tensor.name], (0, 0))
                    assert failure is None, f"output '{tensor.name}' of {name}: {failure}"
                outputs[tensor.name] = array
        return outputs


@pytest.fixture(scope="module")
def functions(library: Path) -> SimpleNamespace:
    return opgate.numpy.load(library)


@pytest.fixture(scope="module")
def mine(fixture_library: Path) -> SimpleNamespace:
    """The functions of the fixture ops."""
    return opgate.numpy.load(fixture_library)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The functions of ops that tell how they were called."""
    folder = tmp_path_factory.mktemp("telling")
    return opgate.numpy.load(build(op_of_ones_own(folder, "telling", WHERE), silent).libraries["onnxruntime"])


@pytest.fixture
def threads() -> Any:
    """Sets the number of threads for a test."""
    before = opgate.numpy.get_num_threads()
    yield opgate.numpy.set_num_threads
    opgate.numpy.set_num_threads(before)


def test_every_op_gives_what_its_reference_gives(library: Path, functions: SimpleNamespace) -> None:
    """Runs every case of an op's first dtypes, and a few with each other choice of dtypes."""
    engine, tried, failures, seen = NumpyEngine(functions), 0, [], set()
    few = chosen_cases(opgate.numpy.ops(library), SOURCE / "ops", everything=ALL)
    for op, types, chosen in few:
        folder = folder_of(op, [SOURCE / "ops"])
        references = References(op, folder)
        cases = chosen if op.name in seen else folder.cases(numpy_types(types))
        seen.add(op.name)
        for case in cases:
            failure = try_case(op, references, case, types, engine)
            failures += [f"{op.name} {types} {case.name}: {failure}"] if failure else []
            tried += 1
    assert not failures, "\n".join(failures)
    assert tried > 3000


# What a call takes.


def test_optional_inputs_and_outputs(mine: SimpleNamespace) -> None:
    points, query = np.arange(12, dtype=F32).reshape(4, 3), np.ones((2, 3), F32)
    total, count = mine.nearest_sum(points, query=query, scale=2)
    assert total.shape == (2,) and count.dtype == np.int64
    np.testing.assert_array_equal(total, [2 * (points.sum() + 3)] * 2)
    np.testing.assert_array_equal(mine.nearest_sum_required(points, None, query, scale=2.0), total)
    assert mine.nearest_sum_required(points).shape == (4,)


def test_a_variadic_input(mine: SimpleNamespace) -> None:
    a, b = np.array([[1.0, 2.0]]), np.array([[0.5, 0.25]])
    np.testing.assert_array_equal(mine.sum_all([a, b, a]), 2 * a + b)
    np.testing.assert_array_equal(mine.sum_all(xs=(a,)), a)
    np.testing.assert_array_equal(mine.sum_all([a, [[1, 2]]]), 2 * a)  # the list takes the dtype of the array
    with pytest.raises(ValueError, match="input 'xs' is required and absent"):
        mine.sum_all([])
    for absent in ((), (None,), ([a, None],)):
        with pytest.raises(TypeError, match="input 'xs' is required: expected f32 or f64 or i64"):
            mine.sum_all(*absent)
    with pytest.raises(TypeError, match="input 'xs': expected a list of arrays, got ndarray"):
        mine.sum_all(a)
    with pytest.raises(TypeError, match=r"input 'xs': expected T\[...\] with T = f64, got i64\[1, 2\]"):
        mine.sum_all([a, a.astype(np.int64)])


def test_sizes_that_only_the_kernel_knows(mine: SimpleNamespace) -> None:
    values, indices = mine.keep_positive(np.array([3, -1, 0, 5], np.int32))
    np.testing.assert_array_equal(values, np.array([3, 5], np.int32), strict=True)
    np.testing.assert_array_equal(indices, [0, 3])
    values, indices = mine.keep_positive(np.empty(0, F32))
    assert values.shape == indices.shape == (0,) and values.dtype == F32


def test_sizes_from_integers_in_host_memory(mine: SimpleNamespace) -> None:
    image = np.arange(15, dtype=np.uint8).reshape(3, 5)
    for times in (np.int64(2), np.array(2), 2):
        grid, tiled = mine.patches(image, np.ones(10, np.uint8), times, size=2)
        assert grid.shape == (2, 3) and tiled.shape == (2, 3)
    with pytest.raises(ValueError, match=r"'times'.* -2"):
        mine.patches(image, np.ones(10, np.uint8), -2)


def test_strings(mine: SimpleNamespace, told: SimpleNamespace) -> None:
    expected = np.array([["ÄB!", "!"]], object)
    for texts in (
        np.array([["Äb", ""]], object),
        np.array([["Äb", ""]]),
        np.array([["Äb".encode(), b""]], object),
        [["Äb", ""]],
    ):
        shouted = mine.shout(texts)
        assert shouted.dtype == object and isinstance(shouted[0, 0], str)
        np.testing.assert_array_equal(shouted, expected)
    assert mine.shout("hm", mark="?", words=["a", "ü"], letters="lower").shape == ()
    assert mine.shout(np.empty((0, 2), object)).shape == (0, 2)
    with pytest.raises(TypeError, match="input 'texts': expected elements of type str or bytes, got 7"):
        mine.shout(np.array(["a", 7], object))
    with pytest.raises(TypeError, match=r"input 'texts': expected str\[\.\.\.\], got f32\[2\]"):
        mine.shout(np.ones(2, F32))
    lengths, first = told.raw_bytes(np.array([b"\xff\x00z", "ü", "", "b"], object))
    assert lengths.tolist() == [3, 2, 0, 1] and first.tolist() == ["\udcff\0z", "ü"]
    np.testing.assert_array_equal(told.raw_bytes(first)[0], [3, 2])  # the bytes come back
    assert told.raw_bytes_required(np.array(["abc"])).tolist() == [3]


def test_bfloat16(functions: SimpleNamespace) -> None:
    x = np.linspace(-2, 2, 9).astype(ml_dtypes.bfloat16)
    y = functions.mish(x)
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(y.astype(F32), functions.mish(x.astype(F32)), rtol=1e-2, atol=1e-2)


def test_prepared_kernels(mine: SimpleNamespace) -> None:
    x = np.arange(6, dtype=F32).reshape(2, 3)
    for scale in (1.0, 2.0, 1.0):
        for columns in (3, 2):
            weight = np.arange(columns, dtype=F32)
            y, _, constant = mine.scaled_columns(x[:, :columns], weight, scale=scale)
            np.testing.assert_array_equal(y, x[:, :columns] * weight * F32(scale))
            assert not constant  # a call has no constants
    before = mine.scaled_columns(x, np.ones(3, F32), scale=5)[1]
    assert mine.scaled_columns(x, np.ones(3, F32), scale=5)[1] == before


def test_what_is_no_array(functions: SimpleNamespace, mine: SimpleNamespace) -> None:
    x = np.array([-1.0, 0.0, 2.0], F32)
    for value in (memoryview(x), SimpleNamespace(__array_interface__=x.__array_interface__, kept=x)):
        np.testing.assert_array_equal(functions.mish(value), functions.mish(x))
    total = mine.nearest_sum_required([[1, 2], [3, 4]], query=[(0.5, 0.5)])  # the signature says f32
    np.testing.assert_array_equal(total, np.array([11], F32), strict=True)
    assert functions.mish(F32(2)).shape == ()
    with pytest.raises(TypeError, match=r"input 'x': expected .*f32.*, got a list: pass an array"):
        functions.mish([1.0, 2.0])
    with pytest.raises(TypeError, match="input 'points': expected f32, got a list of bool"):
        mine.nearest_sum([[True]])
    with pytest.raises(TypeError, match="input 'segment': expected i32, got a list of float64"):
        mine.nearest_sum([[1.0]], segment=[0.0])
    with pytest.raises(ValueError, match=r"input 'segment': .*too large|out of bounds"):
        mine.nearest_sum([[1.0]], segment=[2**40])
    with pytest.raises(ValueError, match=r"input 'points': .*inhomogeneous"):
        mine.nearest_sum([[1.0], [1.0, 2.0]])
    with pytest.raises(TypeError, match=r"input 'points': expected f32, got \{\}"):
        mine.nearest_sum({})


# What is copied.


def test_inputs_are_read_where_they_lie(told: SimpleNamespace) -> None:
    for dtype in (F32, np.bool_, np.int64, ml_dtypes.bfloat16):
        x = np.zeros((3, 4), dtype)
        assert told.where(x) == x.ctypes.data
        assert told.where(x[1:]) == x[1:].ctypes.data
    x.flags.writeable = False
    assert told.where(x) == x.ctypes.data
    assert told.where(x.T) != x.ctypes.data  # not in C order
    big = np.ones(3, ">f4")
    assert told.where(big) != big.ctypes.data
    odd = np.zeros(9, np.uint8)[1:].view(F32)
    assert not odd.flags.aligned and told.where(odd) != odd.ctypes.data


def test_an_input_larger_than_memory(told: SimpleNamespace) -> None:
    """Pages that the system has promised to nobody: a copy of them would need all of them."""
    reserved = mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    x = np.frombuffer(reserved, np.uint8)
    tracemalloc.start()
    assert told.where(x) == x.ctypes.data
    assert told.where(x.view(F32).reshape(1 << 18, 1 << 20)) == x.ctypes.data
    assert tracemalloc.get_traced_memory()[1] < 1 << 16
    tracemalloc.stop()


def test_only_outputs_take_memory(functions: SimpleNamespace) -> None:
    x = np.ones(1 << 20, F32)
    functions.mish(x)
    tracemalloc.start()
    y = functions.mish(x)
    size, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert y.nbytes <= size < y.nbytes + 4096 and peak < y.nbytes + 8192


def test_nothing_is_kept(functions: SimpleNamespace, mine: SimpleNamespace) -> None:
    x, texts = np.ones((256, 256), F32), np.array(["word"] * 1000)
    failing = SimpleNamespace(calls=0)

    def calls() -> None:
        functions.mish(x)
        mine.shout(texts)
        with pytest.raises(ValueError):
            functions.knn_query(x, np.zeros((1, 1), np.int32))
        failing.calls += 1

    calls()
    references = sys.getrefcount(x)
    tracemalloc.start()
    calls()
    first = tracemalloc.get_traced_memory()[0]
    for _ in range(20):
        calls()
    assert tracemalloc.get_traced_memory()[0] < first + x.nbytes // 2
    tracemalloc.stop()
    assert sys.getrefcount(x) == references and failing.calls == 22


def test_arrays_in_other_orders(functions: SimpleNamespace) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 6)).astype(F32)
    for other in (np.asfortranarray(x), x[::-1], x[:, ::2], x.astype(">f4"), np.broadcast_to(x[0], (3, 6))):
        np.testing.assert_array_equal(functions.mish(other), functions.mish(np.array(other, F32, order="C")))
    assert functions.mish(np.array(1.5, F32)).shape == ()
    assert functions.mish(np.array(1.5, ">f4")).shape == ()
    assert functions.mish(np.empty((0, 3), F32)).shape == (0, 3)


# What is refused.


def test_errors_name_what_was_expected(functions: SimpleNamespace, mine: SimpleNamespace) -> None:
    x = np.ones((4, 3), F32)
    offset = np.array([4], np.int32)
    for error, message, call in (
        (
            TypeError,
            r"opgate::Mish: input 'x': expected T.* one of .*, got i32\[2\]",
            lambda: functions.mish(np.ones(2, np.int32)),
        ),
        (TypeError, r"input 'x': expected .*f32.*, got complex128\[2\]", lambda: functions.mish(np.ones(2, complex))),
        (TypeError, "Mish: expected at most 1 inputs, got 2; attributes go by name", lambda: functions.mish(x, x)),
        (TypeError, "Mish: input 'x' is required", functions.mish),
        (TypeError, "Mish: input 'x' is given twice", lambda: functions.mish(x, x=x)),
        (
            TypeError,
            "KNNQuery has no argument 'k': expected xyz, offset, .*nsample",
            lambda: functions.knn_query(x, offset, k=3),
        ),
        (TypeError, "attribute 'nsample': expected int, got 3.0", lambda: functions.knn_query(x, offset, nsample=3.0)),
        (
            TypeError,
            "attribute 'nsample': expected int, got True",
            lambda: functions.knn_query(x, offset, nsample=True),
        ),
        (
            ValueError,
            "attribute .nsample.: expected integers of 64 bits, got 11",
            lambda: functions.knn_query(x, offset, nsample=2**70),
        ),
        (
            ValueError,
            "attribute .nsample.: expected integers of 64 bits, got .*9223372036854775808",
            lambda: functions.ball_query(x, offset, max_radius=2**70, nsample=np.uint64(2**63)),
        ),
        (
            TypeError,
            r"^opgate::KNNQuery: attribute .nsample.: expected int, got 'x+\.\.\.x+'$",
            lambda: functions.knn_query(x, offset, nsample="x" * 10_000),
        ),
        (ValueError, "opgate::KNNQuery: .*nsample.*-1", lambda: functions.knn_query(x, offset, nsample=-1)),
        (
            ValueError,
            r"KNNQuery: input 'xyz': expected T\[n, d\], got f32\[1, 4, 3\]",
            lambda: functions.knn_query(x[None], offset),
        ),
        (
            ValueError,
            r"KNNQuery: input 'offset': expected .*, got i32\[1, 1\]",
            lambda: functions.knn_query(x, offset[None]),
        ),
        (TypeError, "attribute 'words': expected a list of str, got 'a'", lambda: mine.shout("a", words="a")),
        (TypeError, r"attribute 'words': expected a list of str, got \[1\]", lambda: mine.shout("a", words=[1])),
        (ValueError, "attribute 'letters': expected .*upper.*, got 'small'", lambda: mine.shout("a", letters="small")),
        (TypeError, "attribute 'how' is required: expected throws or", lambda: mine.misbehave(x[0])),
    ):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("throws", "thrown by the kernel"),
        ("throws_in_pool", "thrown in the pool"),
        ("leaves_open", "left the size of output 'y' open"),
        ("binds_too_much", "the kernel set 'v' to 4"),
        ("runs_out", "out of memory"),
        ("writes_as_double", "accesses tensor 'y'"),
    ],
)
def test_kernels_that_fail(mine: SimpleNamespace, how: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=f"^fixture_ops::Misbehave: .*{message}"):
        mine.misbehave(np.ones(3, F32), how=how)


def test_an_output_without_memory(mine: SimpleNamespace) -> None:
    image, row = np.ones((1, 1 << 20), np.uint8), np.ones(2 << 20, np.uint8)
    with pytest.raises(MemoryError, match="Unable to allocate"):
        mine.patches(image, row, 1 << 40)
    with pytest.raises(ValueError, match=r"expected fewer than 2\^63 bytes"):
        mine.patches(image, row, 1 << 62)


def test_libraries_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=r"gone\.so is not there: run opgate build"):
        opgate.numpy.load(tmp_path / "gone.so")
    (tmp_path / "text.so").write_text("no library " * 100)
    with pytest.raises(LoadError, match=r"text\.so is no op library: .*file too short|invalid ELF header"):
        opgate.numpy.load(tmp_path / "text.so")
    with pytest.raises(LoadError, match="exports no opgate_table"):
        opgate.numpy.load(_libm())


def _libm() -> str:
    """The path of a library that opgate didn't build."""
    ctypes.CDLL("libm.so.6")
    return next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libm" in line)


# Threads.


def test_calls_in_threads(functions: SimpleNamespace, mine: SimpleNamespace) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((50 + i, 3)).astype(F32) for i in range(16)]

    def call(x: Array) -> tuple[Any, ...]:
        knn = functions.knn_query(x, np.array([len(x)], np.int32), nsample=3)
        with pytest.raises(ValueError, match=rf"got f32\[1, {len(x)}, 3\]"):
            functions.knn_query(x[None], np.array([len(x)], np.int32))
        scaled = mine.scaled_columns(x, x[0], scale=float(len(x)))[0]
        return *knn, functions.mish(x), scaled, mine.shout(np.array([str(len(x))]))

    expected = [call(x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            for found, right in zip(pool.map(call, inputs), expected, strict=True):
                for a, b in zip(found, right, strict=True):
                    np.testing.assert_array_equal(a, b)


def test_the_number_of_threads(told: SimpleNamespace, threads: Callable[[int], None]) -> None:
    assert opgate.numpy.get_num_threads() >= 1
    for count in (1, 3, 2, 1):
        threads(count)
        used, tasks = told.threads_used(np.empty(64, np.uint8))
        assert 1 <= used <= count and tasks == 64
        assert count == 1 or used > 1
    with pytest.raises(ValueError, match="expected at least one thread, got 0"):
        threads(0)


def test_the_lock_of_the_interpreter_is_released(told: SimpleNamespace, threads: Callable[[int], None]) -> None:
    threads(1)
    call = threading.Thread(target=told.threads_used, args=(np.empty(100, np.uint8),))  # at least 200 ms
    call.start()
    begin, turns = time.perf_counter(), 0
    while call.is_alive() and time.perf_counter() < begin + 60:
        turns += 1
        time.sleep(0.001)
    call.join()
    assert turns > 10


def test_calls_after_a_fork(fixture_library: Path, library: Path) -> None:
    program = f"""
import os, numpy as np, opgate.numpy
mine = opgate.numpy.load({str(library)!r})
opgate.numpy.set_num_threads(3)
x = np.ones(1 << 20, np.float32)
y = mine.mish(x)
child = os.fork()
right = np.array_equal(mine.mish(x), y)
if child == 0:
    opgate.numpy.set_num_threads(2)
    os._exit(0 if right and np.array_equal(mine.mish(x), y) else 1)
assert right and os.waitpid(child, 0)[1] == 0
"""
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], cwd=PROJECT, capture_output=True, text=True, timeout=60
    )
    assert finished.returncode == 0, finished.stderr


# What Python shows.


def test_names_and_documentation(library: Path, functions: SimpleNamespace) -> None:
    names = vars(functions)
    for op in opgate.numpy.ops(library):
        for name, returned in functions_of(op):
            text = inspect.getdoc(names[name])
            assert text is not None and op.doc in text and all(out.name in text for out in returned.outputs)
            assert names[name].__name__ == name
    described = functions.knn_query.__doc__
    assert (
        "xyz: f32 or f64 [n, d]" in described and "nsample: int, default 16" in described and "TypeError" in described
    )
    parameters = inspect.signature(functions.knn_query).parameters
    assert list(parameters)[:2] == ["xyz", "offset"] and parameters["nsample"].default == 16
    assert parameters["nsample"].kind is inspect.Parameter.KEYWORD_ONLY


def test_the_module(built: Build) -> None:
    program = """
import opgate.numpy, sys
assert "torch" not in sys.modules and "onnx" not in sys.modules and "onnxruntime" not in sys.modules
assert "opgate.service" not in sys.modules
assert {"knn_query", "mish", "rms_norm_required", "load", "ops"} <= set(dir(opgate.numpy))
import pydoc
assert "xyz: f32 or f64 [n, d]" in pydoc.render_doc(opgate.numpy.knn_query)
try:
    opgate.numpy.no_such
except AttributeError as error:
    assert "opgate.numpy has no 'no_such'" in str(error)
else:
    raise AssertionError
"""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    finished = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


def test_the_examples_of_the_page(built: Build) -> None:
    page = (PROJECT / "docs" / "numpy.md").read_text()
    first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert "opgate.numpy.load" in second
    finished = subprocess.run([sys.executable, "-c", first], cwd=PROJECT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == first.strip().splitlines()[-1].split("# ")[1]
