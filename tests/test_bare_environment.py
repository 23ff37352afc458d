"""Where no optional package of opgate is installed, all tests are found, and those that can't run say what they need."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import bare_environment, skips
from tests.system.running import ROOT

#: What each engine of `make test` is imported as.
ENGINES = {
    "torch": ("torch", "onnxscript"),
    "tensorflow": ("tensorflow", "tf2onnx"),
    "litert": ("ai_edge_litert",),
    "tensorrt": ("tensorrt_rtx_bindings",),
}


def run(python: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables}
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    command = [python, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *arguments]
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    return finished.returncode, finished.stdout + finished.stderr


def test_all_tests_are_found_and_some_of_each_folder_run(tmp_path: Path, library: Path) -> None:
    python = bare_environment.make(tmp_path / "bare")
    assert subprocess.run([python, "-c", "import torch"], capture_output=True).returncode
    status, said = run(python, "--few", "tests", OPGATE_OPS_LIBRARY=str(library))
    assert status == 0, said
    skipped = re.findall(r"^SKIPPED \[\d+\] \S+ (.*)$", said, re.MULTILINE)
    assert any("torch" in reason for reason in skipped) and all(map(skips.listed, skipped)), skipped
    ran = re.search(r"(\d+) passed.* (\d+) deselected", said)
    assert ran and int(ran[1]) > 30 and int(ran[2]) > 3000, said


def test_a_skip_for_another_reason_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_runtest_makereport\n")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_listed(): pytest.skip('make test-all runs it')\n"
        "def test_unlisted(): pytest.skip('not today')\n"
    )
    status, said = run(Path(sys.executable), "--rootdir", str(tmp_path), str(tmp_path))
    assert status == 1 and "lists nothing that this skipped test needs: not today" in said
    assert re.search(r"1 failed, 1 skipped", said)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_engine_is_installed(engine: str) -> None:
    """`make test` names those that pip doesn't find for this machine, and ENGINES=... may leave one out."""
    left_out = Path(sys.prefix, ".left-out")
    if not left_out.is_file() or engine in left_out.read_text().split():
        pytest.skip(f"make test left out {engine}")
    missing = [module for module in ENGINES[engine] if find_spec(module) is None]
    assert not missing
