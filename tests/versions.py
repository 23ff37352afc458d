"""Runs every case of every op with many versions of engines, each in an environment of its own.

    make versions            or  python -m tests.versions [--only onnxruntime] [--known]

All versions of an engine get the same file, which is known by its SHA-256. The environments are kept in build/versions,
and so is what came of a file in a version, so that the next run does only what is new. The page is docs/versions.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from opgate.ops_build.building.options import BuildOptions
from opgate.ops_build.op_table import read_table
from opgate.ops_build.verification.sources import adapters_of
from opgate.ops_build.verification.supervision import supervised
from opgate.ops_build.verification.verify import Cell, verify
from tests import PROJECT

FOLDER = PROJECT / "build" / "versions"
PAGE = PROJECT / "docs" / "versions.md"
#: What the processes of the engines import beside the engine itself.
BESIDE = ("ml_dtypes", "numpy", "onnx", "rich")
#: The Python of the versions of engines, and others that are tried with the newest engines.
PYTHON, OTHERS = "3.11", ("3.12", "3.13", "3.14")
#: NumPy 2 came after these.
_BEFORE_NUMPY_2 = re.compile(r"1\.1[78]\.")


@dataclass(frozen=True, slots=True)
class Environment:
    """Packages, as pip writes them, in a version of Python."""

    engine: str
    packages: tuple[str, ...]
    python: str = PYTHON

    @property
    def name(self) -> str:
        """What its folder is called, and what came of it."""
        return re.sub(r"[^\w.-]+", "-", "_".join((*self.packages, f"python-{self.python}")))


def environments() -> list[Environment]:
    """Returns those that are tried, in the order of the page."""
    found = []
    for minor in range(17, 33):
        packages: tuple[str, ...] = (f"onnxruntime==1.{minor}.*",)
        if _BEFORE_NUMPY_2.match(f"1.{minor}."):
            packages += ("numpy<2", "onnx<1.18", "ml_dtypes<0.5")
        found.append(Environment("onnxruntime", packages))
    found += [Environment("onnxruntime", ("onnxruntime", f"numpy=={numpy}.*")) for numpy in ("1.26", "2.0", "2.2")]
    found += [Environment("onnxruntime", ("onnxruntime",), python) for python in OTHERS]
    found += [Environment("torch", (f"torch==2.{minor}.*",)) for minor in range(10, 14)]
    found += [Environment("torch", ("torch",), python) for python in OTHERS]
    return found


def interpreter(environment: Environment) -> Path | str:
    """Returns the interpreter of an environment, which is made if it isn't there, or why it can't be had."""
    folder = FOLDER / environment.name
    python = folder / "bin" / "python"
    if (folder / ".complete").exists():
        return python
    uv = [sys.executable, "-m", "uv"] if _has_uv() else ["uv"]
    made = _run(
        [*uv, "venv", "--quiet", "--clear", "--no-python-downloads", "--python", environment.python, str(folder)]
    )
    if made:
        return f"there is no Python {environment.python}"
    stated = {re.match(r"[\w-]+", package)[0] for package in environment.packages}  # type: ignore[index]
    beside = [package for package in BESIDE if package not in stated]
    failed = _run([*uv, "pip", "install", "--quiet", "--python", str(python), *environment.packages, *beside])
    if failed:
        return "no wheel can be had" if "no wheels" in failed or "no version" in failed else failed.splitlines()[-1]
    (folder / ".complete").touch()
    return python


@cache
def _has_uv() -> bool:
    return subprocess.run([sys.executable, "-m", "uv", "--version"], capture_output=True).returncode == 0


def _run(command: list[str]) -> str:
    """Runs a command. Returns what it says if it fails."""
    finished = subprocess.run(command, capture_output=True, text=True)
    return "" if finished.returncode == 0 else finished.stderr.strip() or "it failed"


def versions_in(python: Path, engine: str) -> str:
    """Returns the versions of the engine, NumPy and Python in an environment, as the page has them."""
    program = f"import sys, {engine}, numpy; print({engine}.__version__, numpy.__version__, sys.version.split()[0])"
    return subprocess.run([str(python), "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def try_out(environment: Environment, python: Path, options: BuildOptions) -> dict[str, Any]:
    """Returns what came of every case in an environment."""
    table = read_table(options.library("onnxruntime"))
    sources = [source for source in adapters_of(options) if source.name == environment.engine]
    with supervised(sources, python=python) as engines:
        cells: list[Cell] = verify(table, list(options.ops), list(engines))
    cells = [cell for cell in cells if "cuda" not in cell.engine]
    skipped = Counter(cell.skipped for cell in cells if cell.skipped)
    return {
        "passed": sum(cell.passed for cell in cells),
        "failed": [f"{cell.op} {cell.types}: {text}" for cell in cells for text in cell.failures],
        "skipped": dict(skipped),
    }


def row_of(
    environment: Environment, options: BuildOptions, known: dict[str, Any], *, runs: bool = True
) -> tuple[str, ...]:
    """Returns a row of the page. `known` has what came of earlier runs, and gets what comes of this one if it `runs`."""
    library = options.library(environment.engine)
    key = f"{environment.name} {hashlib.sha256(library.read_bytes()).hexdigest()}"
    if key not in known and not runs:
        return (*environment.packages[:1], "", environment.python, "not tried with this file")
    python = interpreter(environment)
    if isinstance(python, str):
        return (*environment.packages[:1], "", environment.python, python)
    if key not in known:
        known[key] = {"versions": versions_in(python, environment.engine), **try_out(environment, python, options)}
    found = known[key]
    engine, numpy, own = found["versions"].split()
    return f"{environment.engine} {engine}", numpy, own, _result(found)


def _result(found: dict[str, Any]) -> str:
    text = f"{found['passed']:,} passed"
    if found["failed"]:
        text += f", {len(found['failed'])} failed: {'; '.join(found['failed'][:2])[:300]}"
    for why, count in found["skipped"].items():
        text += f"; {count} of op and dtype not run: {why[:200]}"
    return text.replace("|", "\\|").replace("\n", " ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="an engine")
    parser.add_argument("--known", action="store_true", help="make the page from what is known, and run nothing")
    parser.add_argument("--output", type=Path, help="the page; without it, and with --only, none is written")
    options = parser.parse_args()
    output = options.output or (None if options.only else PAGE)
    build = BuildOptions()
    FOLDER.mkdir(parents=True, exist_ok=True)
    results = FOLDER / "results.json"
    known = json.loads(results.read_text()) if results.exists() else {}
    rows, failed = [], False
    chosen = [each for each in environments() if options.only in ("", each.engine)]
    for number, environment in enumerate(chosen, 1):
        print(f"{number} of {len(chosen)}  {environment.name}", flush=True)
        rows.append(row_of(environment, build, known, runs=not options.known))
        print("    " + ", ".join(rows[-1]), flush=True)
        results.write_text(json.dumps(known, indent=1))
        failed |= "failed" in rows[-1][-1] or rows[-1][-1].startswith("0 passed")
    digests = {
        engine: hashlib.sha256(build.library(engine).read_bytes()).hexdigest()
        for engine in dict.fromkeys(environment.engine for environment in chosen)
    }
    lines = [
        "# Versions of engines",
        "",
        "Every case of every op, in each of these versions, with one and the same file for an engine. Each version has an",
        "environment of its own. `make versions` makes this page.",
        "",
        *(f"- `{build.library(engine).name}`, SHA-256 `{digest}`" for engine, digest in digests.items()),
        "",
        "| engine | NumPy | Python | cases |",
        "|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]
    if output is not None:
        output.write_text("\n".join(lines), encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
