from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from opgate.ops_build.adapters.tensorrt.toolchain import find_headers
from opgate.ops_build.building.options import BuildOptions, out_of_tree
from opgate.ops_build.building.toolchain import LeftOut, toolchain_folder
from opgate.ops_build.op_table import Op, read_table

#: The name of the property that test_sass.py records for each kernel function. A property also reaches the process
#: that prints the summary, if the tests run in others.
REGISTERS = "registers"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the registers of the CUDA kernels, if they were compiled."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    lines = [line for report in reports for name, line in report.user_properties if name == REGISTERS]
    if lines:
        terminalreporter.section("registers of the CUDA kernels for sm_90")
        terminalreporter.write_line(f"{'op':24}{'kernel':24}{'':>4}{'registers':>12}{'warps':>12}")
        for line in lines:
            terminalreporter.write_line(str(line))


def op_of_ones_own(folder: Path, name: str, source: str) -> BuildOptions:
    """Writes an op folder with a single source to `folder`, and returns how to build it, for ONNX Runtime on the CPU. All
    such builds have one domain, so that they share the objects of the core and of the adapter in the compiler's cache."""
    (folder / name).mkdir()
    (folder / name / f"{name}.cpp").write_text(f'#include "kernel_toolkit/op.h"\n{source}')
    return replace(out_of_tree(folder, domain="own"), engines=("onnxruntime",), cuda="")


@pytest.fixture(scope="session")
def tensorrt_headers() -> Path:
    """The folder of TensorRT's headers. Skips the test if the machine has none."""
    try:
        return find_headers(toolchain_folder())[0]
    except LeftOut as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def op_named(library: Path, fixture_library: Path) -> Callable[[str], Op]:
    ops = {op.name: op for op in (*read_table(library), *read_table(fixture_library))}
    return lambda name: ops[name]


def symbols(library: Path, which: str) -> set[str]:
    """Returns a library's dynamic symbols without their versions. `which` is --defined-only or --undefined-only."""
    listed = subprocess.run(["nm", "-D", which, str(library)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].split("@")[0] for line in listed.splitlines()}
