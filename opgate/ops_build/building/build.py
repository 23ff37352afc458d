"""Compiles op folders into the libraries that the engines load.

An adapter is a folder in adapters/. Its CMakeLists.txt builds the libraries for one engine. `find(cache, cuda, log)` in
its toolchain.py says which libraries those are and what they need, or raises LeftOut.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from opgate import cpu, folders
from opgate.folders import locked
from opgate.ops_build.building import old_glibc
from opgate.ops_build.building.manifest import (
    MANIFEST,
    compiler_of,
    cxx_compiler,
    listed_libraries,
    write_manifest,
)
from opgate.ops_build.building.options import BuildError, BuildOptions
from opgate.ops_build.building.toolchain import (
    Cuda,
    LeftOut,
    Library,
    Log,
    Toolchain,
    compiler_environment,
    find_cuda,
    toolchain_folder,
)
from opgate.ops_build.op_folder import op_folders
from opgate.ops_build.python_ops.embedded import packed
from opgate.ops_build.python_ops.execution import OpFileError

#: The CMake target of runner/CMakeLists.txt, the host program for kernels.
RUNNER = "opgate_runner"
#: The engines of which a build needs headers alone, and so none of another machine.
_HEADERS_ALONE = ("onnxruntime", "torch", "litert")


@dataclass(frozen=True, slots=True)
class Build:
    """The result of a build.

    `libraries` maps the names of libraries ("onnxruntime", "onnxruntime_cuda", "torch", ...) to their files.
    `left_out` maps "cuda" and the engines that the build left out to the reasons.
    """

    libraries: Mapping[str, Path]
    left_out: Mapping[str, str]


def build(options: BuildOptions, log: Log) -> Build:
    """Compiles for every engine whose toolchain is installed. The log says which engines are left out, and why. Raises
    BuildError."""
    left_out: dict[str, str] = {}
    if options.portable:
        if options.sanitize:
            raise BuildError("a sanitizer's library is this machine's: leave out --portable or --sanitize")
        old_glibc.check_tools()
    if options.is_cross:
        compiler_for(options.machine)
        why = f"its library is built on a machine of {options.machine}"
        left_out |= {name: why for name in (*options.engines, "cuda") if name not in _HEADERS_ALONE}
        options = replace(options, engines=tuple(name for name in options.engines if name in _HEADERS_ALONE))
        if options.engines:
            build(options.native(), log)  # what the ops are is read from a library that this machine can load
    elif _in_python_alone(options) and (shipped := shipped_without_ops()) and _missing_tool():
        return _from_wheel(options, shipped, log)
    _check_tools()
    cuda = None
    try:
        cuda = find_cuda(options.cuda)
        log(f"CUDA {cuda.version}: {cuda.nvcc}, for {cuda.architectures}")
    except LeftOut as error:
        left_out.setdefault("cuda", str(error))
    _check_sources(options)
    toolchains: dict[str, Toolchain] = {}
    cache = toolchain_folder()
    for engine in options.engines:
        try:
            find = importlib.import_module(f"opgate.ops_build.adapters.{engine}.toolchain").find
            toolchains[engine] = find(cache, cuda, log)
            log(f"{engine} headers: {toolchains[engine].origin}")
        except LeftOut as error:
            left_out[engine] = str(error)
    for name, reason in left_out.items():
        log(f"left out {name}: {reason}")
    if not toolchains:
        raise BuildError("there is nothing to build: " + "; ".join(left_out.values()))
    with locked(options.output):
        return Build(_build(options, cuda, toolchains, left_out, log), left_out)


def _missing_tool() -> str:
    """Returns what to say of a tool that every build needs and that is missing; "" if all are there."""
    for tool, package in (("cmake", "cmake"), (shlex.split(os.environ.get("CXX") or "g++")[0], "g++")):
        if not shutil.which(tool):
            return f"{tool} is not installed. On Debian or Ubuntu: apt-get install {package}"
    return ""


def compiler_for(machine: str) -> str:
    """Returns the C++ compiler for another architecture. Raises BuildError if it is missing."""
    names = [f"{machine}-linux-gnu-g++", *(f"{machine}-linux-gnu-g++-{version}" for version in (14, 13, 12))]
    for name in names:
        if found := shutil.which(name):
            return found
    package = f"g++-{machine.replace('_', '-')}-linux-gnu"
    raise BuildError(f"{names[0]} is not installed. On Debian or Ubuntu: apt-get install {package}")


def _check_tools() -> None:
    """Raises BuildError if a tool is missing that every build needs."""
    if missing := _missing_tool():
        raise BuildError(missing)


def _check_sources(options: BuildOptions) -> None:
    """Raises BuildError if a source states an op without a kernel, or if a CUDA source registers none: the build would
    leave the op or its kernel out silently. So it does if a kernel names what its signature doesn't have."""
    for folder in (folder for ops in options.ops for folder in op_folders(ops)):
        try:
            folder.generated_sources()
        except OpFileError as error:
            raise BuildError(str(error)) from None
        for tag in folder.unregistered_tags():
            raise BuildError(
                f"{folder.path} states {tag} and has no kernel of it: "
                f"its source ends with OPGATE_CPU_KERNEL({tag}, Kernel), "
                f"or its header with OPGATE_ELEMENTWISE({tag}, Formula)"
            )
        if unknown := folder.unknown_names():
            raise BuildError("a kernel uses names that its signature doesn't have: " + ", ".join(unknown))
        for tag in folder.tags_without_cuda_kernel():
            raise BuildError(
                f"{folder.path} has a .cu file and no CUDA kernel of {tag}: "
                f"the .cu file ends with OPGATE_CUDA_KERNEL({tag}, Kernel)"
            )


def build_runner(options: BuildOptions, log: Log) -> Path:
    """Builds the host program of the kernels (runner/runner.cpp) and returns its path: of those that `build` has built
    with the same options, or without engines of the CPU kernels. Raises BuildError."""
    _check_tools()
    with locked(options.output):
        if not options.engines:
            _configure(options, None, {}, options.output / "cmake")
        compile_configured(options.output / "cmake", log, "--target", RUNNER)
    return runner_of(options)


def runner_of(options: BuildOptions) -> Path:
    """Returns the path of the host program that build_runner builds."""
    return options.output / "cmake" / RUNNER


def _build(
    options: BuildOptions,
    cuda: Cuda | None,
    toolchains: Mapping[str, Toolchain],
    left_out: Mapping[str, str],
    log: Log,
) -> dict[str, Path]:
    embedded, names = _embedded(options), ", ".join(map(str, options.ops))
    compiled = without_ops(options, cuda)
    if not compiled.output.is_dir():
        log("compiling what all libraries share, once")
    with locked(compiled.output):
        host = work = _compiled(compiled, cuda, toolchains, log)
    if not _in_python_alone(options):
        compiled = options
        log(f"compiling {names} for {', '.join(toolchains)}")
        work = _compiled(options, cuda, toolchains, log, host)
    else:
        log(f"{names} is in Python: nothing of it is compiled")
    libraries = [library for toolchain in toolchains.values() for library in toolchain.libraries]
    paths = {library.name: options.target(library.name) for library in libraries}
    made = {name: work / compiled.target(name).name for name in paths}
    if options.portable:
        made = {name: _for_older(file, options.output, cxx_compiler(work)) for name, file in made.items()}
    for name, path in paths.items():
        has_kernels = "cpu" in next(library.devices for library in libraries if library.name == name)
        _replace(made[name], path, embedded if has_kernels else b"")
    for entry in listed_libraries(options):  # an earlier build left libraries of these engines that may be out of date
        path = options.output / entry["file"]
        if entry["engine"] in options.engines and path not in paths.values():
            path.unlink(missing_ok=True)
    write_manifest(options, compiler_of(work), toolchains, left_out)
    log(f"wrote {', '.join(str(path) for path in paths.values())} and {options.output / MANIFEST}")
    return paths


def _in_python_alone(options: BuildOptions) -> bool:
    """Returns whether all ops are functions in Python. Raises BuildError."""
    try:
        return not any(folder.source_names for ops in options.ops for folder in op_folders(ops))
    except OpFileError as error:
        raise BuildError(str(error)) from None


def _embedded(options: BuildOptions) -> bytes:
    """Returns what a library has behind its end."""
    return packed(options.domain, [op for ops in options.ops for folder in op_folders(ops) for op in folder.embedded()])


def without_ops(options: BuildOptions, cuda: Cuda | None = None) -> BuildOptions:
    """Returns the options of the libraries without ops. They are compiled once: they serve ops that are written in
    Python alone, and all other libraries take the core and the adapters from them."""
    kind = [options.build_type.lower() * (options.build_type != "Release"), "cuda" * (cuda is not None)]
    kind += [options.sanitize.replace(",", "_"), "strict" * options.strict, "portable" * options.portable]
    kind += [options.machine * options.is_cross]
    shared = folders.builds() if options.source == BuildOptions().source else options.output
    output = shared / "_".join(["without_ops", *filter(None, kind)])
    return replace(options, output=output, ops=(), domain="none", prefix="none", cpu_levels=())


def build_without_ops(options: BuildOptions, output: Path, log: Log) -> Path:
    """Builds the library without ops for ONNX Runtime in a folder and returns its path. Raises BuildError."""
    _check_tools()
    plain = replace(without_ops(options), output=output)
    toolchain = importlib.import_module("opgate.ops_build.adapters.onnxruntime.toolchain")
    made = toolchain.find(toolchain_folder(), None, log)
    with locked(output):
        return _compiled(plain, None, {"onnxruntime": made}, log) / plain.target().name


def shipped_without_ops() -> Path | None:
    """Returns the library without ops for ONNX Runtime that a wheel has brought, if there is one."""
    path = folders.SHIPPED_OPS / without_ops(BuildOptions()).target().name
    return path if path.is_file() else None


def _from_wheel(options: BuildOptions, shipped: Path, log: Log) -> Build:
    """Makes the library for ONNX Runtime of ops in Python on a machine without a compiler. Raises BuildError."""
    if "onnxruntime" not in options.engines:
        raise BuildError(_missing_tool())
    left_out = {engine: _missing_tool() for engine in options.engines if engine != "onnxruntime"}
    for name, reason in left_out.items():
        log(f"left out {name}: {reason}")
    made = Toolchain("the wheel", {}, (Library("onnxruntime", ("cpu",)),))
    stated = json.loads(shipped.with_name(MANIFEST).read_text())["libraries"]
    portable = all("glibc" in entry for entry in stated)
    if options.portable and not portable:
        raise BuildError("the library in opgate's wheel needs a newer glibc: build on a machine with a compiler")
    options = replace(options, portable=portable)
    with locked(options.output):
        _replace(shipped, options.target(), _embedded(options))
        write_manifest(options, "the compiler of opgate's wheel", {"onnxruntime": made}, left_out)
    log(f"wrote {options.target()} and {options.output / MANIFEST}")
    return Build({"onnxruntime": options.target()}, left_out)


def _compiled(
    options: BuildOptions, cuda: Cuda | None, toolchains: Mapping[str, Toolchain], log: Log, host: Path | None = None
) -> Path:
    """Configures and compiles the libraries, and returns the folder that has them. `host` is that of the libraries
    without ops, if they are there."""
    work = options.output / "cmake"
    _configure(options, cuda, toolchains, work, host)
    compile_configured(work, log)
    return work


def write_sources(folder: Path, texts: Mapping[Path, str]) -> None:
    """Writes the texts to their paths in a folder, and deletes all other files there.

    It leaves unchanged files alone, so that they aren't compiled again.
    """
    for file in folder.rglob("*"):
        if file.is_file() and file not in texts:
            file.unlink()
    for file, text in texts.items():
        if not file.is_file() or file.read_text() != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


def _configure(
    options: BuildOptions, cuda: Cuda | None, toolchains: Mapping[str, Toolchain], work: Path, host: Path | None = None
) -> None:
    work.mkdir(parents=True, exist_ok=True)
    generated = work / "generated"
    texts = {
        generated / folder.path.name / name: text
        for ops in options.ops
        for folder in op_folders(ops)
        for name, text in folder.generated_sources().items()
    }
    write_sources(generated, texts)
    cache = work / "CMakeCache.txt"
    # A CMake cache works only with the generator and the source folder that it was created with.
    generator = ["-G", "Ninja"] if not cache.exists() and shutil.which("ninja") else []
    flags, levels = options.instruction_sets
    definitions = {
        "CMAKE_BUILD_TYPE": options.build_type,
        "OPGATE_OPS_DIRS": ";".join(str(folder) for folder in options.ops),
        "OPGATE_DOMAIN": options.domain,
        "OPGATE_LIBRARY_PREFIX": options.prefix,
        "OPGATE_ARCH_FLAGS": flags,
        "OPGATE_CPU_LEVELS": ";".join(f"{level}:{cpu.LEVELS[options.machine][level].flag}" for level in levels),
        "OPGATE_SANITIZE": options.sanitize,
        "OPGATE_BATCH": str(options.batch),
        "OPGATE_STRICT": "ON" if options.strict else "OFF",
        "OPGATE_CUDA_OPS_ONLY": "ON" if options.cuda_ops_only else "OFF",
        "OPGATE_PORTABLE": "ON" if options.portable else "OFF",
        "OPGATE_HOST": str(host or ""),
        "OPGATE_ENGINES": ";".join(toolchains),
        "OPGATE_CUDA_ARCHITECTURES": cuda.architectures if cuda else "",
        "OPGATE_CUDA_FLAGS": options.cuda_flags,
    }
    if options.is_cross:
        definitions |= {"CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": options.machine}
        definitions["CMAKE_CXX_COMPILER"] = compiler_for(options.machine)
    if cuda:
        definitions |= cuda.definitions
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


def compile_configured(work: Path, log: Log, *arguments: str) -> None:
    """Runs the configured build and logs its progress. Raises BuildError with the last lines if it fails."""
    command = ["cmake", "--build", str(work), "--parallel", str(os.cpu_count() or 1), *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=compiler_environment(work)
    ) as process:
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


def _for_older(built: Path, output: Path, compiler: str) -> Path:
    """Returns a copy of a built library, in a folder of `output`, that runs with an older C library. Raises
    BuildError."""
    copy = output / "portable" / built.name
    copy.parent.mkdir(exist_ok=True)
    shutil.copyfile(built, copy)
    old_glibc.lower(copy, compiler=compiler)
    return copy


def _replace(built: Path, library: Path, embedded: bytes) -> None:
    """Copies a built library, with what is written behind its end, to `library` in one step. A process that has the old
    file open keeps the old one."""
    content = built.read_bytes() + embedded
    if library.exists() and library.read_bytes() == content:
        library.touch()  # newer_sources compares its time with the sources
        return
    temporary = library.with_suffix(".new")
    temporary.write_bytes(content)
    temporary.chmod(0o755)
    temporary.replace(library)
