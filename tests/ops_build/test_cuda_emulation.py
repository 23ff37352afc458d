"""The CUDA kernels on the CPU: the cases of the ops under the address and undefined-behaviour sanitizers.

ops_build/cuda_emulation/include/emulation.h says which errors this finds and which only a GPU shows.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opgate.ops_build.adapters.tensorrt.engine import PluginEngine
from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.case import Case
from opgate.ops_build.cuda_emulation.build import rewritten
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.engines.comparison import difference
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.op_table import Op, snake_case
from opgate.ops_build.runner.cases_file import CaseFailed
from opgate.ops_build.runner.engine import KernelsEngine
from opgate.ops_build.verification.verify import References, verify_cell
from tests import PROJECT
from tests.conftest import ALL, thorough
from tests.ops_build.cuda_faults import FAULTS, LARGE_FAULTS, SMALL
from tests.ops_build.emulation import OPS, build, onnxruntime_include, tensorrt_include
from tests.ops_build.faults import Fault

SLOW = thorough("the kernels compile anew for each fault")
KERNELS = sorted((SOURCE / "ops").glob("*/*.cu"))


def engine(program: Path, *arguments: str, seed: int = 0) -> KernelsEngine:
    return KernelsEngine(program, arguments, os.environ | {"EMULATION_SEED": str(seed)})


@pytest.fixture(scope="module")
def program() -> Path:
    return build()


def op_of(program: Path, name: str) -> Op:
    return next(op for op in engine(program).ops() if snake_case(op.name) == name)


@dataclass(frozen=True)
class Way:
    """How a program calls the kernels, and the order of the emulated threads."""

    arguments: tuple[str, ...] = ()
    seed: int = 0
    #: `make test` takes every so many of the small cases: they show what the calls around a kernel do. 0: all of them,
    #: and a few of the large ones, whose grids have several blocks.
    small: int = 0

    def engine(self, program: Path) -> KernelsEngine:
        environment = os.environ | {"EMULATION_SEED": str(self.seed)}
        if self.arguments == PLUGINS.arguments:
            return PluginEngine(program, None, environment)
        return KernelsEngine(program, self.arguments, environment)

    def cases(self, cases: list[Case]) -> list[Case]:
        if ALL:
            return cases
        small: list[Case] = []
        large: list[Case] = []
        for case in cases:
            (small if all(np.size(array) <= 600 for array in arrays_of(case)) else large).append(case)
        if self.small:
            return small[:: self.small]
        return small + large[:: max(1, -(-len(large) // _LARGE))]


#: How many of the large cases of an op `make test` takes for each choice of dtypes.
_LARGE = 3

#: Through the adapters, the kernels run as ONNX Runtime, TensorRT and TVM-FFI call them.
ONNX_RUNTIME, PLUGINS = Way(("--onnxruntime", ""), small=1), Way(("--plugins", ""), seed=3, small=1)
WAYS = [Way(("--unaligned", "--padded"), seed=7), Way(("--graph",), small=3), Way(("--streams", "--exact"), small=3)]
WAYS += [Way(("--written",), small=1)]
WAYS += [Way(("--tvm", ""), seed=3, small=1)]
WAYS += [Way(), Way(seed=1)] if ALL else []
WAYS += [ONNX_RUNTIME] if onnxruntime_include() else []
WAYS += [PLUGINS] if tensorrt_include() else []


@pytest.fixture(scope="module")
def engines(program: Path) -> Iterator[list[tuple[Way, KernelsEngine]]]:
    running = [(way, way.engine(program)) for way in WAYS]
    yield running
    for _, one in running:
        one.close()


@pytest.mark.parametrize("name", OPS)
def test_every_case(program: Path, engines: list[tuple[Way, KernelsEngine]], name: str) -> None:
    op = op_of(program, name)
    folder = folder_of(op, [SOURCE / "ops"])
    for types in op.type_choices():
        cases, references = folder.cases(numpy_types(types)), References(op, folder)
        for way, running in engines:
            cell = verify_cell(op, types, references, way.cases(cases), running)
            assert not cell.failures, f"{cell.types}, {way}: {cell.failures[:5]}"
            refused = way == PLUGINS and re.search("take no tensors of (f64|u8)$", cell.skipped or "")
            assert cell.passed or refused, cell


def arrays_of(case: Case) -> list[Any]:
    return [array for value in case.inputs.values() for array in (value if isinstance(value, list) else [value])]


def test_launches_are_rewritten() -> None:
    launch = "::emulation::launch(::emulation::configuration(1, 2), [](auto... arguments) { %s(arguments...); }, a, b);"
    assert rewritten("run<<<1, 2>>>(a, b);") == launch % "run"
    assert rewritten("x::run<A<int>, 3>\n    <<<1, 2>>>(a, b);") == launch % "x::run<A<int>, 3>"
    with pytest.raises(ValueError, match=r"line 2: expected a launch .* got \(\*kernel\)<<<"):
        rewritten("\n(*kernel)<<<1, 2>>>(a, b);")


def test_optional_outputs_that_nobody_wants(program: Path) -> None:
    running = engine(program)
    for op in running.ops():
        required = [output.name for output in op.outputs if not output.optional]
        for types in op.type_choices() if len(required) < len(op.outputs) else ():
            for case in folder_of(op, [SOURCE / "ops"]).cases(numpy_types(types)):
                if case.error or max(np.size(array) for array in case.inputs.values()) > (10_000 if ALL else 600):
                    continue
                every = running.run(op, case, types)
                outputs = running.run_wanted(op, case, required).outputs
                for output, array in zip(op.outputs, outputs, strict=True):
                    assert (array is not None) == (output.name in required)
                    assert array is None or not difference(array, every[output.name], (0, 0)), case.name
    running.close()


def test_the_program_goes_on_after_a_refusal(program: Path) -> None:
    op, running = op_of(program, "my_add"), engine(program)
    one = np.ones(3, np.float32)
    with pytest.raises(CaseFailed, match="input 'b'"):
        running.run(op, Case("", {"a": one, "b": np.ones(2, np.float32)}), {"T": "f32"})
    assert running.run(op, Case("", {"a": one, "b": one}), {"T": "f32"})["y"].tolist() == [3, 3, 3]
    running.close()


def compiled(folder: Path, source: str) -> Path:
    """Compiles a program with the emulation."""
    (folder / "main.cpp").write_text(source)
    here, program = SOURCE / "cuda_emulation", folder / "main"
    command = ["g++", "-std=c++20", "-march=x86-64-v3", "-fsanitize=address", f"-I{SOURCE}", f"-I{here / 'include'}"]
    sources = [str(folder / "main.cpp"), str(here / "emulation.cpp")]
    finished = subprocess.run([*command, *sources, "-o", str(program)], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return program


def said_by(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}, capture_output=True, text=True)


def test_an_error_does_not_stick(tmp_path: Path) -> None:
    """CUDA keeps the last error, and the next good launch would report it."""
    program = compiled(
        tmp_path,
        '#include "kernel_toolkit/cuda.h"\n'
        "#include <cstdio>\n"
        "using namespace opgate::cuda;\n"
        'void say(bool failed) { std::printf("%d%d ", failed, cudaGetLastError() != cudaSuccess); }\n'
        "int main() {\n"
        "  float host = 1;\n"
        "  auto* array = new DeviceArray<float>;\n"
        "  CUstream_st stream;\n"
        "  say(!copy(&host, &host, 4, &stream).ok());\n"
        "  say(!read(&host, &host, 4, &stream).ok());\n"
        "  { DeviceGuard guard(7); }\n"
        "  say(true);\n"
        "  emulation::captures = 1;\n"
        "  say(!array->assign(std::span<const float>(&host, 1)).ok());\n"
        "  emulation::captures = 0;\n"
        "  say(!array->assign(std::span<const float>(&host, 1)).ok());\n"
        "  emulation::captures = 1;\n"
        "  delete array;\n"
        "  say(true);\n"
        "}\n",
    )
    said = said_by(program)
    assert said.stdout.split() == ["10", "10", "10", "10", "00", "10"], said.stderr


#: A warp multiplies two tiles twice, after a fault.
PRODUCT = """#include <cuda_runtime.h>
#include <mma.h>
#include <cstdio>
#include <cstdlib>
using namespace nvcuda::wmma;

template <typename T, typename Narrow>
void multiply(int fault, Narrow narrow) {
  alignas(32) __shared__ T a[16 * 24 + 8], b[16 * 24];
  alignas(32) __shared__ float c[16 * 18];
  const unsigned lane = threadIdx.x;
  for (unsigned i = lane; i < 16 * 24; i += 32) {
    a[i] = narrow(float(i % 7) - 3);
    b[i] = narrow(float(i % 5) - 2);
  }
  __syncwarp();
  fragment<matrix_a, 16, 16, 16, T, row_major> left;
  fragment<matrix_b, 16, 16, 16, T, col_major> right;
  fragment<accumulator, 16, 16, 16, float> sums;
  fill_fragment(sums, 1.0f);
  switch (fault) {
    case 1: load_matrix_sync(left, a + 8, 24); break;
    case 2: load_matrix_sync(left, a, 20); break;
    case 3: store_matrix_sync(c, sums, 18, mem_row_major); break;
    case 4: load_matrix_sync(left, a + lane / 16 * 16, 24); break;
    case 5: if (lane) return; break;
  }
  load_matrix_sync(left, a, 24);
  load_matrix_sync(right, b, 24);
  mma_sync(sums, left, right, sums);
  mma_sync(sums, left, right, sums);
  store_matrix_sync(c, sums, 16, mem_col_major);
  __syncwarp();
  if (lane) return;
  int wrong = 0;
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 16; ++column) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += ((row * 24 + k) % 7 - 3) * ((column * 24 + k) % 5 - 2);
      wrong += c[column * 16 + row] != 1 + 2 * sum;
    }
  }
  std::printf("%d wrong\\n", wrong);
}

int main(int, char** arguments) {
  CUstream_st stream;
  const int fault = std::atoi(arguments[1]);
  emulation::launch({1, 32, &stream}, [=] { multiply<__half>(fault, __float2half_rn); });
  emulation::launch({1, 32, &stream}, [=] { multiply<__nv_bfloat16>(fault, __float2bfloat16_rn); });
}
"""


def test_tensor_cores(tmp_path: Path) -> None:
    program = compiled(tmp_path, PRODUCT)
    assert said_by(program, "0").stdout == "0 wrong\n0 wrong\n"
    for fault, says in enumerate(
        [
            "load_matrix_sync .*: the pointer is no multiple of 32 bytes",
            "load_matrix_sync .*: rows of 20 elements are no multiple of 16 bytes",
            "store_matrix_sync .*: rows of 18 elements are no multiple of 16 bytes",
            "load_matrix_sync .*: the lanes of a warp want different tiles",
            "a deadlock: 1 threads wait at load_matrix_sync",
        ],
        1,
    ):
        assert re.search(says, said_by(program, str(fault)).stderr)


def test_no_kernel_waits_or_allocates() -> None:
    for kernel in [*KERNELS, *(SOURCE / "kernel_toolkit").glob("*.cuh")]:
        calls = re.findall(r"cuda(?:Malloc|Free)\w*|cuda\w*Synchronize|cudaMemcpy\b|cudaMemset\b", kernel.read_text())
        assert not calls, f"{kernel.name}: {calls}"


@pytest.fixture(scope="module")
def sources(program: Path) -> Path:
    """Copies the sources, so that the tests can write faults into the copy. The copy uses the build folder of the
    unchanged sources, so that only changed files are compiled. The next run compiles the right ones again."""
    copy = PROJECT / "build" / "cuda_emulation_faults"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def failures_of(program: Path, name: str) -> list[str]:
    op, running = op_of(program, name), engine(program, seed=7)
    folder = folder_of(op, [SOURCE / "ops"])
    failures = []
    for types in op.type_choices():
        cell = verify_cell(op, types, References(op, folder), folder.cases(numpy_types(types)), running)
        failures += cell.failures
        if failures:
            break
    running.close()
    return failures


@SLOW
@pytest.mark.parametrize("small", SMALL, ids=lambda small: small.op)
def test_kernels_for_large_inputs(sources: Path, small: Fault) -> None:
    with small.written_into(sources):
        assert not failures_of(build(source=sources), small.op)


@SLOW
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found(sources: Path, fault: Fault) -> None:
    with fault.written_into(sources):
        failures = failures_of(build(source=sources), fault.op)
    assert any(fault.says in text for text in failures), failures[:3]


@SLOW
@pytest.mark.parametrize("fault", LARGE_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_for_large_inputs_is_found(sources: Path, fault: Fault) -> None:
    small = next(small for small in SMALL if small.op == fault.op)
    with small.written_into(sources), fault.written_into(sources):
        failures = failures_of(build(source=sources), fault.op)
    assert any(fault.says in text for text in failures), failures[:3]
