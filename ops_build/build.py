"""Compiling op folders into the libraries that engines load, and the manifest that lists them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops_build.headers import Headers, find_onnxruntime_headers
from ops_build.table import Op, read_table

SOURCE = Path(__file__).parent
PROJECT = SOURCE.parent
DEFAULT_OUTPUT = PROJECT / "build" / "ops"
MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1
#: The ONNX Runtime API that the adapter asks for (adapters/onnxruntime/adapter.cpp).
ONNXRUNTIME_API_VERSION = 17

Log = Callable[[str], None]


class BuildError(RuntimeError):
    """The build can't go on; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What to compile. `ops` are folders whose subfolders are ops; the libraries are called lib<prefix>_<engine>.so."""

    output: Path = DEFAULT_OUTPUT
    ops: tuple[Path, ...] = (SOURCE / "ops",)
    domain: str = "opgate"
    prefix: str = "opgate"
    arch: str = "-march=x86-64-v3"
    sanitize: str = ""
    build_type: str = "Release"
    source: Path = SOURCE

    @property
    def library(self) -> Path:
        """The library for ONNX Runtime."""
        return self.output / f"lib{self.prefix}_onnxruntime.so"


def out_of_tree(folder: Path, output: Path | None = None, domain: str | None = None) -> BuildOptions:
    """Options for a user's own ops: `folder` holds op folders, the domain is the folder's name unless said."""
    folder = folder.resolve()
    if not folder.is_dir():
        raise BuildError(f"{folder} is no folder")
    if not any(folder.glob("*/*.cpp")):
        raise BuildError(f"{folder} holds no op: expected {folder.name}/<op>/<op>.cpp")
    name = domain or re.sub(r"\W+", "_", folder.name).strip("_").lower()
    if name == "opgate":
        raise BuildError(
            "the domain 'opgate' is taken: a session can't load two libraries of one domain. Name another with --domain"
        )
    return BuildOptions(output=output or folder / "build", ops=(folder,), domain=name, prefix=name)


def build(options: BuildOptions, log: Log) -> list[Path]:
    """Compiles for every engine whose headers are there; returns the libraries. Raises BuildError."""
    for tool, package in (("cmake", "cmake"), (shlex.split(os.environ.get("CXX", "g++"))[0], "g++")):
        if not shutil.which(tool):
            raise BuildError(f"{tool} is not installed. On Debian or Ubuntu: apt-get install {package}")
    toolchain = PROJECT / "build" / "toolchain"
    with _locked(toolchain):
        headers = find_onnxruntime_headers(toolchain, log)
    log(f"ONNX Runtime headers: {headers.include} (from {headers.origin})")
    with _locked(options.output):
        return _build(options, headers, log)


def built_library(options: BuildOptions) -> Path:
    """The library that a build with these options has written. Raises BuildError where there is none."""
    if not options.library.is_file():
        raise BuildError(f"{options.library} is not there: run opgate build")
    return options.library


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds a folder for this process: another build waits."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(options: BuildOptions, headers: Headers, log: Log) -> list[Path]:
    work = options.output / "cmake"
    _configure(options, headers, work)
    log(f"compiling {', '.join(str(folder) for folder in options.ops)} for onnxruntime on cpu")
    _run(["cmake", "--build", str(work), "--parallel", str(os.cpu_count() or 1)], log)
    library = options.library
    _replace(work / library.name, library)
    write_manifest(options, work, [library])
    log(f"wrote {library} and {options.output / MANIFEST}")
    return [library]


def _configure(options: BuildOptions, headers: Headers, work: Path) -> None:
    work.mkdir(parents=True, exist_ok=True)
    cache = work / "CMakeCache.txt"
    # A cache keeps the generator that it was made with, also when another gets installed, and its source folder.
    generator = ["-G", "Ninja"] if not cache.exists() and shutil.which("ninja") else []
    definitions = {
        "CMAKE_BUILD_TYPE": options.build_type,
        "OPGATE_OPS_DIRS": ";".join(str(folder) for folder in options.ops),
        "OPGATE_DOMAIN": options.domain,
        "OPGATE_LIBRARY_PREFIX": options.prefix,
        "OPGATE_ARCH_FLAGS": options.arch,
        "OPGATE_SANITIZE": options.sanitize,
        "OPGATE_ONNXRUNTIME_INCLUDE": headers.include,
    }
    arguments = [f"-D{name}={value}" for name, value in definitions.items()]
    command = ["cmake", "-S", str(options.source), "-B", str(work), *generator, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode and cache.exists():
        cache.unlink()
        shutil.rmtree(work / "CMakeFiles", ignore_errors=True)
        finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode:
        raise BuildError(f"cmake could not configure the build:\n{finished.stdout}{finished.stderr}")


def _run(command: list[str], log: Log) -> None:
    """Runs a compiler command and passes its lines on; on failure the last of them are the error."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip())
            if line.startswith("["):  # progress
                log(lines[-1])
    if process.returncode:
        raise BuildError("the compiler failed:\n" + "\n".join(lines[-60:]))
    for line in lines:
        if "warning" in line:
            log(line)


def _replace(made: Path, library: Path) -> None:
    """Puts the library where it is looked for, as one step: a process that has the old file open keeps it."""
    if library.exists() and sha256(library) == sha256(made):
        return
    temporary = library.with_suffix(".new")
    shutil.copyfile(made, temporary)
    temporary.chmod(0o755)
    temporary.replace(library)


def sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def write_manifest(options: BuildOptions, work: Path, libraries: Iterable[Path]) -> None:
    """Lists the libraries with their hashes and ops. Raises BuildError where a library states an op wrongly."""
    compiler = _cached(work, "CMAKE_CXX_COMPILER")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    entries = []
    for library in libraries:
        try:
            ops = read_table(library) if not options.sanitize else []
        except (ValueError, OSError) as error:
            raise BuildError(str(error)) from error
        if not ops and not options.sanitize:
            raise BuildError(f"{library.name} holds no op: does each kernel end with OPGATE_CPU_KERNEL(Tag, Kernel)?")
        entries.append(
            {
                "file": library.name,
                "sha256": sha256(library),
                "engine": "onnxruntime",
                "devices": ["cpu"],
                "domain": options.domain,
                "api_version": ONNXRUNTIME_API_VERSION,
                "compiler": version,
                "flags": options.arch,
                "ops": [_manifest_op(op) for op in ops],
            }
        )
    text = json.dumps({"format": MANIFEST_FORMAT, "libraries": entries}, indent=2) + "\n"
    target = options.output / MANIFEST
    temporary = target.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(target)


def _manifest_op(op: Op) -> dict[str, Any]:
    return {
        "name": op.name,
        "since_version": op.since_version,
        "signature": op.signature,
        "dtypes": list(op.dtypes),
        "devices": list(op.devices),
    }


def _cached(work: Path, name: str) -> str:
    for line in (work / "CMakeCache.txt").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.split("=", 1)[1]
    raise BuildError(f"CMake's cache has no {name}")
