"""Checks all ops on this machine's NVIDIA GPU: `make gpu-check`. It runs every case in every installed engine, then
under compute-sanitizer, and measures the time of each op at one large case. The results go to
benchmarks/results/<gpu>.md.

The check needs nvcc, CMake and Python with numpy, onnx, ml_dtypes and rich. PyTorch, onnxruntime-gpu and TensorRT's
headers are optional.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from ops_build.building.build import build, build_runner
from ops_build.building.manifest import built_table
from ops_build.building.options import PROJECT, SOURCE, BuildError, BuildOptions
from ops_build.building.toolchain import NO_GPU, gpus
from ops_build.dtypes import numpy_types
from ops_build.gpu.runner import KernelsEngine, ProgramEnded
from ops_build.op_folder import folder_of
from ops_build.table import Op
from ops_build.verification.engine import Absent, Engine, engines_of
from ops_build.verification.report import by_engine, print_matrix, reasons_of
from ops_build.verification.verify import Cell, verify

RESULTS = PROJECT / "benchmarks" / "results"
OPTIONS = BuildOptions(output=PROJECT / "build" / "gpu_check", cuda_ops_only=True)
TIMED_RUNS = 20
SANITIZER_TOOLS = ("memcheck", "racecheck")


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of an op at its large case: milliseconds of the median run, and the bytes of its inputs and outputs."""

    op: str
    types: str
    case: str
    milliseconds: float
    bytes: int

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return self.bytes / (self.milliseconds / 1e3)


@dataclass(frozen=True, slots=True)
class Findings:
    """The results of a check. `bandwidth` says how many bytes a copy on the device reads and writes per second."""

    gpu: str
    machine: str
    cells: Sequence[Cell]
    sanitized: Sequence[Cell | Absent]
    timings: Sequence[Timing]
    bandwidth: float


def cuda_engines(runner: Path) -> list[Engine | Absent]:
    """Returns everything that can run CUDA kernels: first the host program, then the engines on CUDA."""
    engines: list[Engine | Absent] = [KernelsEngine(runner)]
    engines += [engine for engine in engines_of(OPTIONS) if engine.device == "cuda"]
    return engines


def sanitizer_engines(runner: Path, folder: Path) -> Iterator[KernelsEngine | Absent]:
    """Yields the host program under each tool of compute-sanitizer.

    The tools write log files into `folder`, because the standard output has the results of the program.
    """
    program = shutil.which("compute-sanitizer")
    for tool in SANITIZER_TOOLS:
        if program is None:
            yield Absent(tool, "cuda", "there is no compute-sanitizer on PATH: it comes with the CUDA toolkit")
            continue
        log = folder / f"{tool}.log"
        engine = KernelsEngine(
            Path(program), ["--tool", tool, "--error-exitcode", "9", "--log-file", str(log), str(runner)]
        )
        engine.name = tool
        yield engine


def sanitize(
    engines: Sequence[KernelsEngine | Absent], ops: Sequence[Op], folder: Path, say: Callable[[str], None]
) -> list[Cell | Absent]:
    """Runs every case under each tool. An error that the tool reports counts as a failure of the last op."""
    results: list[Cell | Absent] = []
    for engine in engines:
        if isinstance(engine, Absent):
            results.append(engine)
            continue
        cells = verify(ops, [SOURCE / "ops"], [engine], lambda cell: say(f"{cell.engine}: {cell.op} {cell.types}"))
        try:
            engine.close()
        except ProgramEnded as error:
            log = folder / f"{engine.name}.log"
            lines = log.read_text(errors="replace").splitlines()[:20] if log.is_file() else []
            cells[-1].failures.append(f"{error} {' / '.join(lines)}")
        results += cells
    return results


def time_ops(runner: Path, ops: Sequence[Op], say: Callable[[str], None]) -> list[Timing]:
    """Measures the ops at their large cases, with each choice of dtypes. Ops without a large case are left out."""
    engine = KernelsEngine(runner, ["--time", str(TIMED_RUNS)])
    timings = []
    for op in ops:
        folder = folder_of(op, [SOURCE / "ops"])
        for types in op.type_choices():
            case = folder.large(numpy_types(types))
            if case is None:
                continue
            result = engine.run_wanted(op, case, [output.name for output in op.outputs])
            arrays = [*case.inputs.values(), *(output for output in result.outputs if output is not None)]
            size = sum(np.asarray(array).nbytes for array in arrays)
            name = " ".join(types.values()) or " ".join(op.dtypes)
            timings.append(Timing(op.name, name, case.name, result.milliseconds, size))
            say(f"timed {op.name} {name}: {result.milliseconds:.3f} ms")
    engine.close()
    return timings


def page(findings: Findings) -> str:
    """Returns the results as a page in Markdown."""
    lines = [f"# {findings.gpu}", "", findings.machine, "", "Made by `make gpu-check`.", "", "## Cases", ""]
    reasons = reasons_of(findings.cells)
    lines += _cases(findings.cells, reasons)
    lines += ["", *(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))]
    failures = [f"- {c.op} {c.types} on {c.engine}: {f}" for c in findings.cells for f in c.failures]
    lines += ["", "Failures:" if failures else "No failures.", "", *failures, "", "## compute-sanitizer", ""]
    for tool in SANITIZER_TOOLS:
        results = [result for result in findings.sanitized if _tool_of(result) == tool]
        lines += [f"- {tool}: {_verdict(results)}"]
    lines += ["", "## Times", ""]
    lines += [
        f"The median of {TIMED_RUNS} runs of the kernel alone, and the bytes of its inputs and outputs a second as a "
        f"share of what a copy on the device moves, read and written: {findings.bandwidth / 1e9:,.0f} GB/s.",
        "",
        "| op | dtypes | case | ms | GB/s | share |",
        "|---|---|---|---|---|---|",
    ]
    for t in findings.timings:
        share = t.bandwidth / findings.bandwidth
        lines.append(
            f"| {t.op} | {t.types} | {t.case} | {t.milliseconds:.3f} | {t.bandwidth / 1e9:,.0f} | {share:.0%} |"
        )
    return "\n".join(lines) + "\n"


def _cases(cells: Sequence[Cell], reasons: Sequence[str]) -> Iterator[str]:
    engines, rows = by_engine(cells)
    yield f"| op | dtypes | {' | '.join(engines)} |"
    yield "|---" * (len(engines) + 2) + "|"
    for (op, types), row in rows.items():
        marks = []
        for engine in engines:
            cell = row[engine]
            total = cell.passed + len(cell.failures)
            marks.append(f"({reasons.index(cell.skipped) + 1})" if cell.skipped else f"{cell.passed}/{total}")
        yield f"| {op} | {types} | {' | '.join(marks)} |"


def _tool_of(result: Cell | Absent) -> str:
    return result.name if isinstance(result, Absent) else result.engine.split()[0]


def _verdict(results: Sequence[Cell | Absent]) -> str:
    reasons = [result.reason for result in results if isinstance(result, Absent)]
    if reasons:
        return f"not run: {reasons[0]}"
    cells = [result for result in results if isinstance(result, Cell)]
    failures = [f"{cell.op} {cell.types}: {failure}" for cell in cells for failure in cell.failures]
    passed = sum(cell.passed for cell in cells)
    return f"{passed} cases, nothing found" if not failures else f"{len(failures)} failures: {'; '.join(failures[:5])}"


def main() -> int:
    """Runs the check. Returns 0 if all cases passed, 1 if some failed, and 2 if the check can't run here."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder to write the results to")
    output: Path = parser.parse_args().output
    console = Console()
    devices = gpus()
    if not devices:
        console.print(f"gpu-check: {NO_GPU}")
        return 2
    gpu = devices[0][0]
    try:
        finished_build = build(OPTIONS, console.print)
        runner = build_runner(OPTIONS, console.print)
    except BuildError as error:
        console.print(f"gpu-check: {error}", markup=False)
        return 2
    ops = [op for op in built_table(OPTIONS) if "cuda" in op.devices]
    with console.status("running cases") as status:
        say: Callable[[str], None] = status.update
        cells = verify(
            ops, [SOURCE / "ops"], cuda_engines(runner), lambda cell: say(f"{cell.engine}: {cell.op} {cell.types}")
        )
        folder = OPTIONS.output
        sanitized = sanitize(list(sanitizer_engines(runner, folder)), ops, folder, say)
        timings = time_ops(runner, ops, say)
    findings = Findings(gpu, _machine(), cells, sanitized, timings, _copy_bandwidth(runner))
    print_matrix(console, cells)
    for name, reason in finished_build.left_out.items():
        console.print(f"left out {name}: {reason}", markup=False)
    output.mkdir(parents=True, exist_ok=True)
    file = output / f"{re.sub(r'[^a-z0-9]+', '_', gpu.lower()).strip('_')}.md"
    file.write_text(page(findings))
    console.print(f"wrote {file}")
    failures = [f for cell in (*cells, *sanitized) if isinstance(cell, Cell) for f in cell.failures]
    for failure in failures[:50]:
        console.print(failure, markup=False)
    return 1 if failures else 0


def _machine() -> str:
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader"],
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    nvcc = subprocess.run(["nvcc", "--version"], capture_output=True, text=True).stdout
    release = re.search(r"release ([\d.]+)", nvcc)
    versions = [f"CUDA {release[1]}" if release else "CUDA of no known release", f"Python {platform.python_version()}"]
    for module in ("torch", "onnxruntime"):
        if module in sys.modules:
            versions.append(f"{module} {sys.modules[module].__version__}")
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return f"{today}, driver and memory {driver[0] if driver else 'unknown'}, {', '.join(versions)}."


def _copy_bandwidth(runner: Path) -> float:
    finished = subprocess.run([str(runner), "--bandwidth"], capture_output=True, text=True, check=True)
    return float(finished.stdout)


if __name__ == "__main__":
    sys.exit(main())
