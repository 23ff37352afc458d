"""Compiling op folders into the libraries that engines load.

An adapter is a folder of adapters/ with a CMakeLists.txt, which makes its libraries, and a toolchain.py, whose
`find(cache, cuda, log)` says which those are and what they need, or raises LeftOut.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ops_build.building.manifest import MANIFEST, listed_libraries, sha256, write_manifest
from ops_build.building.options import PROJECT, BuildError, BuildOptions
from ops_build.building.toolchain import Cuda, LeftOut, Log, Toolchain, find_cuda
from ops_build.op_folder import op_folders

#: What gpu/CMakeLists.txt makes.
RUNNER = "opgate_gpu_runner"


@dataclass(frozen=True, slots=True)
class Build:
    """What a build has made, by the library's name ("onnxruntime", "onnxruntime_cuda", "torch", ...), and what it has
    left out, with the reason."""

    libraries: Mapping[str, Path]
    left_out: Mapping[str, str]


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
    for folder in (folder for ops in options.ops for folder in op_folders(ops)):
        for tag in folder.unregistered_tags():
            raise BuildError(
                f"{folder.path} states {tag} and has no kernel of it: "
                f"its source ends with OPGATE_CPU_KERNEL({tag}, Kernel)"
            )


def build_runner(options: BuildOptions, log: Log) -> Path:
    """The host program of the kernels (gpu/runner.cpp) of a build that these options have made. Raises BuildError."""
    with _locked(options.output):
        _compile(options.output / "cmake", log, "--target", RUNNER)
    return runner_of(options)


def runner_of(options: BuildOptions) -> Path:
    """Where build_runner puts the host program."""
    return options.output / "cmake" / RUNNER


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
    for entry in listed_libraries(options):  # what an earlier build has left of these engines would not fit the sources
        path = options.output / entry["file"]
        if entry["engine"] in options.engines and path not in paths.values():
            path.unlink(missing_ok=True)
    write_manifest(options, work, toolchains, left_out)
    log(f"wrote {', '.join(str(path) for path in paths.values())} and {options.output / MANIFEST}")
    return paths


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
