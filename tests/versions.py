"""Runs every case of every op with many versions of engines, each in an environment of its own.

    make versions            or  python -m tests.versions [--only jax] [--known]

All versions of an engine get the same file, which is known by its SHA-256. The environments are kept in build/versions,
and so is what came of a file in a version, so that the next run does only what is new. A version of Python is tried if
it is on the PATH. The page is docs/versions.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from opgate.ops_build.building.options import BuildOptions
from opgate.ops_build.engines.engine import CaseRefused
from opgate.ops_build.op_table import read_table
from opgate.ops_build.verification.sources import adapters_of, callers_of
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
_BEFORE_NUMPY_2 = re.compile(r"onnxruntime==1\.1[78]\.")


class Engine(NamedTuple):
    """The package of an engine, and its versions from the oldest on. `library` is the engine whose library it loads,
    and `fits_one` whether that fits only the version that it was built with."""

    package: str
    versions: tuple[str, ...]
    library: str
    fits_one: bool = False


def _minors(major: int, first: int, last: int) -> tuple[str, ...]:
    return tuple(f"{major}.{minor}" for minor in range(first, last + 1))


ENGINES = {
    "onnxruntime": Engine("onnxruntime", _minors(1, 17, 32), "onnxruntime"),
    "torch": Engine("torch", _minors(2, 10, 15), "torch"),
    "jax": Engine("jax", _minors(0, 6, 10), "onnxruntime"),
    "openvino": Engine("openvino", (*_minors(2025, 0, 4), *_minors(2026, 0, 4)), "onnxruntime"),
    "tensorflow": Engine("tensorflow-cpu", _minors(2, 18, 21), "tensorflow", fits_one=True),
    "litert": Engine("ai-edge-litert", (*_minors(1, 1, 4), *_minors(2, 0, 3)), "litert"),
    # The parser of TensorRT-RTX before 1.7 takes no plugins.
    "tensorrt": Engine("tensorrt-rtx-cu13-bindings", ("1.7",), "tensorrt"),
}


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


def environment_of(engine: str, version: str = "", python: str = PYTHON) -> Environment:
    """Returns the environment with a version of an engine, the newest one by default."""
    package = ENGINES[engine].package
    exact = f"=={version}.*" if version else ""
    packages: tuple[str, ...] = (f"{package}{exact}",)
    if engine == "tensorrt":
        packages += (f"tensorrt-rtx-cu13-libs{exact}",)
    if engine == "litert":
        packages += ("flatbuffers",)  # what makes models for it
    if _BEFORE_NUMPY_2.match(packages[0]):
        packages += ("numpy<2", "onnx<1.18", "ml_dtypes<0.5")
    return Environment(engine, packages, python)


def environments() -> list[Environment]:
    """Returns those that are tried, in the order of the page."""
    found = []
    for name, engine in ENGINES.items():
        found += [environment_of(name, version) for version in engine.versions]
        if name == "onnxruntime":
            found += [Environment(name, (name, f"numpy=={numpy}.*")) for numpy in ("1.26", "2.0", "2.2")]
        found += [environment_of(name, python=python) for python in OTHERS]
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


def versions_in(python: Path, package: str) -> str:
    """Returns the versions of the engine's package, NumPy and Python in an environment, as the page has them."""
    program = (
        "import sys; from importlib.metadata import version as of;"
        "print(of(sys.argv[1]), of('numpy'), sys.version.split()[0])"
    )
    command = [str(python), "-c", program, package]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def try_out(
    environment: Environment, python: Path, options: BuildOptions, names: Collection[str] = ()
) -> dict[str, Any]:
    """Returns what came of every case in an environment: of all ops, or of those with the names."""
    table = read_table(options.library("onnxruntime"))
    ops = [op for op in table if not names or op.name in names]
    if environment.engine == "tensorrt":
        return _layers(python, options, names)
    sources = [each for each in (*adapters_of(options), *callers_of(options)) if each.name == environment.engine]
    try:
        with supervised(sources, python=python) as engines:
            cells: list[Cell] = verify(ops, list(options.ops), list(engines), table=table)
    except CaseRefused as error:  # the library, when it was loaded
        if error.kind != "LoadError":
            return {"passed": 0, "failed": [f"{error.kind}: {error}"], "skipped": {}}
        return {"refused": str(error).splitlines()[0].replace(f"{options.output}/", "")}
    cells = [cell for cell in cells if "cuda" not in cell.engine]
    skipped = Counter(cell.skipped for cell in cells if cell.skipped)
    return {
        "passed": sum(cell.passed for cell in cells),
        "failed": [f"{cell.op} {cell.types}: {text}" for cell in cells for text in cell.failures],
        "skipped": dict(skipped),
    }


def _layers(python: Path, options: BuildOptions, names: Collection[str]) -> dict[str, Any]:
    """Returns what came of the plugins in TensorRT-RTX, which makes layers and engines without a GPU, and runs none."""
    from tests.ops_build.test_tensorrt_adapter import check_all, on_cuda

    ops = [op for op in on_cuda(options.library("onnxruntime_cuda")) if not names or op.name in names]
    with TemporaryDirectory() as folder:
        try:
            count = check_all(options.library("tensorrt"), ops, options.ops[0], Path(folder), python)
        except AssertionError as error:
            return {"passed": 0, "failed": [str(error)], "skipped": {}}
    return {"passed": count, "failed": [], "skipped": {}, "note": "layers and engines, not run"}


def row_of(
    environment: Environment, options: BuildOptions, known: dict[str, Any], *, runs: bool = True
) -> tuple[str, ...]:
    """Returns a row of the page. `known` has what came of earlier runs, and gets what comes of this one if it `runs`. If
    it doesn't, the row is of the last file that was tried."""
    engine = ENGINES[environment.engine]
    library = options.library(engine.library)
    of_no_file = (*environment.packages[:1], "", environment.python, "")
    if runs and not library.is_file():
        return (*of_no_file, f"{library.name} is not built")
    digest = hashlib.sha256(library.read_bytes()).hexdigest() if library.is_file() else ""
    key = f"{environment.name} {digest}"
    if key not in known and runs:
        python = interpreter(environment)
        if isinstance(python, str):
            return (*of_no_file, python)
        known[key] = {"versions": versions_in(python, engine.package), **try_out(environment, python, options)}
    tried = [key] if key in known else [other for other in known if other.startswith(f"{environment.name} ")]
    if not tried:
        return (*of_no_file, "not tried")
    found = known[tried[-1]]
    version, numpy, own = found["versions"].split()
    return f"{engine.package} {version}", numpy, own, tried[-1].rpartition(" ")[2][:8], _result(found)


def _result(found: dict[str, Any]) -> str:
    if "refused" in found:
        return f"refused: {found['refused']}".replace("|", "\\|")
    text = f"{found['passed']:,} passed"
    if "note" in found:
        text += f" ({found['note']})"
    if found["failed"]:
        text += f", {len(found['failed'])} failed: {'; '.join(found['failed'][:2])[:300]}"
    if found["skipped"]:
        why = max(found["skipped"], key=found["skipped"].__getitem__)
        text += f"; {sum(found['skipped'].values())} of op and dtype not run, most often: {why[:200]}"
    return text.replace("|", "\\|").replace("\n", " ")


def is_bad(engine: Engine, result: str) -> bool:
    """Returns whether a result is not as it must be."""
    if result.startswith("refused"):
        return not engine.fits_one
    return "failed:" in result or not re.match(r"[1-9][\d,]* passed|not tried$|no wheel|there is no Python", result)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="an engine, or a part of the name of environments")
    parser.add_argument("--known", action="store_true", help="make the page from what is known, and run nothing")
    parser.add_argument("--output", type=Path, help="the page; without it, and with --only, none is written")
    options = parser.parse_args()
    output = options.output or (None if options.only else PAGE)
    build = BuildOptions()
    FOLDER.mkdir(parents=True, exist_ok=True)
    results = FOLDER / "results.json"
    known = json.loads(results.read_text()) if results.exists() else {}
    rows, failed = [], False
    chosen = [each for each in environments() if options.only == each.engine or options.only in each.name]
    for number, environment in enumerate(chosen, 1):
        print(f"{number} of {len(chosen)}  {environment.name}", flush=True)
        rows.append(row_of(environment, build, known, runs=not options.known))
        print("    " + ", ".join(rows[-1]), flush=True)
        results.write_text(json.dumps(known, indent=1))
        failed |= is_bad(ENGINES[environment.engine], rows[-1][-1])
    lines = [
        "# Versions of engines",
        "",
        f"Every case of every op, in {sum(bool(row[1]) for row in rows)} versions; {sum(not row[1] for row in rows)} others were not tried. Each has an environment of its own.",
        "`make versions` makes this page: it tries the same file of an engine in all of its versions, and each version of",
        "Python that is on the `PATH`. A row has the first digits of the SHA-256 of the file that was tried there last.",
        "",
        "JAX and OpenVINO call the library for ONNX Runtime. TensorFlow's fits the version that it was built with, and refuses",
        "others by name. TensorRT-RTX makes layers and engines of the plugins and runs none; before 1.7 its parser takes no",
        "plugins.",
        "",
        "| engine | NumPy | Python | file | cases |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]
    if output is not None:
        output.write_text("\n".join(lines), encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
