"""Formatting, lint and types. `make check` runs this file alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.running import ROOT

BIN = Path(sys.executable).parent


@pytest.mark.parametrize("command", [("ruff", "check"), ("ruff", "format", "--check"), ("mypy",)], ids=" ".join)
def test_python(command: tuple[str, ...]) -> None:
    run(*command)


def test_cpp() -> None:
    folders = [ROOT / name for name in ("benchmarks", "ops_build", "service", "tests")]
    files = [file for folder in folders for ending in ("cpp", "h", "cu", "cuh") for file in folder.rglob(f"*.{ending}")]
    assert len(files) > 300
    run("clang-format", "--dry-run", "--Werror", *map(str, files))


def run(name: str, *arguments: str) -> None:
    """Runs a program of this environment."""
    finished = subprocess.run([BIN / name, *arguments], capture_output=True, text=True, cwd=ROOT)
    assert finished.returncode == 0, finished.stdout + finished.stderr
