"""Ops as functions of TVM-FFI, tested with cases of all ops and with ops that each use a part of the grammar."""

from __future__ import annotations

import ctypes
import gc
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

tvm_ffi = pytest.importorskip("tvm_ffi")

import opgate.tvm_ffi  # noqa: E402
from opgate.ops_build.adapters.numpy.library import LoadError  # noqa: E402
from opgate.ops_build.building.build import build  # noqa: E402
from opgate.ops_build.building.options import DEFAULT_OUTPUT, SOURCE, out_of_tree  # noqa: E402
from opgate.ops_build.case import Array, Case  # noqa: E402
from opgate.ops_build.op_folder import folder_of  # noqa: E402
from opgate.ops_build.op_functions import functions_of  # noqa: E402
from opgate.ops_build.op_table import Op, read_table  # noqa: E402
from opgate.ops_build.verification.verify import References, try_case  # noqa: E402
from tests import PROJECT  # noqa: E402
from tests.conftest import ALL, silent  # noqa: E402
from tests.ops_build.choosing import chosen_cases  # noqa: E402

F32 = np.float32


class TvmEngine:
    """Runs the ops of a library by their functions, for verification. Each call is made a second time, with the outputs
    of the first one as the tensors to write to."""

    name, device = "tvm-ffi", "cpu"

    def __init__(self, functions: SimpleNamespace) -> None:
        self._functions = functions

    def refusal(self, op: Op, types: Mapping[str, str]) -> str | None:
        return None

    def run(self, op: Op, case: Case, types: Mapping[str, str]) -> dict[str, Array]:
        inputs = {
            name: [in_order(each) for each in value] if isinstance(value, list) else in_order(value)
            for name, value in case.inputs.items()
        }
        function = getattr(self._functions, name_with_all_outputs(op))
        arrays = arrays_of(function(**inputs, **case.attributes))
        again = [np.zeros_like(array) for array in arrays]
        given = [inputs.get(tensor.name) for tensor in op.inputs]
        assert function(*given, *again, **case.attributes) is None
        for array, written in zip(arrays, again, strict=True):
            np.testing.assert_array_equal(array, written)
        return {output.name: array for output, array in zip(op.outputs, arrays, strict=True)}


def name_with_all_outputs(op: Op) -> str:
    """Returns the name of the function that returns all outputs."""
    return next(name for name, returned in functions_of(op) if returned.outputs == op.outputs)


def in_order(array: Array | None) -> Array | None:
    return None if array is None else np.array(array, order="C")


def arrays_of(returned: Any) -> list[Array]:
    return [np.from_dlpack(tensor) for tensor in (returned if isinstance(returned, tuple) else (returned,))]


@pytest.fixture(scope="module")
def mine(fixture_library: Path) -> SimpleNamespace:
    """The functions of the fixture ops."""
    return opgate.tvm_ffi.load(fixture_library)


@pytest.fixture(scope="module")
def module(fixture_library: Path) -> Any:
    """The library of the fixture ops, as every language loads it."""
    return tvm_ffi.load_module(str(fixture_library))


def test_every_op_gives_what_its_reference_gives(library: Path) -> None:
    engine, tried, failures = TvmEngine(opgate.tvm_ffi.load(library)), 0, []
    for op, types, cases in chosen_cases(read_table(library), SOURCE / "ops", everything=ALL):
        if {"str", "bf16"} & ({*types.values()} | {*op.tensor_types}):
            continue  # DLPack has no strings, and NumPy no bf16
        references = References(op, folder_of(op, [SOURCE / "ops"]))
        for case in cases:
            failure = try_case(op, references, case, types, engine)
            failures += [f"{op.name} {types} {case.name}: {failure}"] if failure else []
            tried += 1
    assert not failures, "\n".join(failures)
    assert tried > 600


# What a call takes.


def test_tensors_of_any_library(mine: SimpleNamespace) -> None:
    a, b = np.ones(3, F32), np.arange(3, dtype=F32)
    for given in (a, tvm_ffi.from_dlpack(a)):
        result = mine.clamp_add(given, b=b, high=2)
        assert isinstance(result, tvm_ffi.Tensor)
        np.testing.assert_array_equal(np.from_dlpack(result), [1, 2, 2])
    del result
    gc.collect()


def test_tensors_of_pytorch(mine: SimpleNamespace, library: Path) -> None:
    torch = pytest.importorskip("torch")
    result = mine.clamp_add(torch.ones(3), torch.arange(3.0), high=2)
    assert isinstance(result, torch.Tensor) and result.tolist() == [1, 2, 2]
    x = torch.linspace(-2, 2, 9, dtype=torch.bfloat16)
    y = opgate.tvm_ffi.load(library).mish(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, torch.nn.functional.mish(x), rtol=1e-2, atol=1e-2)


def test_outputs_that_are_given(mine: SimpleNamespace) -> None:
    a, y = np.ones(3, F32), np.zeros(3, F32)
    assert mine.clamp_add(a, a, y, high=7) is None
    np.testing.assert_array_equal(y, [2, 2, 2])
    with pytest.raises(ValueError, match=r"^fixture_ops::ClampAdd: output 'y': expected f32\[3\], got f32\[4\]"):
        mine.clamp_add(a, a, np.zeros(4, F32))
    with pytest.raises(TypeError, match=r"output 'y': expected f32\[3\], got i32\[3\]"):
        mine.clamp_add(a, a, np.zeros(3, np.int32))
    with pytest.raises(ValueError, match="output 'y': expected contiguous elements in row-major order"):
        mine.clamp_add(a, a, np.zeros(6, F32)[::2])
    with pytest.raises(TypeError, match="expected at most 3 tensors, got 4; attributes go by name"):
        mine.clamp_add(a, a, y, y)


def test_optional_inputs_and_outputs(mine: SimpleNamespace) -> None:
    points, query = np.arange(12, dtype=F32).reshape(4, 3), np.ones((2, 3), F32)
    total, count = mine.nearest_sum(points, query=query, scale=2)
    assert total.shape == (2,) and str(count.dtype) == "int64"
    required = mine.nearest_sum_required(points, None, query, scale=2.0)
    np.testing.assert_array_equal(np.from_dlpack(required), np.from_dlpack(total))
    written = np.zeros(2, F32)
    mine.nearest_sum(points, None, query, None, written, None, scale=2)
    np.testing.assert_array_equal(written, np.from_dlpack(total))
    with pytest.raises(TypeError, match="output 'indices': expected a tensor, got None"):
        mine.keep_positive(points[0], written, None)


def test_a_variadic_input(mine: SimpleNamespace) -> None:
    a, b = np.array([[1.0, 2.0]]), np.array([[0.5, 0.25]])
    np.testing.assert_array_equal(np.from_dlpack(mine.sum_all([a, b, a])), 2 * a + b)
    with pytest.raises(TypeError, match="input 'xs': expected a list of tensors, got a tensor"):
        mine.sum_all(a)
    with pytest.raises(TypeError, match="input 'xs': expected f64, got i64"):
        mine.sum_all([a, a.astype(np.int64)])
    with pytest.raises(TypeError, match="input 'xs': expected a tensor of f32 or f64 or i64, got int"):
        mine.sum_all([a, 3])


def test_sizes_that_only_the_kernel_knows(mine: SimpleNamespace) -> None:
    values, indices = arrays_of(mine.keep_positive(np.array([3, -1, 0, 5], np.int32)))
    assert values.tolist() == [3, 5] and indices.tolist() == [0, 3]
    values, indices = arrays_of(mine.keep_positive(np.empty(0, F32)))
    assert values.shape == indices.shape == (0,) and values.dtype == F32


def test_an_op_in_python_and_lists_of_numbers(library: Path) -> None:
    folder = Path(__file__).parent / "numpy_ops"
    options = replace(out_of_tree(folder, DEFAULT_OUTPUT.parent / folder.name), engines=("onnxruntime",), cuda="")
    ops = opgate.tvm_ffi.load(build(options, silent).libraries["onnxruntime"])
    x, k = np.arange(9.0), np.array(3)
    for edges in ([0.5, 1], (0.5, 1.0)):
        assert np.from_dlpack(ops.taken(x, k, edges=edges, backwards=True)).tolist() == [8, 6, 4]
    for edges, got in (([0.5, "1"], "a list"), (0.5, "float")):
        with pytest.raises(TypeError, match=rf"attribute 'edges': expected float\[2\], got {got}"):
            ops.taken(x, k, edges=edges)
    with pytest.raises(ValueError, match="attribute 'edges'"):
        ops.taken(x, k, edges=[1, 2, 3])


# Errors.


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (ValueError, r"input 'b': expected T\[...\] with ... = \[3\], got f32\[2\]", {"b": np.ones(2, F32)}),
        (TypeError, "input 'b': expected f32, got i32", {"b": np.ones(3, np.int32)}),
        (TypeError, "input 'b': expected f16 or f32 or i32, got DLPack's type 1 of 16 bits", {"b": np.ones(3, "u2")}),
        (TypeError, "input 'b': expected a tensor of f16 or f32 or i32, got float", {"b": 1.5}),
        (TypeError, "input 'b' is required", {}),
        (ValueError, "input 'b': expected contiguous elements", {"b": np.ones(6, F32)[::2]}),
        (TypeError, "attribute 'high': expected int, got str", {"b": np.ones(3, F32), "high": "much"}),
        (TypeError, "attribute 'high': expected int, got float", {"b": np.ones(3, F32), "high": 1.5}),
        (TypeError, "attribute 'high': expected int, got bool", {"b": np.ones(3, F32), "high": True}),
        (TypeError, "has no argument 'hihg': expected a, b, high", {"b": np.ones(3, F32), "hihg": 1}),
        (TypeError, "input 'a' is given twice", {"a": np.ones(3, F32), "b": np.ones(3, F32)}),
    ],
)
def test_what_a_call_refuses(mine: SimpleNamespace, error: type[Exception], message: str, arguments: Any) -> None:
    with pytest.raises(error, match=rf"^fixture_ops::ClampAdd:? {message}"):
        mine.clamp_add(np.ones(3, F32), **arguments)


def test_a_kernel_that_fails(mine: SimpleNamespace) -> None:
    with pytest.raises(RuntimeError, match=r"^fixture_ops::Misbehave: thrown by the kernel$"):
        mine.misbehave(np.ones(3, F32), how="throws")


def test_an_attribute_that_is_required(mine: SimpleNamespace) -> None:
    with pytest.raises(TypeError, match="attribute 'how' is required: expected"):
        mine.misbehave(np.ones(3, F32))


# The module, as another language sees it.


def test_a_function_of_the_module(module: Any) -> None:
    function = module.opgate_function("ClampAdd")
    a, y = tvm_ffi.from_dlpack(np.ones(3, F32)), np.zeros(3, F32)
    function(a, a, y, 1)  # inputs, outputs, attributes
    assert y.tolist() == [1, 1, 1]
    assert np.from_dlpack(function(a, a, 1)).tolist() == [1, 1, 1]
    assert np.from_dlpack(function(a, a, None)).tolist() == np.from_dlpack(function(a, a)).tolist() == [2, 2, 2]
    with pytest.raises(TypeError, match="expected at most 1 attributes, got 2"):
        function(a, a, 1, 2)


def test_what_the_module_refuses(module: Any) -> None:
    for error, message, call in (
        (ValueError, "the library of fixture_ops has no op Nope", lambda: module.opgate_function("Nope")),
        (TypeError, "expected the name of an op", lambda: module.opgate_function(3)),
        (ValueError, "fixture_ops::Shout has tensors of strings", lambda: module.opgate_function("Shout")),
        (ValueError, "expected at least one thread", lambda: module.opgate_set_num_threads(0)),
    ):
        with pytest.raises(error, match=message):
            call()


def test_a_function_outlives_its_module(fixture_library: Path) -> None:
    program = f"""
import gc, numpy, tvm_ffi
function = tvm_ffi.load_module({str(fixture_library)!r}).opgate_function("ClampAdd")
gc.collect()
y = function(*[numpy.ones(3, numpy.float32)] * 2)
del function
gc.collect()
assert numpy.from_dlpack(y).tolist() == [2, 2, 2]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_examples_of_the_page(fixture_library: Path) -> None:
    pytest.importorskip("torch")
    blocks = re.findall(r"```python\n(.*?)```", (PROJECT / "docs" / "tvm-ffi.md").read_text(), re.DOTALL)
    tensors = "import tvm_ffi\na = b = torch.ones(3)\n"
    program = "\n".join([blocks[0], "assert y.tolist() == [2, 2, 2]", tensors, blocks[1]])
    program = program.replace("my_ops/build/libmy_ops_onnxruntime.so", str(fixture_library))
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_library_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="is not there: run opgate build"):
        opgate.tvm_ffi.load(tmp_path / "gone.so")


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("number", ctypes.c_int)]


class _Tensor(ctypes.Structure):
    """DLManagedTensor of DLPack."""

    _fields_ = [
        *(("data", ctypes.c_void_p), ("device", _Device), ("rank", ctypes.c_int), ("code", ctypes.c_uint8)),
        *(("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("dims", ctypes.POINTER(ctypes.c_int64))),
        *(("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64), ("owner", ctypes.c_void_p)),
        ("deleter", ctypes.c_void_p),
    ]


class Claimed:
    """A tensor that says that it lies on a device of DLPack. Nothing may read it."""

    def __init__(self, kind: int, number: int) -> None:
        self._device = (kind, number)
        self._dims = (ctypes.c_int64 * 1)(3)
        self._tensor = _Tensor(1 << 20, _Device(kind, number), 1, 2, 32, 1, self._dims, None, 0, None, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **options: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._tensor), b"dltensor", None)


@pytest.mark.parametrize(
    "device, message",
    [
        ((2, 1), r"expected tensors on the CPU, got one on cuda:1: this library has no CUDA kernels"),
        ((10, 0), r"input 'a': expected a tensor on the CPU, got one on DLPack's device 10"),
    ],
)
def test_tensors_on_other_devices(library, device, message):
    """tests/ops_build/tvm_host plays TVM-FFI for those on CUDA."""
    ops = opgate.tvm_ffi.load(library)
    with pytest.raises(ValueError, match=f"opgate::MyAdd: {message}"):
        ops.my_add(Claimed(*device), Claimed(*device))
    with pytest.raises(ValueError, match=r"input 'b': expected a tensor on the CPU, got one on"):
        ops.my_add(np.zeros(3, F32), Claimed(*device))
