"""The options of a build: which ops it compiles, for which engines, and where it writes the libraries."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from opgate import cpu, folders
from opgate.ops_build.op_folder import op_folders
from opgate.ops_build.python_ops.execution import OpFileError

SOURCE = Path(__file__).resolve().parents[1]
#: The folders there with the C++ and CUDA that ops are made of, beside the ops and the adapters.
ROOMS = ("signature", "op_call", "kernel_toolkit", "points", "norms", "reductions", "detection", "images", "audio")
#: The folder that opgate's own ops are built into.
DEFAULT_OUTPUT = folders.builds() / "ops"
#: The levels of this machine's architecture for which the CPU kernels are compiled, besides for every processor.
CPU_LEVELS: tuple[str, ...] = tuple(cpu.levels())
#: The engines that have an adapter, in the order of reports.
ENGINES: tuple[str, ...] = ("onnxruntime", "torch", "tensorrt", "tensorflow", "litert")


class BuildError(RuntimeError):
    """The build can't go on. The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The options of a build.

    `ops` are folders whose subfolders are op folders. The libraries are called lib<prefix>_<name>.so and go to the
    folder `output`. `arch` are the compiler's flags for the instruction set, or "native" for that of this machine's
    processor; OPGATE_ARCH in the environment is its default. Without any, a library has the kernels for every processor
    and for each of `cpu_levels`, and chooses when it is loaded (op_call/cpu_level.h). `engines` are those to build
    for; the build leaves out an engine without a toolchain. `batch` is how many sources are compiled as one: two of
    them may not give the same name to different things. OPGATE_BATCH in the environment is its default. More make a
    full build faster, and one after an edit slower. `cuda` is a list of CUDA architectures in CMake's form, "auto" or
    "all" (see find_cuda), or "" for no CUDA; OPGATE_CUDA in the environment is its default. `cuda_flags` are more flags
    of nvcc; OPGATE_CUDA_FLAGS in the environment is its default. If `strict` is set, a compiler's warning is an error;
    OPGATE_STRICT in the environment is its default. If `cuda_ops_only` is set, the build leaves out ops without a CUDA
    kernel, so that it needs none of their dependencies. If `portable` is set, the libraries have the compiler's own
    libraries inside, and run with an older C library too (old_glibc.py). `machine` is the architecture that the
    libraries are for, as `platform.machine` names it, see `for_machine`.
    """

    output: Path = DEFAULT_OUTPUT
    ops: tuple[Path, ...] = (SOURCE / "ops",)
    domain: str = "opgate"
    prefix: str = "opgate"
    arch: str = field(default_factory=lambda: os.environ.get("OPGATE_ARCH", ""))
    cpu_levels: tuple[str, ...] = CPU_LEVELS
    sanitize: str = ""
    build_type: str = "Release"
    source: Path = SOURCE
    engines: tuple[str, ...] = ENGINES
    cuda: str = field(default_factory=lambda: os.environ.get("OPGATE_CUDA", "auto"))
    cuda_flags: str = field(default_factory=lambda: os.environ.get("OPGATE_CUDA_FLAGS", ""))
    strict: bool = field(default_factory=lambda: bool(os.environ.get("OPGATE_STRICT")))
    cuda_ops_only: bool = False
    portable: bool = False
    machine: str = field(default_factory=platform.machine)
    batch: int = field(default_factory=lambda: int(os.environ.get("OPGATE_BATCH") or 1))

    @property
    def instruction_sets(self) -> tuple[str, tuple[str, ...]]:
        """The compiler's flags for the instruction set, and the levels for which the kernels are compiled once more. A
        Debug or sanitized build has one instruction set, that of most processors."""
        if self.arch == "native" and self.is_cross:
            raise BuildError(f"'native' is this machine's processor, which is none of {self.machine}")
        if self.arch or not self.cpu_levels:
            return cpu.native_flags() if self.arch == "native" else self.arch, ()
        if self.sanitize or self.build_type == "Debug":
            return cpu.levels()[self.cpu_levels[0]].flag, ()
        return "", self.cpu_levels

    @property
    def is_cross(self) -> bool:
        """Whether the libraries are for another architecture than this machine's."""
        return self.machine != platform.machine()

    def native(self) -> BuildOptions:
        """Returns the options of the same libraries for this machine."""
        if not self.is_cross:
            return self
        own = self.output / "native"
        return replace(
            self, machine=platform.machine(), output=own, arch="native", cpu_levels=CPU_LEVELS, portable=False
        )

    def target(self, name: str = "onnxruntime") -> Path:
        """Returns the path of a library that the build writes. "onnxruntime" is the one for ONNX Runtime on the CPU."""
        return self.output / f"lib{self.prefix}_{name}.so"

    def library(self, name: str = "onnxruntime") -> Path:
        """Returns the path of a library: of the one in a wheel if there is one and this machine has built no other,
        else of the one that the build writes."""
        shipped = folders.SHIPPED_OPS / self.target(name).name
        return shipped if not self.target(name).is_file() and shipped.is_file() else self.target(name)


def for_machine(options: BuildOptions, machine: str | None) -> BuildOptions:
    """Returns the options of the same libraries for another architecture, in a subfolder. Raises BuildError."""
    if machine in (None, platform.machine()):
        return options
    if machine not in cpu.LEVELS:
        raise BuildError(f"expected a machine of {', '.join(cpu.LEVELS)}, got '{machine}'")
    levels = tuple(cpu.LEVELS[machine])
    return replace(options, machine=machine, output=options.output / machine, cpu_levels=levels, cuda="")


def out_of_tree(folder: Path, output: Path | None = None, domain: str | None = None) -> BuildOptions:
    """Returns the options for a user's own ops, whose op folders are in `folder`. Without `domain`, the domain is named
    after the folder. Raises BuildError."""
    folder = folder.resolve()
    if not folder.is_dir():
        raise BuildError(f"{folder} is no folder")
    try:
        found = op_folders(folder)
        compiled = any(name.endswith(".cpp") for op in found for name in op.source_names)
        in_python = any(op.embedded() for op in found)
    except OpFileError as error:
        raise BuildError(str(error)) from None
    if not compiled and not in_python:
        raise BuildError(
            f"{folder} holds no op: expected {folder.name}/<op>/op.py or {folder.name}/<op>/<op>.cpp, "
            "or a header there with OPGATE_ELEMENTWISE(Tag, Formula)"
        )
    name = domain or re.sub(r"\W+", "_", folder.name).strip("_").lower()
    if name == "opgate":
        raise BuildError(
            "the domain 'opgate' is taken: a session can't load two libraries of one domain. Name another with --domain"
        )
    return BuildOptions(output=output or folder / "build", ops=(folder,), domain=name, prefix=name)
