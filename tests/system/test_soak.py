"""A short soak: see `soaking`. `make soak` runs the long one."""

from __future__ import annotations

from pathlib import Path

from tests.system.soaking import soak


def test_no_answer_is_wrong_missing_or_swapped(tmp_path: Path, library: Path) -> None:
    report = soak(tmp_path, library, tiny=4000, pictures=150, large=10)
    assert not report.wrong, report.wrong[:5]
    assert report.answers["tiny"] == 4000 and report.answers["picture"] == 150 and report.answers["large"] == 10
    assert report.kills and report.reloads and report.left and report.answers["slow"]
    assert report.unloads and report.answers["spare"]
    # A kill costs the requests of one batch.
    assert sum(report.died.values()) <= 16 * report.kills
