"""The kernels under the address and undefined-behaviour sanitizers, inside ONNX Runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opgate.ops_build.building.build import Build, build
from opgate.ops_build.building.options import SOURCE, BuildOptions, out_of_tree
from opgate.ops_build.op_table import read_table
from tests import PROJECT
from tests.conftest import FIXTURE_OPS, silent, thorough

# tests/ops_build/test_core.py and the emulated CUDA kernels run under the sanitizers in `make test`.
pytestmark = thorough("the core, an adapter and all kernels compile once more")

SANITIZERS = "address,undefined"
#: The tests of the ops that decode pictures, with damaged ones.
PICTURES = ("test_image_ops.py", "test_bitmaps.py", "test_picture_fits.py", "test_fuzzed_files.py")
#: An op that reads past its memory, in the library with the others.
OVERRUN = """
#include "kernel_toolkit/op.h"
OPGATE_OP(Overrun, "Overrun(x: f32[n]) -> (y: f32[n])", "Reads past its scratch memory.")
namespace opgate::ops { struct OverrunCpu { Status operator()(Context&, const Inputs&, const Attributes&, Outputs& out)
const { std::vector<float> v(4); volatile int i = 4; *out["y"].data<float>() = v.data()[i]; return {}; } }; }
OPGATE_CPU_KERNEL(Overrun, opgate::ops::OverrunCpu)
"""


def runtime(name: str) -> str:
    """Returns the path of a runtime library of the compiler. Python isn't linked with it, so it must be preloaded."""
    path = subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(path).is_absolute():
        pytest.skip(f"g++ has no {name}")
    return path


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    options = "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1"
    preload = f"{runtime('libasan.so')}:{runtime('libstdc++.so.6')}"
    return os.environ | {"LD_PRELOAD": preload, "ASAN_OPTIONS": options, "UBSAN_OPTIONS": "print_stacktrace=1"}


def sanitized(options: BuildOptions) -> Path:
    from dataclasses import replace

    options = replace(options, sanitize=SANITIZERS, engines=("onnxruntime",), cuda="")
    return build(options, silent).libraries["onnxruntime"]


@pytest.fixture(scope="module")
def library() -> Path:
    output = PROJECT / "build" / "sanitized"
    bad = output / "bad_ops"
    (bad / "overrun").mkdir(parents=True, exist_ok=True)
    (bad / "overrun" / "overrun.cpp").write_text(OVERRUN)
    return sanitized(BuildOptions(output, ops=(SOURCE / "ops", bad)))


def run(command: list[str], environment: dict[str, str]) -> str:
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, cwd=PROJECT)
    output = finished.stdout + finished.stderr
    assert finished.returncode == 0, output[-8000:]
    assert "ERROR: AddressSanitizer" not in output and "runtime error" not in output, output[-8000:]
    return output


def test_every_case_of_every_op(library: Path, built: Build, environment: dict[str, str]) -> None:
    names = [op.name for op in read_table(built.libraries["onnxruntime"])]
    parts = [names[::2], names[1::2]]
    command = [sys.executable, "-m", "opgate", "verify", "--library", str(library)]
    with ThreadPoolExecutor(2) as pool:
        for output in pool.map(lambda part: run([*command, *part], environment), parts):
            assert " 0 failed" in output


def test_the_adapter(environment: dict[str, str]) -> None:
    fixtures = sanitized(out_of_tree(FIXTURE_OPS, PROJECT / "build" / "sanitized_fixture_ops"))
    # These are left out: under the sanitizer's allocator, an allocation that fails ends the process.
    tests = str(Path(__file__).with_name("test_onnxruntime_adapter.py"))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "not runs_out and not allocation_that_fails",
        tests,
    ]
    assert " passed" in run(command, environment | {"OPGATE_TEST_FIXTURE_LIBRARY": str(fixtures)})


def test_damaged_pictures(library: Path, environment: dict[str, str]) -> None:
    tests = [str(PROJECT / "tests" / "ops" / name) for name in PICTURES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    assert " passed" in run(command, environment | {"OPGATE_OPS_LIBRARY": str(library)})


def test_a_fault_is_found(library: Path, environment: dict[str, str]) -> None:
    """Checks these tests themselves: an op that reads past its memory must end the process with a report."""
    program = (
        "import sys, numpy; from pathlib import Path; from opgate.ops_build.adapters.onnxruntime.engine import OnnxRuntimeEngine;"
        "from opgate.ops_build.op_table import read_table; from opgate.ops_build.case import Case; library = Path(sys.argv[1]);"
        "(op,) = [op for op in read_table(library) if op.name == 'Overrun'];"
        "print(OnnxRuntimeEngine(library).run(op, Case('x', {'x': numpy.ones(1, 'f')}), {}))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program, str(library)], env=environment, capture_output=True, text=True, cwd=PROJECT
    )
    assert finished.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in finished.stderr
