"""Writes and reads the manifest, the list of the libraries that a build has written."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opgate.ops_build.building.old_glibc import OLDEST
from opgate.ops_build.building.options import ROOMS, BuildError, BuildOptions
from opgate.ops_build.building.toolchain import Library, Toolchain
from opgate.ops_build.op_folder import SOURCE_SUFFIXES
from opgate.ops_build.op_table import Op, read_table
from opgate.ops_build.python_ops.op_file import FILE

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1


def write_manifest(
    options: BuildOptions, compiler: str, toolchains: Mapping[str, Toolchain], left_out: Mapping[str, str]
) -> None:
    """Writes the manifest: the libraries with their hashes and ops. `compiler` is the version of the compiler.

    Raises BuildError if a library states an op wrongly.
    """
    libraries: list[tuple[str, Library]] = [
        (engine, library) for engine, toolchain in toolchains.items() for library in toolchain.libraries
    ]
    native = options.native()  # this machine can't load a library for another architecture
    tables = {
        library.name: _table(options, native.target(library.name)) for _, library in libraries if library.has_table
    }
    # Keep what other builds have listed here, and the libraries that the operator trusts, which have no domain.
    entries = [
        entry
        for entry in _entries(options)
        if "domain" not in entry
        or (
            (entry["domain"] != options.domain or entry.get("engine") not in options.engines)
            and (options.output / str(entry.get("file"))).is_file()
        )
    ]
    for engine, library in libraries:
        # A library without a table, which may export only its engine's entry points, has the same ops as the others.
        table = tables[library.name] if library.has_table else max(tables.values(), key=_devices, default=[])
        ops = [op for op in table if set(op.devices) & set(library.devices)]
        path = options.target(library.name)
        entries.append(
            {
                "file": path.name,
                "sha256": sha256(path),
                "engine": engine,
                "devices": list(library.devices),
                "domain": options.domain,
                "compiler": compiler,
                "flags": options.instruction_sets[0],
                "cpu_levels": list(options.instruction_sets[1]),
                **({"glibc": ".".join(map(str, OLDEST))} if options.portable else {}),
                "ops": [_manifest_op(op, library.devices) for op in ops],
                **library.details,
            }
        )
    document = {"format": MANIFEST_FORMAT, "libraries": entries, "left_out": dict(left_out)}
    target = options.output / MANIFEST
    temporary = target.with_suffix(".new")
    temporary.write_text(json.dumps(document, indent=2) + "\n")
    temporary.replace(target)


def _devices(ops: Sequence[Op]) -> int:
    return sum(len(op.devices) for op in ops)


def _table(options: BuildOptions, library: Path) -> list[Op]:
    if options.sanitize:  # only a process with the sanitizer's runtime can load the library
        return []
    try:
        ops = read_table(library)
    except (ValueError, OSError) as error:
        raise BuildError(str(error)) from error
    if not ops:
        raise BuildError(f"{library.name} holds no op: does each kernel end with OPGATE_CPU_KERNEL(Tag, Kernel)?")
    return ops


def _manifest_op(op: Op, devices: Sequence[str]) -> dict[str, Any]:
    return {
        "name": op.name,
        "since_version": op.since_version,
        "signature": op.signature,
        "dtypes": list(op.dtypes),
        "devices": [device for device in op.devices if device in devices],
    }


def compiler_of(work: Path) -> str:
    """Returns the version of the compiler of a configured build. Raises BuildError."""
    return subprocess.run(
        [cxx_compiler(work), "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]


def cxx_compiler(work: Path) -> str:
    """Returns the path of the C++ compiler of a configured build. Raises BuildError."""
    return _cached_in_cmake(work, "CMAKE_CXX_COMPILER")


def _cached_in_cmake(work: Path, name: str) -> str:
    for line in (work / "CMakeCache.txt").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.split("=", 1)[1]
    raise BuildError(f"CMake's cache has no {name}")


def listed_libraries(options: BuildOptions) -> list[dict[str, Any]]:
    """Returns the entries of the manifest for libraries of the options' domain."""
    return [
        entry
        for entry in _entries(options)
        if entry.get("domain") == options.domain and entry.get("file") and entry.get("engine")
    ]


def _entries(options: BuildOptions) -> list[dict[str, Any]]:
    """Returns all entries of the manifest, without damaged ones."""
    entries = _manifest(options).get("libraries", [])
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _manifest(options: BuildOptions) -> dict[str, Any]:
    """Returns the manifest of the last build, or an empty one if the file is missing or damaged."""
    try:
        manifest = json.loads((options.output / MANIFEST).read_text())
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def left_out(options: BuildOptions) -> dict[str, str]:
    """Returns what the last build with these options left out, an engine or "cuda", with the reasons."""
    reasons: dict[str, str] = _manifest(options).get("left_out", {})
    return reasons


def why_not_built(options: BuildOptions, what: str) -> str:
    """Says why the last build with these options left out `what`, an engine or "cuda"."""
    if reason := left_out(options).get(what):
        return f"the build left out {what}: {reason}"
    return "it was not built: run opgate build" + ("" if options.ops == BuildOptions().ops else f" {options.ops[0]}")


def newer_sources(options: BuildOptions) -> list[str]:
    """Returns the names of the libraries that are older than one of their sources."""
    folders = [*options.ops, *(options.source / name for name in ("adapters", *ROOMS))]
    files = (file for folder in folders for file in folder.rglob("*.*"))
    found = (file for file in files if file.suffix in (*SOURCE_SUFFIXES, ".c") or file.name == FILE)
    own = options.output.parent if options.is_cross else options.output  # the emulation's copies are there
    sources = [file for file in found if own not in file.parents]
    newest = max((file.stat().st_mtime for file in sources), default=0.0)
    paths = [options.output / entry["file"] for entry in listed_libraries(options)]
    return [path.name for path in paths if path.is_file() and path.stat().st_mtime < newest]


def built_table(options: BuildOptions) -> list[Op]:
    """Returns the ops that the last build with these options compiled, with all their devices.

    Raises BuildError if nothing was built.
    """
    for name in ("onnxruntime_cuda", "onnxruntime", "torch", "litert"):
        if options.library(name).is_file():
            return read_table(options.library(name))
    raise BuildError(f"{options.library()} is not there: run opgate build")


def sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
