"""Where the libraries of a package come from: their sources, and the engines in which every case has passed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from opgate.engine_range import PACKAGES
from opgate.ops_build.building.manifest import listed_libraries, sha256
from opgate.ops_build.building.options import BuildOptions
from opgate.ops_build.op_folder import op_folders
from opgate.ops_build.verification.report import is_green
from opgate.ops_build.verification.verify import Cell

#: Beside the manifest: what came of the last `opgate verify` of all ops.
VERIFIED = "verified.json"
#: The packages that may have an engine, and which library of a build it calls.
_PACKAGES: Mapping[str, tuple[tuple[str, ...], str]] = {
    **{engine: (packages, engine) for engine, packages in PACKAGES.items()},
    "jax": (("jax",), "onnxruntime"),
    "openvino": (("openvino",), "onnxruntime"),
}


def record(options: BuildOptions, cells: Sequence[Cell]) -> None:
    """Notes in the folder of the build what came of all cases of all ops: the engines in which they have passed, with
    their versions, or nothing if one has failed."""
    (options.output / VERIFIED).unlink(missing_ok=True)
    if not is_green(cells):
        return
    passed: Counter[str] = Counter()
    for cell in cells:
        passed[cell.engine] += cell.passed
    found: list[dict[str, Any]] = []
    for where, count in sorted(passed.items()):
        engine, _, device = where.partition(" ")
        if engine not in _PACKAGES or device != "cpu":
            continue
        packages, name = _PACKAGES[engine]
        library, installed = options.target(name), next(filter(None, map(_version, packages)), "")
        if count and installed and library.is_file():
            entry = {"engine": engine, "version": installed, "device": device, "cases": count}
            found.append({**entry, "library": sha256(library)})
    if found:
        (options.output / VERIFIED).write_text(json.dumps(found, indent=2) + "\n")


def provenance(options: BuildOptions) -> dict[str, Any]:
    """Returns what a package states of its libraries: the hash of the ops' sources, the version of opgate, and the
    engines in which every case has passed with these very libraries."""
    libraries = {entry["sha256"] for entry in listed_libraries(options)}
    try:
        noted = json.loads((options.output / VERIFIED).read_text())
    except (OSError, ValueError):
        noted = []
    verified = [entry for entry in noted if entry["library"] in libraries]
    return {"sources": _hash_of_sources(options), "opgate": _version("opgate"), "verified": verified}


def _hash_of_sources(options: BuildOptions) -> str:
    """Returns a SHA-256 of the names and contents of all files of the ops."""
    found = hashlib.sha256()
    for ops in options.ops:
        for folder in op_folders(ops):
            for file in sorted(path for path in folder.path.rglob("*") if path.is_file() and _is_source(path)):
                found.update(f"{file.relative_to(ops)}\0{sha256(file)}\n".encode())
    return found.hexdigest()


def _is_source(file: Path) -> bool:
    return "__pycache__" not in file.parts and not file.name.startswith(".")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
