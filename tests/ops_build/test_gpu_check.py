"""`make gpu-check` on a machine without a GPU: its message, its report, and how it calls compute-sanitizer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ops_build.building.toolchain import NO_GPU
from ops_build.gpu import check
from ops_build.gpu.check import Findings, Timing, page, sanitize, sanitizer_engines
from ops_build.gpu.runner import KernelsEngine
from ops_build.verification.engine import Absent
from ops_build.verification.verify import Cell
from tests.ops_build.cuda_emulation.build import build
from tests.ops_build.test_cuda_emulation import FOLDER


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(check, "gpus", list)
    monkeypatch.setattr("sys.argv", ["gpu-check"])
    assert check.main() == 2
    assert NO_GPU in " ".join(capsys.readouterr().out.split())


def test_the_page_shows_everything_failures_included() -> None:
    cells = [
        Cell("Double", "kernels cuda", "f32", passed=3),
        Cell("Double", "tensorrt cuda", "f32", passed=1, failures=["a case: 2 elements differ", "another: refused"]),
        Cell("Double", "kernels cuda", "f64", passed=3),
        Cell("Double", "tensorrt cuda", "f64", skipped="TensorRT has no tensors of f64"),
    ]
    sanitized = [
        Cell("Double", "memcheck cuda", "f32", passed=3),
        Absent("racecheck", "cuda", "there is no compute-sanitizer on PATH"),
    ]
    timings = [Timing("Double", "f32", "1 Mi", 2.0, 4_000_000)]
    text = page(Findings("NVIDIA X", "2026-11-21, driver 1.", cells, sanitized, timings, bandwidth=4e9))
    assert text.startswith("# NVIDIA X\n\n2026-11-21, driver 1.\n")
    assert "| op | dtypes | kernels cuda | tensorrt cuda |\n|---|---|---|---|\n" in text
    assert "| Double | f32 | 3/3 | 1/3 |" in text
    assert "| Double | f64 | 3/3 | (1) |" in text
    assert "\n1. TensorRT has no tensors of f64\n" in text
    assert "Failures:\n\n- Double f32 on tensorrt cuda: a case: 2 elements differ\n- Double f32 on tensorrt" in text
    assert "- memcheck: 3 cases, nothing found" in text
    assert "- racecheck: not run: there is no compute-sanitizer on PATH" in text
    assert "| Double | f32 | 1 Mi | 2.000 | 2 | 50% |" in text


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a stand-in for compute-sanitizer on PATH and returns its folder.

    The stand-in runs the program that comes after its options. If its folder has a file `bad`, it reports an error.
    """
    program = tmp_path / "compute-sanitizer"
    program.write_text(
        "#!/bin/bash\n"
        "while [[ $1 == --* ]]; do case $1 in --log-file) log=$2;; --error-exitcode) code=$2;; esac; shift 2; done\n"
        '"$@" || exit\n'
        f'if [ -e {tmp_path}/bad ]; then echo "Invalid __global__ write" > "$log"; exit "$code"; fi\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_sanitizers_run_every_case_and_their_findings_are_failures(tool: Path) -> None:
    runner = build(FOLDER)
    ops = [op for op in KernelsEngine(runner).ops() if op.name == "MyAdd"]

    def run() -> list[Cell]:
        results = sanitize(list(sanitizer_engines(runner, tool)), ops, tool, lambda text: None)
        assert all(isinstance(cell, Cell) for cell in results)
        return [cell for cell in results if isinstance(cell, Cell)]

    cells = run()
    assert {cell.engine for cell in cells} == {"memcheck cuda", "racecheck cuda"}
    assert all(cell.passed and not cell.failures for cell in cells)
    (tool / "bad").write_text("")
    failures = [failure for cell in run() for failure in cell.failures]
    assert len(failures) == 2 and all("Invalid __global__ write" in failure for failure in failures)


def test_without_compute_sanitizer_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    engines = list(sanitizer_engines(tmp_path / "runner", tmp_path))
    assert [type(engine) for engine in engines] == [Absent, Absent]
