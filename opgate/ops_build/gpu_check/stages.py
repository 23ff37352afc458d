"""The stages of `make gpu-check`. Each runs in a process of its own, which writes events to standard output:

python -m opgate.ops_build.gpu_check.stages STAGE [--op OP ...] [--skip NUMBER]
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import dataclasses
import itertools
import math
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import IO

from opgate import folders
from opgate.ops_build.building.build import runner_of
from opgate.ops_build.building.manifest import built_table
from opgate.ops_build.building.options import SOURCE, BuildOptions
from opgate.ops_build.case import Array, Case
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.engines.comparison import difference, tolerance
from opgate.ops_build.engines.engine import Absent, Engine
from opgate.ops_build.gpu_check.events import Begun, Ended, Event, Fact, Profiled, Timed, event_line
from opgate.ops_build.gpu_check.items import Item, Large, items_of, large_case, measured
from opgate.ops_build.op_folder import folder_of, run_reference
from opgate.ops_build.op_table import Op
from opgate.ops_build.runner.cases_file import CaseFailed, case_bytes
from opgate.ops_build.runner.engine import KernelsEngine, ProgramEnded
from opgate.ops_build.verification.sources import engines_of
from opgate.ops_build.verification.verify import Cell, References, types_label, verify_cell

OPTIONS = BuildOptions(output=folders.builds() / "gpu_check", cuda_ops_only=True)
TIMED_RUNS = 20
#: How the host program runs the kernels, by the name of the stage.
RUNNER_MODES: Mapping[str, Sequence[str]] = {
    "kernels": (),
    "unaligned": ("--unaligned", "--padded"),
    "graph": ("--graph",),
    "streams": ("--streams",),
    "written": ("--written", "--padded"),
}
SANITIZER_TOOLS = ("memcheck", "initcheck", "synccheck", "racecheck")
#: The engines with kernels for CUDA, by the name of the stage.
ENGINES = ("onnxruntime", "torch", "tensorrt")
#: The stages whose results are right or wrong. They run side by side, because they wait for references and tools more
#: than for the GPU.
CHECKS = ("kernels", *ENGINES, "written", "graph", "streams", "unaligned", "large", *SANITIZER_TOOLS, "torch-compile")
#: The stages that measure, one after the other, in the order of what matters most.
MEASUREMENTS = ("times", "peers", "compiled-peers", "profile")
STAGES = (*CHECKS, *MEASUREMENTS)
#: The processes that a tool of compute-sanitizer runs at once. Most of their time is the start of the tool.
SANITIZED_AT_ONCE = 3


def ops_on_cuda(names: Sequence[str] = ()) -> list[Op]:
    """Returns the ops that the check has built with a CUDA kernel, or those of them with these names."""
    return [op for op in built_table(OPTIONS) if "cuda" in op.devices and (not names or op.name in names)]


def run_stage(stage: str, items: Sequence[Item], options: BuildOptions = OPTIONS) -> Iterator[Event]:
    """Runs a stage on the items and yields its events."""
    runner = runner_of(options)
    if stage in RUNNER_MODES:
        yield from verify_items(KernelsEngine(runner, RUNNER_MODES[stage], name=stage), items)
    elif stage in SANITIZER_TOOLS:
        yield from sanitize(stage, runner, items, options.output)
    elif stage == "large":
        yield from compare_large(KernelsEngine(runner), items)
    elif stage == "profile":
        yield from profile(runner, measured(items), options.output)
    elif stage == "times":
        bandwidth = subprocess.run([str(runner), "--bandwidth"], capture_output=True, text=True, check=True)
        yield Fact("copy", bandwidth.stdout.strip())
        yield from time_items(KernelsEngine(runner, ["--time", str(TIMED_RUNS)]), measured(items))
    elif stage in ENGINES:
        yield from verify_items(_engine_on_cuda(stage, options), items)
        yield from _versions(stage)
    elif stage == "torch-compile":
        yield from verify_items(_compiled(options), items, most_cases=2)
    else:
        yield from _peers(items, compiled=stage == "compiled-peers")


def verify_items(engine: Engine | Absent, items: Sequence[Item], most_cases: int | None = None) -> Iterator[Event]:
    """Runs the cases of the items on an engine. With `most_cases` it runs only that many of an item, none of them an
    error."""
    if isinstance(engine, Absent):
        yield Fact("absent", engine.reason)
        return
    for op, types in items:
        yield Begun(op.name, types_label(op, types))
        cell = _cell(op, types, engine, most_cases)
        yield Ended(cell)
        if cell.failures and (code := _cuda_error()):
            yield Fact("restart", f"CUDA reports error {code} for good")
            return


def _cuda_error() -> int:
    """Returns the error that this process can't get rid of, such as that of an illegal access, or 0."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    code = int(driver.cuCtxSynchronize())
    return 0 if code in (3, 201) else code  # this thread has used no device


def _cell(op: Op, types: Mapping[str, str], engine: Engine, most_cases: int | None = None) -> Cell:
    folder = folder_of(op, [SOURCE / "ops"])
    cases = folder.cases(numpy_types(types))
    if most_cases is not None:
        cases = [case for case in cases if not case.error][:most_cases]
    return verify_cell(op, types, References(op, folder), cases, engine)


def sanitize(tool: str, runner: Path, items: Sequence[Item], folder: Path) -> Iterator[Event]:
    """Runs every case of the items under a tool of compute-sanitizer. The items of an op share a process, because the
    tool takes seconds to start; what it reports is a failure of the last of them. Some ops run at once, and their
    events come in the order of the items.

    The tool writes its log into a subfolder of `folder`, because the standard output has the results of the program.
    """
    program = shutil.which("compute-sanitizer")
    if program is None:
        yield Fact("absent", "there is no compute-sanitizer on PATH: it comes with the CUDA toolkit")
        return
    ops = [list(group) for _, group in itertools.groupby(items, lambda item: item[0].name)]
    with ThreadPoolExecutor(SANITIZED_AT_ONCE) as pool:
        for cells in pool.map(lambda some: _sanitized(tool, program, runner, some, folder), ops):
            for cell in cells:
                yield Begun(cell.op, cell.types)
                yield Ended(cell)


def _sanitized(tool: str, program: str, runner: Path, items: Sequence[Item], folder: Path) -> list[Cell]:
    """Runs the cases of an op's items under the tool."""
    logs = folder / f"{tool}.{items[0][0].name}"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    # After an error the next case runs in a new process, which must not write over the log: %p is its number.
    options = ["--tool", tool, "--error-exitcode", "9", "--log-file", str(logs / "%p.log")]
    engine = KernelsEngine(Path(program), [*options, str(runner), "--exact", "--padded"], name=tool)
    cells = [_cell(op, types, engine) for op, types in items]
    failures = cells[-1].failures
    try:
        engine.close()
    except ProgramEnded as error:
        failures.append(str(error))
    for log in sorted(logs.glob("*.log")) if any(cell.failures for cell in cells) else ():
        lines = log.read_text(errors="replace").splitlines()
        if not any("ERROR SUMMARY: 0 errors" in line for line in lines):
            failures.append(f"{tool}: {' / '.join(lines[:20])}")
    return cells


def compare_large(engine: KernelsEngine, items: Sequence[Item], large: Large = large_case) -> Iterator[Event]:
    """Compares the outputs of large cases with the references, which run in processes beside this one."""
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 1) - 1), context) as pool:
        expected: dict[int, Future[dict[str, Array]]] = {}
        for index, (op, types) in enumerate(items):
            if large(op, types) is not None:
                expected[index] = pool.submit(_large_reference, op, types, large)
        for index, (op, types) in enumerate(items):
            if index not in expected:
                continue
            yield Begun(op.name, types_label(op, types))
            case = large(op, types)
            assert case is not None
            cell = Cell(op.name, "large", types_label(op, types))
            failure = _large_failure(engine, op, case, types, expected[index])
            if failure:
                cell.failures.append(f"{case.name}: {failure}")
            else:
                cell.passed = 1
            yield Ended(cell)


def _large_reference(op: Op, types: Mapping[str, str], large: Large) -> dict[str, Array]:
    case = large(op, types)
    assert case is not None
    return run_reference(op, folder_of(op, [SOURCE / "ops"]).reference, case)


def _large_failure(
    engine: KernelsEngine, op: Op, case: Case, types: Mapping[str, str], reference: Future[dict[str, Array]]
) -> str | None:
    try:
        outputs = engine.run(op, case, types)
        expected = reference.result()
    except Exception as error:  # any exception is a result of the case
        return f"{type(error).__name__}: {error}"
    for output in op.outputs:
        allowed = tolerance(case, output.name, types.get(output.type, output.type))
        if failure := difference(outputs[output.name], expected[output.name], allowed):
            return f"output '{output.name}': {failure}"
    return None


def time_items(engine: KernelsEngine, items: Sequence[Item], large: Large = large_case) -> Iterator[Event]:
    """Measures the items at their large cases. An op without a large case is left out. While one is measured, a thread
    makes the next case."""

    def make(item: Item) -> tuple[Case, bytes] | None:
        op, case = item[0], large(*item)
        return None if case is None else (case, case_bytes(op, case, [output.name for output in op.outputs]))

    with ThreadPoolExecutor(1) as pool:
        made: deque[Future[tuple[Case, bytes] | None]] = deque(pool.submit(make, item) for item in items[:1])
        for index, (op, types) in enumerate(items):
            made.extend(pool.submit(make, item) for item in items[index + 1 : index + 2])
            found = made.popleft().result()
            if found is None:
                continue
            case, packed = found
            yield Begun(op.name, types_label(op, types))
            try:
                result = engine.run_packed(packed)
            except (CaseFailed, ProgramEnded) as error:
                yield Ended(Cell(op.name, "times", types_label(op, types), failures=[f"{case.name}: {error}"]))
                continue
            yield Timed(op.name, types_label(op, types), case.name, "kernel", result.milliseconds, result.bytes)


#: What ncu measures, by the fields of Profiled.
METRICS = {
    "milliseconds": "gpu__time_duration.sum",
    "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "instructions": "sm__inst_executed.avg.pct_of_peak_sustained_elapsed",
    "warps": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
}
#: Milliseconds by the units that ncu writes.
_UNITS = {"nsecond": 1e-6, "ns": 1e-6, "usecond": 1e-3, "us": 1e-3, "msecond": 1.0, "ms": 1.0, "second": 1e3, "s": 1e3}


def profile(runner: Path, items: Sequence[Item], folder: Path) -> Iterator[Event]:
    """Profiles the large cases with ncu, each item in a process of its own."""
    program = shutil.which("ncu")
    if program is None:
        yield Fact("absent", "there is no ncu on PATH: it comes with the CUDA toolkit")
        return
    log = folder / "ncu.csv"
    for op, types in items:
        case = large_case(op, types)
        if case is None:
            continue
        yield Begun(op.name, types_label(op, types))
        log.unlink(missing_ok=True)
        metrics = ",".join(METRICS.values())
        engine = KernelsEngine(
            Path(program),
            ["--csv", "--clock-control", "none", "--metrics", metrics, "--log-file", str(log), str(runner), "--padded"],
        )
        try:
            engine.run(op, case, types)
            engine.close()
        except (CaseFailed, ProgramEnded) as error:
            yield Fact("note", f"ncu, {op.name} {types_label(op, types)}: {error}")
            continue
        kernels = list(read_profile(op.name, types_label(op, types), log.read_text(errors="replace")))
        if not kernels:  # without permission ncu runs the program and measures nothing
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("==")]
            yield Fact("absent", f"ncu measured no kernel: {' / '.join(lines[-3:])}")
            return
        yield from kernels


def read_profile(op: str, types: str, log: str) -> Iterator[Profiled]:
    """Yields the kernels of a log that ncu has written as CSV, without those that take less than 2% of the time."""
    lines = [line for line in log.splitlines() if line.startswith('"')]
    kernels: dict[str, dict[str, float]] = {}
    names: dict[str, str] = {}
    for row in csv.DictReader(lines):
        field = next((field for field, metric in METRICS.items() if metric == row["Metric Name"]), None)
        if field is None:
            continue
        try:
            number = float(row["Metric Value"].replace(",", ""))
        except ValueError:  # n/a
            number = math.nan
        kernels.setdefault(row["ID"], {})[field] = number * (
            _UNITS[row["Metric Unit"]] if field == "milliseconds" else 1
        )
        # ncu writes template arguments with their types: run<(int)4, float>(long, T1 *)
        name = re.sub(r"\((?:int|bool|unsigned int|long|unsigned long)\)", "", row["Kernel Name"])
        names[row["ID"]] = name.split("(")[0].replace("void ", "")
    measured = {identity: kernel for identity, kernel in kernels.items() if not math.isnan(kernel["milliseconds"])}
    total = sum(kernel["milliseconds"] for kernel in measured.values())
    for identity, kernel in measured.items():
        share = kernel["milliseconds"] / total
        if share >= 0.02:
            registers = kernel.pop("registers")
            known = 0 if math.isnan(registers) else int(registers)
            yield Profiled(op, types, names[identity], share=share, registers=known, **kernel)


def _engine_on_cuda(name: str, options: BuildOptions) -> Engine | Absent:
    """Returns an engine on CUDA, or Absent with the reason."""
    found = engines_of(dataclasses.replace(options, engines=(name,)))
    on_cuda = [engine for engine in found if engine.device == "cuda"]
    return on_cuda[0] if on_cuda else Absent(name, "cuda", found[0].reason if isinstance(found[0], Absent) else "")


def _compiled(options: BuildOptions) -> Engine | Absent:
    """Returns torch on CUDA with compiled calls, or Absent with the reason."""
    engine = _engine_on_cuda("torch", options)
    if isinstance(engine, Absent):
        return Absent("torch-compile", "cuda", engine.reason)
    from opgate.ops_build.adapters.torch.engine import CompiledTorchEngine

    return CompiledTorchEngine(options.library("torch"), "cuda")


def _peers(items: Sequence[Item], compiled: bool) -> Iterator[Event]:
    try:
        from opgate.ops_build.gpu_check.peers import time_peers
    except ModuleNotFoundError as error:
        yield Fact("absent", f"the Python package {error.name} is not installed")
        return
    yield from time_peers(measured(items), compiled)


def _versions(stage: str) -> Iterator[Fact]:
    """Yields the version of the package that the stage has imported."""
    if stage in sys.modules:
        yield Fact("version", f"{stage} {sys.modules[stage].__version__}")


def main() -> int:
    """Runs one stage. Returns 0 at its end, whatever the cases showed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--op", action="append", default=[], help="an op to check; without it, all ops")
    parser.add_argument("--skip", type=int, default=0, help="the number of items to leave out at the beginning")
    arguments = parser.parse_args()
    ops = ops_on_cuda(arguments.op)
    with _events_alone() as events:
        for event in run_stage(arguments.stage, items_of(ops)[arguments.skip :]):
            events.write(event_line(event))
            events.flush()
    return 0


def _events_alone() -> IO[str]:
    """Returns the standard output, and lets everything else that is written there go to the standard error."""
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return events


if __name__ == "__main__":
    sys.exit(main())
