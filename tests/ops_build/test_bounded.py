"""What attributes, dims and values ask of memory and time is bounded, or refused by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import PROJECT
from tests.conftest import ALL

#: The memory that a call may take, and the processor's time for all of them. Where an op isn't bounded, a call takes
#: gigabytes or minutes.
MEBIBYTES, SECONDS = 400, 600 if ALL else 60


def test_hostile_calls_are_refused_or_bounded(library: Path) -> None:
    command = [sys.executable, "-m", "tests.ops_build.hostile_calls", str(library), str(MEBIBYTES), str(SECONDS)]
    run = subprocess.run(
        [*command, *(["all"] if ALL else [])], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    lines = run.stdout.splitlines()
    assert not [line for line in lines if line.startswith("wrong: ")]
    assert lines and lines[-1] == "done", f"{lines[-1:]} ended the process with {run.returncode}: {run.stderr[-2000:]}"
    assert len(lines) > 1000
