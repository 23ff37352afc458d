"""The instruction sets of an op library: it runs on every processor of its architecture, and uses what one has."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opgate import cpu
from opgate.ops_build.building.build import Build, build
from opgate.ops_build.building.manifest import listed_libraries
from opgate.ops_build.building.options import SOURCE, BuildOptions
from opgate.ops_build.op_table import cpu_level
from tests import PROJECT
from tests.conftest import ALL, OPTIONS, silent
from tests.ops_build.choosing import folder_of_ops

#: What a library calls its levels, the lowest first; what the manifest calls those above the baseline; what QEMU and
#: OpenBLAS call a processor of the baseline; and an instruction that it lacks.
LEVELS, LISTED, LOWEST, OPENBLAS, HIGHER = {
    "x86_64": (
        ("baseline", "x86-64-v3", "x86-64-v4"),
        ["v3", "v4"],
        "Nehalem",
        "Nehalem",
        "vpxor %ymm0, %ymm0, %ymm0",
    ),
    "aarch64": (
        ("baseline", "armv8.2-a"),
        ["v8_2"],
        "cortex-a53",
        "CORTEXA53",
        ".arch armv8.2-a+dotprod; udot v0.4s, v1.16b, v2.16b",
    ),
}.get(platform.machine(), (("baseline",), [], "", "", ""))
#: Elementwise ops, and one that sorts by functions of the C++ library. `make test-all` takes all ops.
OPS = ("leaky_relu", "mish", "my_add", "multi_class_nms")


@pytest.fixture(scope="module")
def options() -> BuildOptions:
    output = PROJECT / "build" / "cpu_levels"
    ops = SOURCE / "ops" if ALL else folder_of_ops(output / "ops", OPS)
    return BuildOptions(output, ops=(ops,), arch="", engines=("onnxruntime",), cuda="")


@pytest.fixture(scope="module")
def library(options: BuildOptions) -> Path:
    return build(options, silent).libraries["onnxruntime"]


def highest() -> str:
    """Returns the highest level of this machine, on x86-64 as the C library sees it."""
    if platform.machine() != "x86_64":
        has = [not cpu.missing(level) for level in cpu.levels().values()]
        return [name for name, there in zip(LEVELS, [True, *has], strict=True) if there][-1]
    loader = "/lib64/ld-linux-x86-64.so.2"
    text = subprocess.run([loader, "--help"], capture_output=True, text=True, check=True).stdout
    supported = re.findall(r"(x86-64-v\d) \(supported", text)
    return next((level for level in reversed(LEVELS) if level in supported), "baseline")


def small_cases(library: Path, *emulator: str, **environment: str) -> tuple[str, list[str]]:
    """Runs small cases of all ops. Returns the level of the library and the other lines that the program printed."""
    command = [*emulator, sys.executable, "-m", "tests.ops_build.small_cases", str(library)]
    finished = subprocess.run(
        command, capture_output=True, text=True, cwd=PROJECT, timeout=900, env=os.environ | environment
    )
    assert finished.returncode == 0, (finished.returncode, finished.stdout[-3000:], finished.stderr[-3000:])
    level, *lines = finished.stdout.splitlines()
    return level, lines


def test_the_library_has_all_levels_and_chooses_the_highest(library: Path, options: BuildOptions) -> None:
    for entry in listed_libraries(options):
        assert (entry["flags"], entry["cpu_levels"]) == ("", LISTED), entry["file"]
    assert cpu_level(library) == highest()


@pytest.mark.skipif(ALL, reason="the shared build of make test-all has every instruction set")
def test_a_build_for_this_machine_has_its_level(built: Build) -> None:
    for entry in listed_libraries(OPTIONS):
        assert entry["flags"].split("+")[0] == f"-march={highest()}" and not entry["cpu_levels"]
    assert cpu_level(built.libraries["onnxruntime"]) == highest()


@pytest.mark.parametrize("level", LEVELS)
def test_a_lower_level_can_be_asked_for(library: Path, level: str) -> None:
    got, lines = small_cases(library, OPGATE_CPU_LEVEL=level)
    assert got == min(level, highest(), key=LEVELS.index)
    assert len(lines) == 1 and int(lines[0].split()[0]) > 50, lines


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> str:
    """QEMU, which ends a program at an instruction that the emulated processor lacks."""
    qemu = shutil.which(f"qemu-{platform.machine()}")
    if not qemu:
        pytest.skip(f"qemu-{platform.machine()} is not installed: apt-get install qemu-user")
    folder = tmp_path_factory.mktemp("higher")
    (folder / "higher.c").write_text(f'int main(void) {{ __asm__ volatile("{HIGHER}"); return 0; }}')
    subprocess.run(["gcc", folder / "higher.c", "-o", folder / "higher"], check=True)
    assert subprocess.run([qemu, "-cpu", LOWEST, folder / "higher"]).returncode == -signal.SIGILL
    return qemu


def test_a_processor_of_the_baseline(library: Path, emulator: str) -> None:
    # A machine may name its own processor to NumPy's BLAS, which then uses its instructions.
    level, lines = small_cases(library, emulator, "-cpu", LOWEST, OPENBLAS_CORETYPE=OPENBLAS)
    assert level == "baseline"
    assert len(lines) == 1 and int(lines[0].split()[0]) > 50, lines
