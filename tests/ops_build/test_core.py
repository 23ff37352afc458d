from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from ops_build.building.options import PROJECT


def test_the_core_under_the_sanitizers() -> None:
    """Builds and runs tests/ops_build/core, GoogleTest under the address and undefined-behaviour sanitizers."""
    work = PROJECT / "build" / "core_tests"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    for command in (
        ["cmake", "-S", str(Path(__file__).parent / "core"), "-B", str(work), *generator],
        ["cmake", "--build", str(work), "--parallel", "2"],
        [str(work / "core_tests"), "--gtest_brief=1"],
    ):
        finished = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "PASSED" in finished.stdout
