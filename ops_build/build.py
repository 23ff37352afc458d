"""Compiling op folders into the libraries that engines load, and the manifest that lists them.

An adapter is a folder of adapters/ with a CMakeLists.txt, which makes its libraries, and a toolchain.py, whose
`find(cache, cuda, log)` says which those are and what they need, or raises LeftOut.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops_build.table import Op, read_table
from ops_build.toolchain import Cuda, LeftOut, Log, Toolchain, find_cuda

SOURCE = Path(__file__).parent
PROJECT = SOURCE.parent
DEFAULT_OUTPUT = PROJECT / "build" / "ops"
MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1
#: What gpu/CMakeLists.txt makes.
RUNNER = "opgate_gpu_runner"
#: The engines there are adapters for, in the order of reports.
ENGINES: tuple[str, ...] = ("onnxruntime", "torch", "tensorrt")


class BuildError(RuntimeError):
    """The build can't go on; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What to compile. `ops` are folders whose subfolders are ops; the libraries are called lib<prefix>_<engine>.so.
    `engines` are the adapters; one without a toolchain is left out. `cuda` is a list of CUDA architectures as CMake
    writes them, "auto" for what find_cuda takes, "" for no CUDA. With `strict` a compiler's warning is an error;
    with `cuda_ops_only` ops without a CUDA kernel, and the libraries that only they need, are left out."""

    output: Path = DEFAULT_OUTPUT
    ops: tuple[Path, ...] = (SOURCE / "ops",)
    domain: str = "opgate"
    prefix: str = "opgate"
    arch: str = "-march=x86-64-v3"
    sanitize: str = ""
    build_type: str = "Release"
    source: Path = SOURCE
    engines: tuple[str, ...] = ENGINES
    cuda: str = "auto"
    strict: bool = False
    cuda_ops_only: bool = False

    def library(self, name: str = "onnxruntime") -> Path:
        """A library that the build writes: "onnxruntime" is for ONNX Runtime on the CPU."""
        return self.output / f"lib{self.prefix}_{name}.so"


@dataclass(frozen=True, slots=True)
class Build:
    """What a build has made, by the library's name ("onnxruntime", "onnxruntime_cuda", "torch", ...), and what it has
    left out, with the reason."""

    libraries: Mapping[str, Path]
    left_out: Mapping[str, str]


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


def build(options: BuildOptions, log: Log) -> Build:
    """Compiles for every engine whose toolchain is there and says what it leaves out. Raises BuildError."""
    for tool, package in (("cmake", "cmake"), (shlex.split(os.environ.get("CXX") or "g++")[0], "g++")):
        if not shutil.which(tool):
            raise BuildError(f"{tool} is not installed. On Debian or Ubuntu: apt-get install {package}")
    left_out: dict[str, str] = {}
    cuda = None
    try:
        cuda = find_cuda(options.cuda)
        log(f"CUDA {cuda.version}: {cuda.nvcc}, for {cuda.architectures}")
    except LeftOut as error:
        left_out["cuda"] = str(error)
    _check_kernels_registered(options)
    toolchains: dict[str, Toolchain] = {}
    cache = PROJECT / "build" / "toolchain"
    with _locked(cache):
        for engine in options.engines:
            try:
                find = importlib.import_module(f"ops_build.adapters.{engine}.toolchain").find
                toolchains[engine] = find(cache, cuda, log)
                log(f"{engine} headers: {toolchains[engine].origin}")
            except LeftOut as error:
                left_out[engine] = str(error)
    for name, reason in left_out.items():
        log(f"left out {name}: {reason}")
    if not toolchains:
        raise BuildError("there is nothing to build: " + "; ".join(left_out.values()))
    with _locked(options.output):
        return Build(_build(options, cuda, toolchains, left_out, log), left_out)


def _check_kernels_registered(options: BuildOptions) -> None:
    """Raises BuildError for an op that is stated and has no kernel: it would be missing without a word."""
    for folder in (folder for ops in options.ops for folder in ops.iterdir() if folder.is_dir()):
        files = [file for file in folder.iterdir() if file.suffix in (".h", ".cpp", ".cu")]
        text = "\n".join(file.read_text(errors="replace") for file in files)
        registered = set(re.findall(r"OPGATE_(?:CPU|CUDA)_KERNEL\(\s*(\w+)", text))
        for tag in re.findall(r"OPGATE_OP\(\s*(\w+)", text):
            if tag not in registered:
                raise BuildError(
                    f"{folder} states {tag} and has no kernel of it: "
                    f"its source ends with OPGATE_CPU_KERNEL({tag}, Kernel)"
                )


def newer_sources(options: BuildOptions) -> list[str]:
    """The libraries of the last build that are older than a source of theirs."""
    folders = [*options.ops, options.source / "core", options.source / "adapters"]
    sources = [
        file for folder in folders for file in folder.rglob("*.*") if file.suffix in (".h", ".cpp", ".cu", ".cuh")
    ]
    newest = max((file.stat().st_mtime for file in sources), default=0.0)
    paths = [options.output / entry["file"] for entry in _listed(options)]
    return [path.name for path in paths if path.is_file() and path.stat().st_mtime < newest]


def build_runner(options: BuildOptions, log: Log) -> Path:
    """The host program of the kernels (gpu/runner.cpp) of a build that these options have made. Raises BuildError."""
    with _locked(options.output):
        _compile(options.output / "cmake", log, "--target", RUNNER)
    return runner_of(options)


def runner_of(options: BuildOptions) -> Path:
    """Where build_runner puts the host program."""
    return options.output / "cmake" / RUNNER


def built_table(options: BuildOptions) -> list[Op]:
    """The ops that a build with these options has compiled, with all devices. Raises BuildError where there is none."""
    for name in ("onnxruntime_cuda", "onnxruntime", "torch"):
        if options.library(name).is_file():
            return read_table(options.library(name))
    raise BuildError(f"{options.library()} is not there: run opgate build")


def why_not_built(options: BuildOptions, what: str) -> str:
    """Why the last build with these options has left out an engine, or CUDA."""
    left_out = _manifest(options).get("left_out", {})
    if what in left_out:
        return f"the build left out {what}: {left_out[what]}"
    return "it was not built: run opgate build" + ("" if options.ops == BuildOptions().ops else f" {options.ops[0]}")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds a folder for this process: another build waits."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(
    options: BuildOptions,
    cuda: Cuda | None,
    toolchains: Mapping[str, Toolchain],
    left_out: Mapping[str, str],
    log: Log,
) -> dict[str, Path]:
    work = options.output / "cmake"
    _configure(options, cuda, toolchains, work)
    log(f"compiling {', '.join(str(folder) for folder in options.ops)} for {', '.join(toolchains)}")
    _compile(work, log)
    made = [library for toolchain in toolchains.values() for library in toolchain.libraries]
    paths = {library.name: options.library(library.name) for library in made}
    for path in paths.values():
        _replace(work / path.name, path)
    for entry in _listed(options):  # what an earlier build has left of these engines would not fit the sources
        path = options.output / entry["file"]
        if entry["engine"] in options.engines and path not in paths.values():
            path.unlink(missing_ok=True)
    write_manifest(options, work, toolchains, left_out)
    log(f"wrote {', '.join(str(path) for path in paths.values())} and {options.output / MANIFEST}")
    return paths


def _listed(options: BuildOptions) -> list[dict[str, Any]]:
    """The manifest's entries of this domain's libraries."""
    try:
        entries = _manifest(options).get("libraries", [])
        return [entry for entry in entries if entry["domain"] == options.domain and entry["file"] and entry["engine"]]
    except (KeyError, TypeError):
        return []


def _manifest(options: BuildOptions) -> dict[str, Any]:
    """What the last build has written; empty where there is nothing that can be read."""
    try:
        manifest = json.loads((options.output / MANIFEST).read_text())
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _configure(options: BuildOptions, cuda: Cuda | None, toolchains: Mapping[str, Toolchain], work: Path) -> None:
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
        "OPGATE_STRICT": "ON" if options.strict else "OFF",
        "OPGATE_CUDA_OPS_ONLY": "ON" if options.cuda_ops_only else "OFF",
        "OPGATE_ENGINES": ";".join(toolchains),
        "OPGATE_CUDA_ARCHITECTURES": cuda.architectures if cuda else "",
    }
    if cuda:
        definitions["CMAKE_CUDA_COMPILER"] = str(cuda.nvcc)
    for toolchain in toolchains.values():
        definitions |= toolchain.definitions
    arguments = [f"-D{name}={value}" for name, value in definitions.items()]
    command = ["cmake", "-S", str(options.source), "-B", str(work), *generator, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode and cache.exists():
        cache.unlink()
        shutil.rmtree(work / "CMakeFiles", ignore_errors=True)
        finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode:
        raise BuildError(f"cmake could not configure the build:\n{finished.stdout}{finished.stderr}")


def _compile(work: Path, log: Log, *arguments: str) -> None:
    """Runs the configured build and passes its lines on; on failure the last of them are the error."""
    command = ["cmake", "--build", str(work), "--parallel", str(os.cpu_count() or 1), *arguments]
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
        library.touch()  # it is as new as its sources
        return
    temporary = library.with_suffix(".new")
    shutil.copyfile(made, temporary)
    temporary.chmod(0o755)
    temporary.replace(library)


def sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def write_manifest(
    options: BuildOptions, work: Path, toolchains: Mapping[str, Toolchain], left_out: Mapping[str, str]
) -> None:
    """Lists the libraries with their hashes and ops. Raises BuildError where a library states an op wrongly."""
    compiler = _cached(work, "CMAKE_CXX_COMPILER")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    libraries = [(engine, library) for engine, found in toolchains.items() for library in found.libraries]
    tables = {
        library.name: _table(options, options.library(library.name)) for _, library in libraries if library.has_table
    }
    # Of engines that were not asked for now, what is there stays.
    entries = [
        entry
        for entry in _listed(options)
        if entry["engine"] not in options.engines and (options.output / entry["file"]).is_file()
    ]
    for engine, library in libraries:
        # A library that may export nothing but its engine's entries is built of the same table as the others.
        every = tables[library.name] if library.has_table else max(tables.values(), key=_devices, default=[])
        ops = [op for op in every if set(op.devices) & set(library.devices)]
        path = options.library(library.name)
        entries.append(
            {
                "file": path.name,
                "sha256": sha256(path),
                "engine": engine,
                "devices": list(library.devices),
                "domain": options.domain,
                "compiler": version,
                "flags": options.arch,
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
    if options.sanitize:  # only a process that has the sanitizer's runtime can load it
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


def _cached(work: Path, name: str) -> str:
    for line in (work / "CMakeCache.txt").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.split("=", 1)[1]
    raise BuildError(f"CMake's cache has no {name}")
