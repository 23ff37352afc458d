"""`make gpu-check` on a machine without a GPU: its stages on emulated kernels, what it does when a stage's process dies
or hangs, its page, and how it calls compute-sanitizer and ncu."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from opgate.ops_build.building.toolchain import NO_GPU, Cuda
from opgate.ops_build.case import Case
from opgate.ops_build.cuda_emulation import build as emulated
from opgate.ops_build.engines.engine import Absent
from opgate.ops_build.gpu_check import check
from opgate.ops_build.gpu_check.check import Result, page, run_stage
from opgate.ops_build.gpu_check.events import Begun, Ended, Event, Fact, Profiled, Timed, event_line, read_event
from opgate.ops_build.gpu_check.items import Item, items_of, measured
from opgate.ops_build.gpu_check.stages import compare_large, profile, read_profile, sanitize, time_items, verify_items
from opgate.ops_build.op_table import Op
from opgate.ops_build.runner.cases_file import CaseFailed
from opgate.ops_build.runner.engine import KernelsEngine
from opgate.ops_build.verification.verify import Cell
from tests.conftest import thorough
from tests.ops_build.emulation import build


@pytest.fixture(scope="module")
def runner() -> Path:
    return build()


@pytest.fixture(scope="module")
def my_add(runner: Path) -> list[Item]:
    """MyAdd with each of its dtypes."""
    return items_of([op for op in KernelsEngine(runner).ops() if op.name == "MyAdd"])


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(check, "gpus", list)
    monkeypatch.setattr("sys.argv", ["gpu-check"])
    assert check.main() == 2
    assert NO_GPU in " ".join(capsys.readouterr().out.split())


def test_an_earlier_build_can_be_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "gpus", lambda: [("NVIDIA X", "9.0")])
    monkeypatch.setattr(check, "find_cuda", lambda _: Cuda(tmp_path / "nvcc", "13.0", "90"))
    monkeypatch.setattr(check, "OPTIONS", dataclasses.replace(check.OPTIONS, output=tmp_path))
    monkeypatch.setattr("sys.argv", ["gpu-check", "--no-build"])
    assert check.main() == 2
    assert "run make gpu-check without --no-build first" in " ".join(capsys.readouterr().out.split())
    program = tmp_path / "cmake" / "opgate_runner"
    program.parent.mkdir()
    program.touch()
    (tmp_path / "manifest.json").write_text('{"left_out": {"tensorrt": "it has no headers"}}')
    assert check.left_out_of(check.OPTIONS) == ["tensorrt, because it has no headers"]


@pytest.mark.parametrize(
    "event",
    [
        Begun("Mish", "f32"),
        Ended(Cell("Mish", "torch cuda", "f32", 3, None, ["a case: é\nand more"])),
        Timed("Mish", "f32", "16 Mi", "F.mish", 0.25, 1 << 27),
        Profiled("Mish", "f32", "run<4>", 0.1, 1.0, 91.5, 40.25, 88.0, 32),
        Fact("absent", "there is no GPU"),
    ],
)
def test_events_survive_as_text(event: Event) -> None:
    assert event_line(event).count("\n") == 1
    assert read_event(event_line(event)) == event


def test_a_stage_runs_every_item(runner: Path, my_add: list[Item]) -> None:
    events = list(verify_items(KernelsEngine(runner, name="graph"), my_add))
    cells = [event.cell for event in events if isinstance(event, Ended)]
    assert [cell.types for cell in cells] == [event.types for event in events if isinstance(event, Begun)]
    assert len(cells) == len(my_add) > 1
    assert all(cell.engine == "graph cuda" and cell.passed and not cell.failures for cell in cells)


def test_an_engine_that_is_absent_ends_its_stage(my_add: list[Item]) -> None:
    events = list(verify_items(Absent("torch", "cuda", "this torch is built without CUDA"), my_add))
    assert events == [Fact("absent", "this torch is built without CUDA")]


def thousand(op: Op, types: Mapping[str, str]) -> Case:
    a = np.arange(1000, dtype=np.int32)
    return Case("1000", {"a": a, "b": a})


def test_large_cases_are_compared_with_the_reference(runner: Path, my_add: list[Item]) -> None:
    item = [(op, types) for op, types in my_add if types["T"] == "i32"]
    events = compare_large(KernelsEngine(runner), item, thousand)
    cells = [event.cell for event in events if isinstance(event, Ended)]
    assert [(cell.passed, cell.failures) for cell in cells] == [(1, [])]
    other = KernelsEngine(runner)
    run = other.run
    other.run = lambda op, case, types: {"y": run(op, case, types)["y"] + 1}  # type: ignore[method-assign]
    (cell,) = [event.cell for event in compare_large(other, item, thousand) if isinstance(event, Ended)]
    assert "1000 of 1000 elements differ" in cell.failures[0]


@thorough("it compiles a program of its own")
def test_memory_that_a_kernel_leaves_as_it_was_is_found(tmp_path: Path) -> None:
    """The op writes all but the last element of its output."""
    folder = tmp_path / "most_of_it"
    folder.mkdir()
    for ending, text in {"h": _MOST_OF_IT, "cpp": _MOST_OF_IT_CPU, "cu": _MOST_OF_IT_CUDA}.items():
        (folder / f"most_of_it.{ending}").write_text(text)
    program = emulated.build(tmp_path / "build", ops=tmp_path)
    (op,) = KernelsEngine(program).ops()
    case = Case("five", {"x": np.arange(5, dtype=np.float32)})
    assert KernelsEngine(program).run(op, case, {})["y"][:4].tolist() == [0, 1, 2, 3]
    with pytest.raises(CaseFailed, match="output 0 differs when its memory held something else before"):
        KernelsEngine(program, ["--written"]).run(op, case, {})


_MOST_OF_IT = """
#pragma once
#include "kernel_toolkit/op.h"
OPGATE_OP(MostOfIt, "MostOfIt(x: f32[n]) -> (y: f32[n])", "x, but for its last element.")
"""
_MOST_OF_IT_CPU = """
#include "most_of_it.h"
struct Cpu {
  opgate::Status operator()(opgate::Context&, const opgate::Inputs& in, const opgate::Attributes&,
                            opgate::Outputs& out) const {
    for (std::int64_t i = 0; i + 1 < in["x"].size(); ++i) out["y"].data<float>()[i] = in["x"].data<float>()[i];
    return {};
  }
};
OPGATE_CPU_KERNEL(MostOfIt, Cpu)
"""
_MOST_OF_IT_CUDA = """
#include "kernel_toolkit/elementwise.cuh"
#include "most_of_it.h"
struct Same {
  template <typename V>
  OPGATE_HOST_DEVICE V operator()(V x) const { return x; }
};
struct Cuda {
  opgate::Status operator()(opgate::Context& context, const opgate::Inputs& in, const opgate::Attributes&,
                            opgate::Outputs& out) const {
    return opgate::map_elements(context, in["x"].size() - 1, out["y"].data<float>(), Same(), in["x"].data<float>());
  }
};
OPGATE_CUDA_KERNEL(MostOfIt, Cuda)
"""


def test_times_are_those_of_a_replayed_graph(runner: Path, my_add: list[Item]) -> None:
    item = [(op, types) for op, types in my_add if types["T"] == "i32"]
    events = list(time_items(KernelsEngine(runner, ["--time", "2"]), item, thousand))
    (timed,) = [event for event in events if isinstance(event, Timed)]
    assert timed.what == "kernel" and timed.bytes == 3 * 1000 * 4


def test_what_is_measured(runner: Path) -> None:
    """Each op once for each width of its numbers, but for f64 where there is a narrower one."""
    ops = {op.name: op for op in KernelsEngine(runner).ops()}
    assert [types["T"] for _, types in measured(items_of([ops["Mish"]]))] == ["f16", "bf16", "f32"]
    assert measured(items_of([ops["Voxelize"]])) == items_of([ops["Voxelize"]])


# What happens to a stage whose process dies. The processes here are real ones that play a stage.


def playing(tmp_path: Path, body: str) -> Callable[[int], Sequence[str]]:
    """Returns the command of a process that has `items` and `say(event)` and runs `body`."""
    script = tmp_path / "stage.py"
    script.write_text(
        "import os, sys, time\n"
        "from opgate.ops_build.gpu_check.events import *\n"
        "skip = int(sys.argv[1])\n"
        "def say(event): print(event_line(event), end='', flush=True)\n" + body
    )
    return lambda skip: [sys.executable, str(script), str(skip)]


BODY = """
for i, types in list(enumerate({types!r}))[skip:]:
    say(Begun("MyAdd", types))
    if i == {bad}: {how}
    say(Ended(Cell("MyAdd", "playing", types, passed=5)))
"""


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("os.kill(os.getpid(), 11)", "the process ended with -11"),
        ("sys.exit('no memory left')", "the process ended with 1: no memory left"),
        ("time.sleep(60)", "no result in 2 s"),
    ],
)
def test_an_op_that_ends_its_process_fails_and_the_others_go_on(
    tmp_path: Path, my_add: list[Item], how: str, why: str
) -> None:
    names = [types["T"] for _, types in my_add]
    said: list[str] = []
    command = playing(tmp_path, BODY.format(types=names, bad=1, how=how))
    result = run_stage("playing", my_add, command, time.monotonic() + 60, said.append, silence=2)
    assert [cell.types for cell in result.cells] == names
    assert [cell.passed for cell in result.cells] == [5, 0, *[5] * (len(names) - 2)]
    (failure,) = result.failures
    assert failure.startswith(f"MyAdd {names[1]}: {why}")
    assert result.deaths == 1 and result.not_run is None
    assert any(why in line for line in said)


def test_a_stage_that_dies_at_once_says_why(tmp_path: Path, my_add: list[Item]) -> None:
    command = playing(tmp_path, "sys.exit('libcuda.so.1: cannot open shared object file')")
    result = run_stage("playing", my_add, command, time.monotonic() + 60, lambda text: None)
    assert not result.cells and result.deaths == 1
    assert result.not_run is not None and "libcuda.so.1: cannot open" in result.not_run
    assert "libcuda" in page("GPU", "", [result])


def test_a_stage_ends_when_the_time_is_up(tmp_path: Path, my_add: list[Item]) -> None:
    names = [types["T"] for _, types in my_add]
    command = playing(tmp_path, BODY.format(types=names, bad=1, how="time.sleep(60)"))
    result = run_stage("playing", my_add, command, time.monotonic() + 3, lambda text: None)
    assert [cell.types for cell in result.cells] == names[:1]
    assert result.not_run == "the time is up" and result.seconds < 10
    late = run_stage("playing", my_add, command, time.monotonic(), lambda text: None)
    assert late.not_run == "the time is up" and not late.cells


def test_a_stage_that_leaves_processes_behind_is_ended_with_them(tmp_path: Path, my_add: list[Item]) -> None:
    """Such a process keeps the pipes open, and the GPU busy."""
    seconds = f"120.{os.getpid()}"  # nobody else sleeps so long
    child = f"subprocess.Popen(['sleep', '{seconds}']); time.sleep(120)"
    command = playing(
        tmp_path, BODY.format(types=[types["T"] for _, types in my_add], bad=0, how=f"import subprocess; {child}")
    )
    result = run_stage("playing", my_add[:1], command, time.monotonic() + 60, lambda text: None, silence=2)
    assert result.seconds < 20 and result.deaths == 1
    running = subprocess.run(["pgrep", "-fx", f"sleep {seconds}"], capture_output=True, text=True).stdout
    assert not running


def test_after_an_error_of_cuda_the_next_item_gets_a_new_process(tmp_path: Path, my_add: list[Item]) -> None:
    names = [types["T"] for _, types in my_add]
    how = "say(Ended(Cell('MyAdd', 'x', types, failures=['it is broken']))); say(Fact('restart', 'error 700')); break"
    command = playing(tmp_path, BODY.format(types=names, bad=1, how=how))
    result = run_stage("playing", my_add, command, time.monotonic() + 60, lambda text: None)
    assert [cell.types for cell in result.cells] == names and result.deaths == 0
    assert result.failures == [f"MyAdd {names[1]}: it is broken"]


def test_what_is_no_event_is_shown(tmp_path: Path, my_add: list[Item]) -> None:
    said: list[str] = []
    command = playing(tmp_path, "print('{\"Ended\": {}}'); print('hello'); print('[1')")
    result = run_stage("playing", my_add, command, time.monotonic() + 60, said.append)
    assert [line.strip() for line in said] == ['{"Ended": {}}', "hello", "[1"]
    assert "No case has passed." in page("GPU", "", [result])


def test_a_stage_that_was_cut_off_is_a_failure() -> None:
    cut = Result("graph", [Cell("Double", "graph cuda", "f32", 3)], not_run="the time is up")
    assert "- graph: the stage didn't come to its end: the time is up" in page("GPU", "", [cut])
    assert "None." in page(
        "GPU", "", [Result("torch", [Cell("A", "x", "f32", 3)]), Result("peers", not_run="no torch")]
    )


def test_the_page_shows_everything_failures_included() -> None:
    results = [
        Result(
            "kernels", [Cell("Double", "kernels cuda", "f32", 3), Cell("Double", "kernels cuda", "f64", 3)], seconds=4
        ),
        Result(
            "tensorrt",
            [
                Cell("Double", "tensorrt cuda", "f32", 1, failures=["a case: 2 elements differ", "another: refused"]),
                Cell("Double", "tensorrt cuda", "f64", skipped="TensorRT has no tensors of f64"),
            ],
        ),
        Result("memcheck", [Cell("Double", "memcheck cuda", "f32", 3)]),
        Result("racecheck", not_run="there is no compute-sanitizer on PATH"),
        Result(
            "times", timings=[Timed("Double", "f32", "1 Mi", "kernel", 2.0, 4_000_000)], facts=[Fact("copy", "4e9")]
        ),
        Result("peers", timings=[Timed("Double", "f32", "1 Mi", "torch.mul", 3.0, 4_000_000)]),
        Result("profile", kernels=[Profiled("Double", "f32", "run<4>", 2.0, 1.0, 91.4, 40.2, 88.0, 32)]),
    ]
    text = page("NVIDIA X", "2026-11-21, driver 1.", results, ["torch, because it is missing"])
    assert text.startswith("# NVIDIA X\n\n2026-11-21, driver 1.\n")
    assert "| kernels | 4 | 6 passed |" in text
    assert "| tensorrt | 0 | 1 passed, 2 failed |" in text
    assert "| racecheck | 0 | not run: there is no compute-sanitizer on PATH |" in text
    assert "Left out of the build: torch, because it is missing." in text
    assert "- tensorrt: Double f32: a case: 2 elements differ\n- tensorrt: Double f32: another" in text
    assert "| op | dtypes | kernels cuda | tensorrt cuda |\n|---|---|---|---|\n" in text
    assert "| Double | f32 | 3/3 | 1/3 |" in text
    assert "| Double | f64 | 3/3 | (1) |" in text
    assert "\n1. TensorRT has no tensors of f64\n" in text
    assert "| Double | f32 | 1 Mi | 2.0000 | 2 | 50% | torch.mul 3.000 ms (1.50) |" in text
    assert "| Double | f32 | `run<4>` | 2.0000 | 100% | 91 | 40 | 88 | 32 |" in text


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a stand-in for compute-sanitizer on PATH and returns its folder.

    The stand-in runs the program that comes after its options. If its folder has a file `bad`, it reports an error
    once and ends.
    """
    program = tmp_path / "compute-sanitizer"
    program.write_text(
        "#!/bin/bash\n"
        "while [[ $1 == --* ]]; do case $1 in --log-file) log=$2;; --error-exitcode) code=$2;; esac; shift 2; done\n"
        'log="${log/\\%p/$$}"\n'
        f'if [ -e {tmp_path}/bad ]; then rm {tmp_path}/bad; echo "Invalid __global__ write" > "$log"; exit "$code"; fi\n'
        'echo "ERROR SUMMARY: 0 errors" > "$log"\n'
        '"$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_sanitizers_run_every_case_and_their_findings_are_failures(
    tool: Path, runner: Path, my_add: list[Item]
) -> None:
    def run() -> list[Cell]:
        return [event.cell for event in sanitize("memcheck", runner, my_add[:2], tool) if isinstance(event, Ended)]

    cells = run()
    assert [cell.engine for cell in cells] == ["memcheck cuda"] * 2
    assert all(cell.passed and not cell.failures for cell in cells)
    (tool / "bad").write_text("")
    first, second = run()  # two items of one op, which share a process
    (ended,), (found,) = first.failures, second.failures
    assert "the process ended with exit status 9" in ended and "Invalid __global__ write" in found
    assert first.passed > 2 and second.passed > 2


def test_without_its_tools_a_stage_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, my_add: list[Item]) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (event,) = sanitize("racecheck", tmp_path / "runner", my_add, tmp_path)
    assert isinstance(event, Fact) and "no compute-sanitizer on PATH" in event.text
    (event,) = profile(tmp_path / "runner", my_add, tmp_path)
    assert isinstance(event, Fact) and "no ncu on PATH" in event.text


def test_a_profile_is_read_kernel_by_kernel() -> None:
    rows = [
        (
            "0",
            "void run<(int)4, float, (bool)1>(long, T1 *)",
            "dram__throughput.avg.pct_of_peak_sustained_elapsed",
            "%",
            "91.5",
        ),
        ("0", "void run<(int)4, float, (bool)1>(long, T1 *)", "gpu__time_duration.sum", "us", "1,500.0"),
        ("0", "void run<(int)4, float, (bool)1>(long, T1 *)", "launch__registers_per_thread", "register/thread", "32"),
        (
            "0",
            "void run<(int)4, float, (bool)1>(long, T1 *)",
            "sm__inst_executed.avg.pct_of_peak_sustained_elapsed",
            "%",
            "40",
        ),
        (
            "0",
            "void run<(int)4, float, (bool)1>(long, T1 *)",
            "sm__warps_active.avg.pct_of_peak_sustained_active",
            "%",
            "88",
        ),
        ("1", "tiny()", "gpu__time_duration.sum", "ns", "900"),
    ]
    log = '==PROF== Connected\n"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
    log += "".join(",".join(f'"{value}"' for value in row) + "\n" for row in rows)
    (kernel,) = read_profile("Mish", "f32", log)
    assert kernel == Profiled("Mish", "f32", "run<4, float, 1>", 1.5, pytest.approx(1.5 / 1.5009), 91.5, 40, 88, 32)
