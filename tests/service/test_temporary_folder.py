"""The folder of a gateway's temporary files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from opgate.service.repository.config import ConfigError, read_text
from opgate.service.temporary_folder import TemporaryFolder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_gateways_that_start_together(folder):
    """Each cleans up what is left, and takes no folder of another one for that."""
    program = (
        "from opgate.service.temporary_folder import TemporaryFolder\nfor _ in range(200): TemporaryFolder().remove()"
    )
    environment = {**os.environ, "TMPDIR": str(folder)}
    starting = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(4)]
    assert [process.wait(60) for process in starting] == [0] * 4
    assert list(folder.iterdir()) == []


def test_another_gateway_takes_the_new_folder_away(folder, monkeypatch):
    made = []
    make = tempfile.mkdtemp

    def make_and_lose_the_first(prefix):
        made.append(make(prefix=prefix))
        if len(made) == 1:
            shutil.rmtree(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose_the_first)
    kept = TemporaryFolder()
    assert len(made) == 2 and kept.folder == Path(made[1]) and kept.folder.is_dir()
    kept.remove()


def test_a_folder_is_no_config_and_keeps_no_descriptor(tmp_path):
    (tmp_path / "config.pbtxt").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(ConfigError, match=r"is no regular file|can't be read"):
            read_text(tmp_path / "config.pbtxt", 100)
    assert len(os.listdir("/proc/self/fd")) == before
