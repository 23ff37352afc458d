"""CONTRIBUTING.md, docs/hacking.md: what they name is there, and the examples of the first are built, applied and tested
as they are shown."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parts import PARTS
from tests.system.running import ROOT

PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "hacking.md"]
CONTRIBUTING = PAGES[0].read_text()
#: The files of the op, by their paths.
FILES = dict(re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)^```$", CONTRIBUTING, re.DOTALL | re.MULTILINE))
CHANGES = re.findall(r"^```diff\n(.*?)^```$", CONTRIBUTING, re.DOTALL | re.MULTILINE)


def run(command: list[str], folder: Path, **environment: str) -> str:
    """Runs a command. Returns what it printed."""
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\((?!https://)([^)#]+)", prose)
    assert links and not [link for link in links if not (page.parent / link).exists()]
    top = "|".join(re.escape(path.name) for path in ROOT.iterdir() if path.is_dir() and path.name != "build")
    paths = set(re.findall(rf"(?<![\w/.])((?:{top})/[\w./-]*\w)", text))
    assert len(paths) > 5
    assert not [path for path in paths if path not in FILES and not (ROOT / path).exists() and ".venv" not in path]
    tests = {
        name for file in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    stems = {file.stem for file in (ROOT / "tests").rglob("test_*.py")}
    assert not {name for name in re.findall(r"\btest_\w+", text) if name not in tests | stems}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_targets_and_parts_of_make_are_there(page: Path) -> None:
    text = page.read_text()
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:`|^)make ([\w-]+)", text, re.MULTILINE)
    assert named and set(named) <= targets
    assert set(re.findall(r"PART=(\w+)", text)) <= set(PARTS)


def test_the_page_of_tests_has_every_part() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(PARTS)
    assert set(re.search(r"PART=([\w|]+) runs a part", (ROOT / "Makefile").read_text())[1].split("|")) == set(PARTS)


def test_the_op_builds_and_verifies(tmp_path: Path) -> None:
    if not shutil.which("g++"):
        pytest.skip("there is no g++")
    for path, content in {**FILES, "softsign/__init__.py": ""}.items():
        file = tmp_path / "my_ops" / "softsign" / Path(path).name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    python = [sys.executable, "-m", "opgate"]
    run([*python, "build", "my_ops", "--arch", "native", "--engine", "onnxruntime", "--cuda", ""], tmp_path)
    printed = run([*python, "verify", "--folder", "my_ops"], tmp_path)
    assert "Softsign" in printed and " 0 failed" in printed
    (fault,) = re.findall(r'^\+.*Fault\(".*?", "Softsign", ".*?", "(.*?)", ".*?"\)', CONTRIBUTING, re.MULTILINE)
    assert FILES["opgate/ops_build/ops/softsign/softsign.h"].count(fault) == 1


def test_the_changes_fit_and_their_tests_pass(library: Path, tmp_path: Path) -> None:
    """In a copy, to which all changes of the page are made."""
    left_out = shutil.ignore_patterns("__pycache__", "corpus")
    for name in ("opgate", "tests", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=left_out)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "changes").write_text("\n".join(CHANGES))
    run(["git", "apply", "changes"], tmp_path, GIT_CEILING_DIRECTORIES=str(tmp_path.parent))
    chosen = "MAX_DIM or with_its_default or only_reads or has_every_route"
    files = ["tests/system/test_limits.py", "tests/system/test_openapi.py"]
    environment = {"PYTHONPATH": str(tmp_path), "OPGATE_OPS_LIBRARY": str(library)}
    printed = run([sys.executable, "-m", "pytest", "-q", *files, "-k", chosen], tmp_path, **environment)
    assert re.search(r"^5 passed", printed, re.MULTILINE), printed
