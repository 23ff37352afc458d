"""Counts what the CUDA kernels are made of, and bounds the time of each op on a GPU, without one.

    python -m opgate.ops_build.gpu_check.bounds --output benchmarks/results/gpu_bounds.md

For each kernel: registers, shared memory, spills and instructions, as nvcc compiles it for sm_90. For each op at its
large case: the bytes that it reads and writes at least once, the operations that its result needs, and the time that
these take at the rates of an H100 and an L4. No kernel can be faster; how much slower one is only a GPU shows. Where
a page of `make gpu-check` lies beside the output, its times are held against the bound of that GPU.

With `--before DIR`, a checkout of an earlier version, the kernels of both are listed.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from rich.console import Console
from rich.progress import track

from opgate.cpu import usable_cores
from opgate.ops_build.adapters.numpy.functions import public_names
from opgate.ops_build.adapters.numpy.library import load
from opgate.ops_build.building.options import SOURCE, BuildOptions
from opgate.ops_build.building.toolchain import LeftOut, find_cuda
from opgate.ops_build.case import Case
from opgate.ops_build.gpu_check.items import Item, items_of, large_case, measured
from opgate.ops_build.op_folder import op_folders
from opgate.ops_build.op_table import Op, snake_case
from opgate.ops_build.verification.verify import types_label

ARCHITECTURE = "90"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's rates, from its data sheet: bytes per second of memory, operations per second of f32 outside tensor
    cores, and of f16 in them, without sparsity."""

    name: str
    bandwidth: float
    f32: float
    f16: float


#: NVIDIA's data sheets of H100 SXM, H200 SXM and L4.
GPUS = (
    Gpu("H100", 3.35e12, 67e12, 989e12),
    Gpu("L4", 300e9, 30.3e12, 121e12),
)
MEASURED = Gpu("NVIDIA H200", 4.8e12, 67e12, 989e12)


@dataclass(slots=True)
class Kernel:
    """A kernel as nvcc has compiled it. `loop` is the number of instructions of the longest loop that has no loop in
    it. `loads` counts those from global memory by their bytes. `calls` are those of functions, such as the division of
    64-bit integers."""

    name: str
    registers: int = 0
    shared: int = 0
    spilled: int = 0
    instructions: int = 0
    loop: int = 0
    doubles: int = 0
    calls: int = 0
    tensor: int = 0
    loads: dict[int, int] = field(default_factory=dict)

    def cells(self) -> tuple[str, ...]:
        """Returns the columns of the table."""
        loads = ", ".join(f"{size}: {count}" for size, count in sorted(self.loads.items()))
        numbers = (self.registers, self.shared, self.spilled, self.instructions, self.loop)
        return (*map(str, (*numbers, self.doubles, self.calls, self.tensor)), loads)


def kernels_of(source: Path, op: str, nvcc: Path, folder: Path) -> list[Kernel]:
    """Compiles the CUDA kernels of an op. `source` is a folder like ops_build. Raises RuntimeError."""
    cubin = folder / f"{op}.cubin"
    command = [str(nvcc), "-std=c++20", "-O3", "-DNDEBUG", "-Xcompiler=-w", "-cubin", f"-arch=sm_{ARCHITECTURE}"]
    command += ["-Xptxas", "-v", f"-I{source}", str(source / "ops" / op / f"{op}.cu"), "-o", str(cubin)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{op}: nvcc failed:\n{done.stderr[-2000:]}")
    sass = subprocess.run([_disassembler(nvcc), "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    counted = dict(_counted(sass))
    kernels = []
    for symbol, text in re.findall(r"entry function '(\w+)'.*?\n(.*?Used [^\n]*)", done.stderr, re.DOTALL):
        if symbol.startswith("_ZN3cub"):
            continue  # CUB's are not opgate's
        kernel = counted[symbol]
        kernel.registers = int(_number(r"Used (\d+) registers", text))
        kernel.shared = int(_number(r"(\d+) bytes smem", text))
        kernel.spilled = int(_number(r"(\d+) bytes spill stores", text))
        kernels.append(kernel)
    names = _demangled([kernel.name for kernel in kernels])
    for kernel, name in zip(kernels, names, strict=True):
        kernel.name = name
    return kernels


def _disassembler(nvcc: Path) -> str:
    """Returns the path of nvdisasm, which is in the toolkit. Raises RuntimeError."""
    packages = Path(sysconfig.get_path("purelib")).glob("nvidia/cu*/bin/nvdisasm")
    found = next((path for path in (nvcc.with_name("nvdisasm"), *packages) if path.is_file()), None)
    program = str(found) if found else shutil.which("nvdisasm")
    if program is None:
        raise RuntimeError("there is no nvdisasm beside nvcc, in the package nvidia-cuda-nvcc or on PATH")
    return program


def _number(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else "0"


def _demangled(symbols: Sequence[str]) -> list[str]:
    """Returns names as in the source: normalize<f16, 8>, without what opgate's own namespaces add."""
    program = shutil.which("c++filt")
    if program is None or not symbols:
        return list(symbols)
    text = subprocess.run([program, "--no-params"], input="\n".join(symbols), capture_output=True, text=True).stdout
    names = []
    for line in text.splitlines():
        name = re.sub(r"^void |\(anonymous namespace\)::|\((?:int|bool|long|unsigned \w+)\)", "", line)
        names.append(re.sub(r"\b(?:\w+::)+", "", name))
    return names


def _counted(sass: str) -> Iterator[tuple[str, Kernel]]:
    """Yields symbol and counts of each kernel of a disassembly."""
    for section in re.split(r"\n\s*\.section\s+\.text\.", sass)[1:]:
        symbol = section.split(",", 1)[0]
        kernel = Kernel(symbol)
        labels: dict[str, int] = {}
        loops: list[tuple[int, int]] = []
        for line in section.splitlines():
            if label := re.match(r"\s*\.(L_\w+):", line):
                labels[label[1]] = kernel.instructions
            found = re.match(r"\s*(?:/\*\w+\*/)?\s+(?:@!?\w+\s+)?([A-Z][\w.]*)(.*?);", line)
            if found is None or found[1] == "NOP":
                continue
            kernel.instructions += 1
            code, rest = found[1], found[2]
            kernel.doubles += bool(re.match(r"D(ADD|MUL|FMA|SETP|MNMX)|F2F\.F64|MUFU\.R\w*64H", code))
            kernel.calls += code.startswith("CALL")
            kernel.tensor += code.partition(".")[0].endswith("MMA")
            if code.startswith(("LDG", "LD.E")):
                width = re.search(r"\.(128|64|U?S?16|U?S?8)\b", code)
                size = int(re.sub(r"\D", "", width[1])) // 8 if width else 4
                kernel.loads[size] = kernel.loads.get(size, 0) + 1
            if code.startswith("BRA") and (target := re.search(r"\.(L_\w+)", rest)) and target[1] in labels:
                loops.append((labels[target[1]], kernel.instructions))
        inner = [
            (a, b) for a, b in loops if b - a > 1 and not any((c, d) != (a, b) and a <= c and d <= b for c, d in loops)
        ]
        kernel.loop = max((b - a for a, b in inner), default=0)
        yield symbol, kernel


# What a result needs, in multiplications and additions. Other ops are bounded by memory.


def _shape(case: Case, name: str) -> tuple[int, ...]:
    return np.asarray(case.inputs[name]).shape


def _deform(case: Case, op: Op) -> float:
    offset = _shape(case, "offset")
    return 2.0 * math.prod(_shape(case, "weight")) * offset[0] * offset[2] * offset[3]


def _pairs(of: str, among: str) -> Callable[[Case, Op], float]:
    """Each of some points is compared with each of others: eight operations in three dimensions."""
    return lambda case, op: 8.0 * _shape(case, of)[0] * _shape(case, among)[0]


def _samples(case: Case, op: Op) -> float:
    """All points are compared with each sample."""
    return 8.0 * _shape(case, "xyz")[0] * int(np.asarray(case.inputs["new_offset"])[-1])


def _transform(case: Case, op: Op) -> float:
    """A real transform of n numbers takes 2.5 n log2 n operations."""
    defaults = {attribute.name: attribute.default for attribute in op.attributes} | dict(case.attributes)
    n, hop = int(defaults["n_fft"]), int(defaults["hop_length"])
    rows, samples = _shape(case, "pcm")
    return float(rows * (samples // hop + 1) * 2.5 * n * np.log2(n))


WORK: Mapping[str, Callable[[Case, Op], float]] = {
    "DeformConv2d": _deform,
    "DeformConv2dBackward": lambda case, op: 2 * _deform(case, op),
    "KNNQuery": _pairs("xyz", "xyz"),
    "BallQuery": _pairs("new_xyz", "xyz"),
    "FarthestPointSample": _samples,
    "LogMelSpectrogram": _transform,
}
#: The ops whose operations are products of matrices, which tensor cores compute for f16 and bf16.
PRODUCTS = ("DeformConv2d", "DeformConv2dBackward")


def bound_of(op: Op, types: Mapping[str, str], case: Case, size: int, gpu: Gpu) -> float:
    """Returns the milliseconds that the memory or the arithmetic of a GPU takes for a case at least."""
    rate = gpu.f16 if op.name in PRODUCTS and types.get("T") in ("f16", "bf16") else gpu.f32
    work = WORK[op.name](case, op) if op.name in WORK else 0.0
    return max(size / gpu.bandwidth, work / rate) * 1e3


def measured_times(page: Path) -> dict[tuple[str, str], float]:
    """Returns the milliseconds of ops by name and dtypes, from a page of `make gpu-check`."""
    rows = re.findall(r"^\| (\w+) \| ([\w ]+) \| [^|]+ \| ([\d.]+) \| [\d,]+ \|", page.read_text(), re.MULTILINE)
    return {(name, types): float(milliseconds) for name, types, milliseconds in rows}


def moved(functions: SimpleNamespace, op: Op, case: Case) -> int:
    """Returns the bytes of the inputs and outputs of a case, which the function of the op computes on the CPU."""
    outputs = getattr(functions, snake_case(op.name))(**case.inputs, **case.attributes)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    arrays = [*case.inputs.values(), *outputs]
    return sum(np.asarray(array).nbytes for array in arrays if array is not None)


def kernel_table(kernels: Mapping[str, Sequence[Kernel]], before: Mapping[str, Sequence[Kernel]]) -> Iterator[str]:
    """Yields the lines of the table of kernels. Those of one name that differ in their template's arguments share a
    line for f16 and one for f32."""
    titles = ("registers", "shared", "spilled", "instructions", "inner loop", "f64", "calls", "tensor", "loads")
    yield "| op | kernel | dtype | " + " | ".join(titles) + " |"
    yield "|" + "---|" * (len(titles) + 3)
    for op, found in sorted(kernels.items()):
        now, then = _largest(found), _largest(before.get(op, ()))
        for key in sorted(now.keys() | (then.keys() if before else set())):
            new, old = (
                kernel.cells() if kernel else ("none",) * len(titles) for kernel in (now.get(key), then.get(key))
            )
            cells = [a if a == b or not before else f"{b} → {a}" for a, b in zip(new, old, strict=True)]
            yield f"| {op} | {key[0]} | {key[1]} | " + " | ".join(cells) + " |"


def _largest(kernels: Sequence[Kernel]) -> dict[tuple[str, str], Kernel]:
    """Returns those with the widest loads, and of these the one of most instructions, by name and dtype."""

    def order(kernel: Kernel) -> tuple[int, int]:
        return max(kernel.loads, default=0), kernel.instructions

    found: dict[tuple[str, str], Kernel] = {}
    for kernel in kernels:
        dtypes = re.findall(r"\b(f16|bf16|float|double)\b", kernel.name)
        if "bf16" in dtypes or "double" in dtypes:
            continue
        key = kernel.name.partition("<")[0], "f16" if "f16" in dtypes else "f32" if dtypes else ""
        if key not in found or order(found[key]) < order(kernel):
            found[key] = kernel
    return found


def bound_table(functions: SimpleNamespace, items: Sequence[Item], page: Path) -> Iterator[str]:
    """Yields the lines of the table of bounds."""
    times = measured_times(page) if page.is_file() else {}
    names = " | ".join(f"{gpu.name}, us" for gpu in GPUS)
    yield f"| op | dtypes | case | MB | Mflop | {names} | H200, us | measured, us | times the bound |"
    yield "|" + "---|" * (8 + len(GPUS))
    for op, types in track(items, "bounds", console=Console(stderr=True)):
        case = large_case(op, types)
        if case is None:
            continue
        size, label = moved(functions, op, case), types_label(op, types)
        work = WORK[op.name](case, op) / 1e6 if op.name in WORK else 0
        bounds = [bound_of(op, types, case, size, gpu) * 1e3 for gpu in (*GPUS, MEASURED)]
        time = times.get((op.name, label))
        cells = [op.name, label, case.name, f"{size / 1e6:.1f}", f"{work:,.0f}" if work else ""]
        cells += [f"{bound:,.1f}" for bound in bounds]
        cells += [f"{time * 1e3:,.1f}", f"{time * 1e3 / bounds[-1]:.1f}"] if time else ["", ""]
        yield "| " + " | ".join(cells) + " |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the page. Returns 0, or 2 without nvcc."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--op", action="append", default=[], help="an op to count; without it, all ops")
    parser.add_argument("--before", type=Path, help="a checkout of an earlier version")
    parser.add_argument("--output", type=Path, help="the page; without it, the standard output")
    parser.add_argument("--only", choices=("kernels", "bounds"), help="one of the two tables")
    options = parser.parse_args(arguments)
    try:
        nvcc = find_cuda(ARCHITECTURE).nvcc
    except LeftOut as error:
        print(f"bounds: no CUDA: {error}", file=sys.stderr)
        return 2
    folders = [folder for folder in op_folders(SOURCE / "ops") if folder.has_cuda_kernel]
    ops = [folder.path.name for folder in folders if not options.op or _named(folder.path.name, options.op)]
    lines = [TITLE]
    if options.only != "bounds":
        kernels = compiled(SOURCE, ops, nvcc)
        before = compiled(options.before / "opgate" / "ops_build", ops, nvcc) if options.before else {}
        lines += ["", "## Kernels", "", KERNELS, "", *kernel_table(kernels, before)]
    if options.only != "kernels":
        library = load(BuildOptions().library())
        functions = SimpleNamespace(**public_names(library))
        items = measured(items_of([op for op in library.ops if snake_case(op.name) in ops]))
        lines += ["", "## Bounds", "", BOUNDS, "", *bound_table(functions, items, PAGE)]
    text = "\n".join(lines) + "\n"
    if options.output:
        options.output.write_text(text)
    else:
        print(text, end="")
    return 0


def _named(folder: str, names: Sequence[str]) -> bool:
    return any(folder in (name, snake_case(name)) for name in names)


def compiled(source: Path, ops: Sequence[str], nvcc: Path) -> dict[str, list[Kernel]]:
    """Compiles the kernels of ops from a folder like ops_build, several at once. Returns them by op."""
    ops = [op for op in ops if (source / "ops" / op / f"{op}.cu").is_file()]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(usable_cores()) as pool:
        found = pool.map(lambda op: kernels_of(source, op, nvcc, Path(folder)), ops)
        return dict(zip(ops, track(found, "kernels", len(ops), console=Console(stderr=True)), strict=True))


PAGE = SOURCE.parent.parent / "benchmarks" / "results" / "nvidia_h200.md"
TITLE = """# What the CUDA kernels are made of, and what bounds them

Made by `python -m opgate.ops_build.gpu_check.bounds`, which needs nvcc and no GPU."""
KERNELS = """As nvcc compiles them for sm_90: registers of a thread, bytes of static shared memory, bytes of spilled
registers, instructions, those of the longest inner loop, those of f64, calls (most of them divide 64-bit integers),
those on tensor cores, and loads from global memory by their bytes. Of kernels that differ in template arguments, the
one with the widest loads is listed, for f16 and for f32. Kernels that the build generates from a formula, and
CUB's, are not here."""
BOUNDS = """Megabytes are those of inputs and outputs. Mflop are what the result needs where that is more than
a few for each byte. A bound is the time that these take at the rates of the data sheets: no kernel can be faster.
`measured` is from the page of `make gpu-check` beside this one, whose kernels may be older than those above."""

if __name__ == "__main__":
    sys.exit(main())
