"""The files of the page are those that its sources make."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import subprocess

import pytest

from tests.system.running import ROOT

SOURCES = ROOT / "console"
FILES = ROOT / "opgate" / "service" / "console" / "files"
SUMS = FILES / "sources.sha256"
#: What a page loads, in bytes with gzip.
MOST = 100_000


def test_the_files_are_those_of_the_sources() -> None:
    listed = dict(reversed(line.split("  ")) for line in SUMS.read_text().splitlines())
    own = {
        f"console/{name}" for name in ("build.mjs", "index.html", "package-lock.json", "package.json", "tsconfig.json")
    }
    own |= {
        f"console/{path.relative_to(SOURCES).as_posix()}" for path in (SOURCES / "src").rglob("*") if path.is_file()
    }
    made = {f"files/{path.name}" for path in FILES.iterdir() if path != SUMS}
    assert set(listed) == own | made, "run `make console`"
    for name, expected in listed.items():
        path = ROOT / name if name in own else FILES / name.removeprefix("files/")
        assert hashlib.sha256(path.read_bytes()).hexdigest() == expected, f"{name} has changed: run `make console`"


def test_a_page_is_small() -> None:
    loaded = [path for path in FILES.iterdir() if path.suffix in (".html", ".js", ".css", ".svg")]
    assert len(loaded) == 4
    assert sum(len(gzip.compress(path.read_bytes())) for path in loaded) < MOST


def test_a_page_names_no_other_machine() -> None:
    page = (FILES / "index.html").read_text()
    assert re.findall(r"(?:src|href)=\"(?!console/files/)", page) == []
    assert "<style" not in page and "style=" not in page and re.search(r"<script(?![^>]* src=)", page) is None


def test_the_lock_file_names_no_registry() -> None:
    assert "resolved" not in (SOURCES / "package-lock.json").read_text()


def test_a_new_build_gives_the_same_bytes(tmp_path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    work = tmp_path / "console"
    shutil.copytree(SOURCES, work, ignore=shutil.ignore_patterns("node_modules"))
    packages = SOURCES / "node_modules"
    if packages.is_dir():
        os.symlink(packages, work / "node_modules")
    else:
        install = subprocess.run(
            [npm, "ci", "--no-audit", "--no-fund"], cwd=work, capture_output=True, text=True, timeout=120
        )
        if install.returncode:
            pytest.skip(f"npm can't install the packages of the console: {install.stderr[-300:]}")
    made = tmp_path / "files"
    node = subprocess.run(["node", "build.mjs", str(made)], cwd=work, capture_output=True, text=True, timeout=120)
    assert node.returncode == 0, node.stderr
    assert {path.name: path.read_bytes() for path in made.iterdir()} == {
        path.name: path.read_bytes() for path in FILES.iterdir()
    }
