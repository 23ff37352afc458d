"""Runs the GoogleTest programs of the core and of TensorRT's expressions: in `make test-all` under the sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from opgate.ops_build.building.options import SOURCE
from tests import PROJECT
from tests.conftest import ALL

HERE = Path(__file__).parent


def run_tests(program: str, *definitions: str) -> None:
    """Builds a test program of tests/ops_build/kernel_toolkit and runs it."""
    work = PROJECT / "build" / "core_tests"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    for command in (
        ["cmake", "-S", str(HERE / "core"), "-B", str(work), *generator, f"-DSANITIZE={ALL}", *definitions],
        ["cmake", "--build", str(work), "--parallel", "2", "--target", program],
        [str(work / program), "--gtest_brief=1"],
    ):
        finished = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "PASSED" in finished.stdout


def test_the_core() -> None:
    run_tests("core_tests")


def test_the_walk_over_tensorrts_expressions(tensorrt_headers: Path) -> None:
    cuda_headers = SOURCE / "cuda_emulation" / "include"
    run_tests("expressions_tests", f"-DTENSORRT_INCLUDE={tensorrt_headers}", f"-DCUDA_INCLUDE={cuda_headers}")
