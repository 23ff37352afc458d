"""The machine code of the CUDA kernels for Hopper: how they load, and which registers they use. It needs nvcc and
nvdisasm, and no GPU. The registers of the kernels are printed at the end of the test run."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.building.toolchain import LeftOut, find_cuda
from opgate.ops_build.op_folder import OpFolder, op_folders
from tests.conftest import thorough
from tests.ops_build.conftest import REGISTERS

pytestmark = thorough("the kernels compile once more, and optimized")

KERNELS = [folder for folder in op_folders(SOURCE / "ops") if folder.has_cuda_kernel]
#: Instructions that compute with floating-point numbers. HFMA2 isn't among them, because the compiler writes constants
#: with it.
ARITHMETIC = re.compile(r"^(FADD|FMUL|FFMA|HADD2|HMUL2|F2F|F2FP|DADD|DMUL|DFMA)\b")


@dataclass(frozen=True)
class Kernel:
    """A kernel with its template arguments. `code` has its instructions without operands."""

    op: str
    name: str
    registers: int
    spilled: int
    code: Sequence[str]

    @property
    def function(self) -> str:
        """The name without template arguments and namespaces."""
        return re.sub(r"<.*", "", self.name).split("::")[-1]

    @property
    def arguments(self) -> list[str]:
        """The template arguments."""
        inside = re.search(r"<(.*)>", self.name)
        return re.split(r", (?![^<]*>)", inside[1]) if inside else []


def disassembler() -> Path:
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    for folder in folders:
        for file in Path(folder).glob("*/bin/nvdisasm"):
            file.chmod(0o755)
            return file
    pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")


def compiled(nvcc: Path, source: Path, target: Path) -> str:
    """Compiles a kernel for Hopper as CMakeLists.txt does. Returns what the assembler says about its resources."""
    flags = ["-std=c++20", "-O3", "-arch=sm_90", "-cubin", "-Xptxas=-v", f"-I{SOURCE}"]
    finished = subprocess.run([nvcc, *flags, "-o", target, source], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-4000:]
    return finished.stderr


def demangled(names: Sequence[str]) -> list[str]:
    return subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    ).stdout.splitlines()


def kernels_of(source: Path, resources: str, sass: str) -> Iterator[Kernel]:
    code: dict[str, list[str]] = {}
    current: list[str] = []
    for line in sass.splitlines():
        if section := re.match(r"\.text\.(\S+):", line):
            current = code.setdefault(section[1], [])
        elif instruction := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?(\S+)", line):
            current.append(instruction[1].rstrip(";"))
    pattern = (
        r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers"
    )
    found = re.findall(pattern, resources, re.DOTALL)
    names = demangled([name for name, *_ in found])
    for (mangled, stores, loads, registers), name in zip(found, names, strict=True):
        plain = re.sub(r"\(.*", "", name.removeprefix("void ").replace("(anonymous namespace)::", ""))
        yield Kernel(source.stem, plain, int(registers), int(stores) + int(loads), code[mangled])


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[Kernel]:
    """All kernels of all ops."""
    try:
        nvcc = find_cuda("90").nvcc
    except LeftOut as reason:
        pytest.skip(str(reason))
    program, folder = disassembler(), tmp_path_factory.mktemp("cubins")

    def build(op: OpFolder) -> list[Kernel]:
        source = op.path / f"{op.path.name}.cu"
        if text := op.generated_sources().get(source.name):
            source = folder / source.name
            source.write_text(text)
        cubin = folder / f"{source.stem}.cubin"
        resources = compiled(nvcc, source, cubin)
        sass = subprocess.run([program, "-c", cubin], capture_output=True, text=True, check=True).stdout
        return list(kernels_of(source, resources, sass))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [kernel for kernels in pool.map(build, KERNELS) for kernel in kernels]


def table(kernels: Sequence[Kernel]) -> Iterator[str]:
    """Yields a line for each kernel function: how many instances it has, and their registers."""
    groups: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in kernels:
        if not kernel.name.startswith("cub::"):
            groups.setdefault((kernel.op, kernel.function), []).append(kernel)
    for (op, function), instances in groups.items():
        registers = sorted(kernel.registers for kernel in instances)
        # A multiprocessor of Hopper has 65,536 registers and 64 warps.
        warps = [min(64, 65536 // (32 * (-(-count // 8) * 8))) for count in (registers[-1], registers[0])]
        yield f"{op:24}{function:24}{len(instances):4}{registers[0]:8} to {registers[-1]:3}{warps[0]:8} to {warps[1]:2}"


def test_no_kernel_spills(kernels: Sequence[Kernel], record_property: Callable[[str, object], None]) -> None:
    for line in table(kernels):
        record_property(REGISTERS, line)
    assert len({kernel.op for kernel in kernels}) == len(KERNELS)
    # CUB's scan spills by its own choice. f64 is for the check of a gradient.
    named = [kernel.name for kernel in kernels if kernel.spilled and "double" not in kernel.arguments]
    assert not [name for name in named if not name.startswith("cub::")]


def test_elementwise_kernels_load_and_store_16_bytes_at_once(kernels: Sequence[Kernel]) -> None:
    vectors = [kernel for kernel in kernels if kernel.function == "map_lanes" and kernel.arguments[0] != "1"]
    assert {"leaky_relu", "mish_backward", "my_add", "swish"} <= {kernel.op for kernel in vectors}
    for kernel in vectors:
        _lanes, _computed, _output, _formula, *inputs = kernel.arguments
        wide = kernel.code.count("LDG.E.128") + kernel.code.count("LDG.E.128.CONSTANT")
        assert wide == len(inputs), (kernel.name, wide)
        assert kernel.code.count("STG.E.128") == 1, kernel.name


def test_rms_norm_loads_all_before_it_computes(kernels: Sequence[Kernel]) -> None:
    """A thread that waits for one load after the other hides no latency."""
    rows = [kernel for kernel in kernels if kernel.op == "rms_norm" and kernel.arguments[1] != "1"]
    assert len(rows) > 20
    for kernel in rows:
        held, residual = int(kernel.arguments[3]), kernel.arguments[4] == "true"
        first = next(i for i, name in enumerate(kernel.code) if ARITHMETIC.match(name))
        before = [name for name in kernel.code[:first] if name.startswith("LDG.E.128")]
        assert len(before) == held * (1 + residual), (kernel.name, before)


def test_16_bit_types_use_fast_instructions(kernels: Sequence[Kernel]) -> None:
    """An exact division or exponential would be a call or a long sequence."""
    of_one_lane = {
        kernel.arguments[2]: kernel for kernel in kernels if kernel.op == "mish" and kernel.arguments[0] == "1"
    }
    for name in ("opgate::f16", "opgate::bf16"):
        assert len(of_one_lane[name].code) < len(of_one_lane["float"].code), name
