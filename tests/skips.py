"""Why a test may be skipped. Every other reason fails it."""

from __future__ import annotations

import re

import pytest

#: What a skipped test needs, and how its reason says so.
REASONS = {
    "make test-all": r"make test-all runs it",
    "an NVIDIA GPU": r"GPU",
    "the headers of LiteRT": r"litert",
}


def check(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Fails the report of a skip whose reason is none of REASONS."""
    if not report.skipped or hasattr(report, "wasxfail") or not isinstance(report.longrepr, tuple):
        return
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if not any(re.search(pattern, reason) for pattern in REASONS.values()):
        report.outcome = "failed"
        report.longrepr = f"tests/skips.py lists no such reason to skip a test: {reason}"
