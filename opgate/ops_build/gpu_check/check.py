"""Checks all ops on this machine's NVIDIA GPU: `make gpu-check`. It runs every case in every installed engine, compares
large cases, runs all cases under compute-sanitizer, and measures times beside those of other libraries.

Each stage runs in a process of its own. A crash or a hang is a failure of the op that the stage was at, and the stage
goes on with the next one. The page benchmarks/results/<gpu>.md is written after each stage.

The check needs nvcc, CMake and Python with numpy, onnx, ml_dtypes and rich. PyTorch, onnxruntime-gpu, TensorRT's
headers and the peers are optional. OPGATE_TOOLCHAIN may name a folder that has the headers and packages (README).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from opgate import folders
from opgate.child_process import ChildProcess, tied
from opgate.ops_build.building.build import build, build_runner, runner_of
from opgate.ops_build.building.manifest import left_out as read_left_out
from opgate.ops_build.building.options import BuildError, BuildOptions
from opgate.ops_build.building.toolchain import NO_GPU, LeftOut, find_cuda, gpus, toolchain_folder
from opgate.ops_build.gpu_check.events import Begun, Ended, Event, Fact, Profiled, Timed, read_event
from opgate.ops_build.gpu_check.items import Item, items_of
from opgate.ops_build.gpu_check.stages import CHECKS, ENGINES, MEASUREMENTS, OPTIONS, RUNNER_MODES, STAGES, ops_on_cuda
from opgate.ops_build.verification.report import by_engine, reasons_of
from opgate.ops_build.verification.verify import Cell, types_label

#: Where the page is written: among the benchmarks of a checkout, else here.
RESULTS = root / "benchmarks" / "results" if (root := folders.checkout()) else Path()
#: The seconds after which the check stops, and those after which a stage that says nothing counts as hung.
TIME_LIMIT = 570.0
SILENCE_LIMIT = 120.0
#: The share of the time that is kept for the stages that measure.
KEPT = 0.5
TIME_IS_UP = "the time is up"


@dataclass(slots=True)
class Result:
    """What a stage has found so far. `not_run` says why the stage or the rest of it didn't run."""

    stage: str
    cells: list[Cell] = field(default_factory=list)
    timings: list[Timed] = field(default_factory=list)
    kernels: list[Profiled] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    deaths: int = 0
    seconds: float = 0
    not_run: str | None = None

    @property
    def failures(self) -> list[str]:
        """A text for each failed case, and one if the stage didn't come to its end."""
        texts = [f"{cell.op} {cell.types}: {failure}" for cell in self.cells for failure in cell.failures]
        if self.not_run and (self.deaths or self.not_run == TIME_IS_UP):
            texts.append(f"the stage didn't come to its end: {self.not_run}")
        return texts

    @property
    def passed(self) -> int:
        """The number of cases that passed."""
        return sum(cell.passed for cell in self.cells)

    def summary(self) -> str:
        """Returns the result in a few words."""
        parts = [f"{self.passed} passed"] if self.cells else []
        parts += [f"{len(self.failures)} failed"] if self.failures else []
        parts += [f"{len(self.timings)} times"] if self.timings else []
        parts += [f"{len(self.kernels)} kernels"] if self.kernels else []
        parts += [f"the process ended {self.deaths} times"] if self.deaths else []
        parts += [f"not run: {self.not_run}"] if self.not_run else []
        return ", ".join(parts) or "nothing to run"


class Watch:
    """Runs a command and yields its lines. Ends it, and the processes that it has started, when it is silent for too
    long or when the time is up."""

    def __init__(self, command: Sequence[str], silence: float, deadline: float) -> None:
        self.why_ended: str | None = None
        self._silence, self._deadline = silence, deadline
        self._process = ChildProcess(
            tied(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=os.environ | {"PYTHONPATH": os.pathsep.join([*_packages(), *sys.path])},
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._messages: list[str] = []
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_messages)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_messages(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._messages = [*self._messages[-20:], line.rstrip()]

    def lines(self) -> Iterator[str]:
        """Yields the lines of the standard output. Afterwards `why_ended` says how the command failed, if it did."""
        try:
            while (line := self._next()) is not None:
                yield line
        finally:
            code = self._process.end()
            for reader in self._readers:
                reader.join(timeout=5)
        if self.why_ended is None and code:
            self.why_ended = f"the process ended with {code}: {' / '.join(self._messages[-5:])}"

    def _next(self) -> str | None:
        left = self._deadline - time.monotonic()
        try:
            line = self._lines.get(timeout=max(0.0, min(self._silence, left)))
        except queue.Empty:
            self.why_ended = TIME_IS_UP if left <= self._silence else f"no result in {self._silence:.0f} s"
            return None
        if line is None:
            # Its output has ended, so it ends by itself now. Its exit status must not be that of a kill.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=min(self._silence, 30))
        return line


def _packages() -> list[str]:
    """Returns the folder of Python packages that OPGATE_TOOLCHAIN brings, in a list."""
    folder = toolchain_folder() / "python"
    return [str(folder)] if folder.is_dir() else []


def run_stage(
    stage: str,
    items: Sequence[Item],
    command: Callable[[int], Sequence[str]],
    deadline: float,
    say: Callable[[str], None],
    silence: float = SILENCE_LIMIT,
) -> Result:
    """Runs a stage to its end or until `deadline`, a time of time.monotonic(). `command` gives the command of the
    stage's process, which leaves out that number of items."""
    result = Result(stage)
    labels = [(op.name, types_label(op, types)) for op, types in items]
    began = time.monotonic()
    skip = 0
    while skip < len(items):
        if time.monotonic() >= deadline:
            result.not_run = TIME_IS_UP
            break
        at: Begun | None = None  # the item that the process is at, or was at last
        ended = restart = False
        watch = Watch(command(skip), silence, deadline)
        for line in watch.lines():
            try:
                event = read_event(line)
            except (ValueError, KeyError, TypeError):
                say(f"  {line.rstrip()}")
                continue
            if isinstance(event, Begun):
                at, ended = event, False
            ended = ended or isinstance(event, Ended)
            restart = restart or (isinstance(event, Fact) and event.name == "restart")
            _add(result, event, say)
        if watch.why_ended is None and not restart:
            break
        if watch.why_ended == TIME_IS_UP:
            result.not_run = TIME_IS_UP
            break
        result.deaths += watch.why_ended is not None
        if at is None or (at.op, at.types) not in labels[skip:]:  # it died before its first item
            result.not_run = watch.why_ended
            break
        if not ended:
            _add(result, Ended(Cell(at.op, stage, at.types, failures=[watch.why_ended or "the process ended"])), say)
        skip = labels.index((at.op, at.types)) + 1
    result.seconds = time.monotonic() - began
    return result


def _add(result: Result, event: Event, say: Callable[[str], None]) -> None:
    if isinstance(event, Ended):
        cell = event.cell
        result.cells.append(cell)
        if not cell.skipped:
            say(
                f"  {cell.op} {cell.types}: {cell.passed} passed"
                + f", {len(cell.failures)} FAILED" * bool(cell.failures)
            )
        for failure in cell.failures[:5]:
            say(f"    {failure}")
    elif isinstance(event, Timed):
        result.timings.append(event)
        say(f"  {event.op} {event.types}: {event.what} {event.milliseconds:.4f} ms")
    elif isinstance(event, Profiled):
        result.kernels.append(event)
    elif isinstance(event, Fact):
        result.facts.append(event)
        if event.name == "absent":
            result.not_run = event.text
        elif event.name == "note":
            say(f"  {event.text}")


def page(gpu: str, machine: str, results: Sequence[Result], left_out: Sequence[str] = ()) -> str:
    """Returns the results as a page in Markdown."""
    lines = [f"# {gpu}", "", machine, "", "Made by `make gpu-check`.", "", "## Stages", ""]
    lines += ["| stage | seconds | result |", "|---|---|---|"]
    lines += [f"| {result.stage} | {result.seconds:.0f} | {_cell_text(result.summary())} |" for result in results]
    lines += ["", *(f"Left out of the build: {reason}." for reason in left_out)]
    failures = [f"- {result.stage}: {failure}" for result in results for failure in result.failures]
    if not any(result.passed for result in results):
        failures.append("- No case has passed.")
    lines += ["", "## Failures", "", *(failures or ["None."])]
    cells = [
        cell
        for result in results
        if result.stage in (*RUNNER_MODES, *ENGINES, "torch-compile")
        for cell in result.cells
    ]
    reasons = reasons_of(cells)
    lines += ["", "## Cases", "", *_cases(cells, reasons), ""]
    lines += [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    lines += ["", "## Times", "", *_times(results)]
    kernels = [kernel for result in results for kernel in result.kernels]
    if kernels:
        lines += ["", "## Kernels", "", *_kernels(kernels)]
    return "\n".join(lines) + "\n"


def _cell_text(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


def _cases(cells: Sequence[Cell], reasons: Sequence[str]) -> Iterator[str]:
    engines, rows = by_engine(cells)
    yield f"| op | dtypes | {' | '.join(engines)} |"
    yield "|---" * (len(engines) + 2) + "|"
    for (op, types), row in rows.items():
        marks = []
        for engine in engines:
            cell = row.get(engine)
            if cell is None:
                marks.append("")
            elif cell.skipped:
                marks.append(f"({reasons.index(cell.skipped) + 1})")
            else:
                marks.append(f"{cell.passed}/{cell.passed + len(cell.failures)}")
        yield f"| {op} | {types} | {' | '.join(marks)} |"


def _times(results: Sequence[Result]) -> Iterator[str]:
    copy = next((float(fact.text) for result in results for fact in result.facts if fact.name == "copy"), None)
    timings = [timing for result in results for timing in result.timings]
    if copy is None or not timings:
        yield "None were measured."
        return
    yield (
        "Each time is the median of a CUDA graph of many calls that use different memory in turn, unless it says that "
        "the call waits for the device, which no graph can capture. GB/s counts the "
        "bytes of inputs and outputs. Their share is that of a copy on the device, which reads and writes "
        f"{copy / 1e9:,.0f} GB/s. A peer is what a user would call instead. Its ratio is its time divided by the "
        "kernel's."
    )
    yield ""
    yield "| op | dtypes | case | ms | GB/s | share | peers |"
    yield "|---|---|---|---|---|---|---|"
    for timing in timings:
        if timing.what != "kernel":
            continue
        peers = [
            f"{peer.what} {peer.milliseconds:.3f} ms ({peer.milliseconds / timing.milliseconds:.2f})"
            for peer in timings
            if peer.what != "kernel" and (peer.op, peer.types) == (timing.op, timing.types)
        ]
        yield (
            f"| {timing.op} | {timing.types} | {timing.case} | {timing.milliseconds:.4f} "
            f"| {timing.bandwidth / 1e9:,.0f} | {timing.bandwidth / copy:.0%} | {'; '.join(peers)} |"
        )
    alone = dict.fromkeys(fact.text for result in results for fact in result.facts if fact.name == "no peer")
    if alone:
        yield ""
        yield f"Without a peer: {', '.join(alone)}."


def _kernels(kernels: Sequence[Profiled]) -> Iterator[str]:
    yield "What ncu measured at the large cases, in percent of what the device can do."
    yield ""
    yield "| op | dtypes | kernel | ms | of the op | memory | instructions | warps | registers |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for kernel in kernels:
        yield (
            f"| {kernel.op} | {kernel.types} | `{kernel.kernel}` | {kernel.milliseconds:.4f} | {kernel.share:.0%} "
            f"| {kernel.memory:.0f} | {kernel.instructions:.0f} | {kernel.warps:.0f} | {kernel.registers} |"
        )


def main() -> int:
    """Runs the check. Returns 0 if all cases passed, 1 if some failed, and 2 if the check can't run here."""
    parser = argparse.ArgumentParser(prog="make gpu-check", description=__doc__.split("\n\n")[0])
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder for the page")
    parser.add_argument("--only", nargs="+", choices=STAGES, default=list(STAGES), help="the stages to run")
    parser.add_argument("--op", action="append", default=[], help="an op to check; without it, all ops")
    parser.add_argument("--seconds", type=float, default=TIME_LIMIT, help="the time for everything, the build included")
    parser.add_argument("--no-build", action="store_true", help="check the libraries of an earlier build as they are")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.seconds
    console = Console(soft_wrap=True)

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    devices = gpus()
    if not devices:
        say(f"gpu-check: {NO_GPU}")
        return 2
    began = time.monotonic()
    try:
        cuda = find_cuda(OPTIONS.cuda)
        # compute-sanitizer and ncu lie beside nvcc.
        os.environ["PATH"] = f"{cuda.nvcc.resolve().parent}{os.pathsep}{os.environ['PATH']}"
        left_out = left_out_of(OPTIONS) if arguments.no_build else build_all(say)
        names = [op.name for op in ops_on_cuda()]
    except (BuildError, LeftOut) as error:
        say(f"gpu-check: {error}")
        return 2
    say(f"built in {time.monotonic() - began:.0f} s")
    if unknown := sorted({*arguments.op} - {*names}):
        say(f"gpu-check: --op {unknown[0]}: expected one of {', '.join(names)}")
        return 2
    ops = ops_on_cuda(arguments.op)
    gpu = devices[0][0]
    file = arguments.output / f"{re.sub(r'[^a-z0-9]+', '_', gpu.lower()).strip('_')}.md"
    arguments.output.mkdir(parents=True, exist_ok=True)
    items = items_of(ops)
    chosen = [option for name in arguments.op for option in ("--op", name)]

    def run(stage: str, until: float) -> Result:
        def command(skip: int) -> list[str]:
            return [sys.executable, "-m", "opgate.ops_build.gpu_check.stages", stage, "--skip", str(skip), *chosen]

        result = run_stage(stage, items, command, until, lambda text: say(f"{stage}: {text.strip()}"))
        say(f"{stage}: {result.summary()} ({result.seconds:.0f} s)")
        return result

    results: dict[str, Result] = {}
    checks, measurements = ([stage for stage in some if stage in arguments.only] for some in (CHECKS, MEASUREMENTS))
    for stages in [checks, *([stage] for stage in measurements)]:
        kept = arguments.seconds * KEPT if stages is checks and measurements else 0.0
        with ThreadPoolExecutor(len(STAGES)) as pool:
            for ended in as_completed([pool.submit(run, stage, deadline - kept) for stage in stages]):
                results[ended.result().stage] = ended.result()
                found = [results[stage] for stage in STAGES if stage in results]
                file.write_text(page(gpu, _machine(cuda.version, found), found, left_out))
    say(f"wrote {file}")
    failed = any(result.failures or result.deaths for result in results.values())
    return 0 if not failed and any(result.passed for result in results.values()) else 1


def build_all(say: Callable[[str], None]) -> list[str]:
    """Builds the ops for ONNX Runtime and the host program, then for each other engine. Returns what was left out.

    An engine whose build fails is left out. Raises BuildError if the first build fails.
    """
    engines: tuple[str, ...] = ("onnxruntime",)
    left_out = dict(build(replace(OPTIONS, engines=engines), say).left_out)
    build_runner(OPTIONS, say)
    for engine in ("torch", "tensorrt"):
        try:
            left_out |= build(replace(OPTIONS, engines=(*engines, engine)), say).left_out
            build_runner(OPTIONS, say)  # with TensorRT's headers it can call the plugins
            engines = (*engines, engine)
        except BuildError as error:
            say(f"{engine}: {error}")
            left_out[engine] = f"its build failed: {str(error).splitlines()[-1]}"
            build(replace(OPTIONS, engines=engines), say)
    return _reasons(left_out)


def left_out_of(options: BuildOptions) -> list[str]:
    """Returns what the last build with these options left out. Raises BuildError if its host program is missing."""
    if not runner_of(options).is_file():
        raise BuildError(f"{runner_of(options)} is not there: run make gpu-check without --no-build first")
    return _reasons(read_left_out(options))


def _reasons(left_out: Mapping[str, str]) -> list[str]:
    return [f"{name}, because {reason}" for name, reason in left_out.items()]


def _machine(cuda: str, results: Sequence[Result]) -> str:
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader"],
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    versions = [f"CUDA {cuda}", f"Python {platform.python_version()}"]
    versions += [fact.text for result in results for fact in result.facts if fact.name == "version"]
    today = datetime.datetime.now(tz=datetime.UTC).date()
    device = f"driver and memory {driver[0] if driver else 'unknown'}"
    return f"{today}, {os.cpu_count()} CPUs, {device}, {', '.join(versions)}."


if __name__ == "__main__":
    sys.exit(main())
