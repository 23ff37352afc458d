"""Checks that need a build of their own: CPU kernels under the compiler's sanitizers, emulated CUDA kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from opgate.folders import locked
from opgate.ops_build.building.build import build_runner
from opgate.ops_build.building.options import BuildError, BuildOptions
from opgate.ops_build.building.toolchain import Log
from opgate.ops_build.cuda_emulation.build import build as build_emulated
from opgate.ops_build.engines.engine import Absent, Engine, EngineSource
from opgate.ops_build.op_folder import folder_of, op_folders
from opgate.ops_build.op_table import Op
from opgate.ops_build.python_ops.execution import name_in
from opgate.ops_build.runner.engine import KernelsEngine
from opgate.ops_build.runner.triton_interpreter import TritonInterpreter

#: Names in reports and the sanitizers, as for the compiler's -fsanitize. The two can't be combined.
SANITIZERS: Mapping[str, str] = {"asan+ubsan": "address,undefined", "tsan": "thread"}
#: The sanitizers end the program at the first error.
OPTIONS: Mapping[str, str] = {
    "ASAN_OPTIONS": "allocator_may_return_null=1:detect_leaks=0:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=0",
    "TSAN_OPTIONS": "halt_on_error=1",
    # The sanitizers have zones around every tensor.
    "OPGATE_GUARD": "0",
}


@dataclass(frozen=True, slots=True)
class Program:
    """A host program of kernels that is an engine of verification."""

    name: str
    device: str
    path: Path
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    in_python: frozenset[str] = frozenset()

    def engines(self) -> Iterable[Engine | Absent]:
        """Yields the engine."""
        environment = {**os.environ, **OPTIONS, **self.environment}
        yield KernelsEngine(self.path, self.arguments, environment, self.name, self.device, self.in_python)


def sanitized(options: BuildOptions, log: Log, names: Iterable[str] = tuple(SANITIZERS)) -> list[EngineSource]:
    """Builds the CPU kernels with each of the named sanitizers and returns the programs. Raises BuildError."""
    embedded = [op for ops in options.ops for folder in op_folders(ops) for op in folder.embedded()]
    in_python = frozenset(name_in(op.signature) for op in embedded)
    sources: list[EngineSource] = []
    for name in names:
        sanitize = SANITIZERS[name]
        log(f"compiling the kernels with {sanitize} sanitizers")
        if missing := _missing_runtime(sanitize):
            raise BuildError(f"the compiler has no {missing}: on Debian or Ubuntu install libgcc's development package")
        own = replace(
            options,
            output=options.output / f"sanitized_{sanitize.replace(',', '_')}",
            sanitize=sanitize,
            engines=(),
        )
        sources.append(Program(name, "cpu", build_runner(own, log), in_python=in_python))
    return sources


def interpreted(options: BuildOptions) -> list[EngineSource]:
    """Returns Triton's interpreter if an op has a kernel in Triton."""
    files = [folder.op_file for ops in options.ops for folder in op_folders(ops)]
    found = any(file is not None and file.python.triton_kernel is not None for file in files)
    return [TritonInterpreter(options.ops)] if found else []


def with_cuda_kernels(table: Sequence[Op], options: BuildOptions) -> list[Op]:
    """Returns the ops of a table, each with the device "cuda" if its folder has a CUDA kernel: the build that the table
    comes from may have left the kernel out."""
    return [
        replace(op, devices=(*op.devices, "cuda"))
        if "cuda" not in op.devices and folder_of(op, options.ops).has_cuda_kernel
        else op
        for op in table
    ]


def _missing_runtime(sanitize: str) -> str | None:
    """Returns the name of a runtime library that g++ lacks, or None."""
    compiler = shutil.which("g++")
    for name in sanitize.split(","):
        library = {"address": "libasan.so", "undefined": "libubsan.so", "thread": "libtsan.so"}[name]
        if compiler:
            command = [compiler, f"-print-file-name={library}"]
            found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
            if not Path(found).is_absolute():
                return library
    return None


def emulated(options: BuildOptions, log: Log, only: Sequence[Op] = ()) -> list[EngineSource]:
    """Builds the CUDA kernels for the CPU, all or those of `only`, with the address and undefined-behaviour sanitizers,
    and returns the programs: one runs the threads of a block in order, the other in an order that changes, on tensors
    that are not aligned. Raises BuildError."""
    (ops,) = options.ops
    folders = [folder_of(op, options.ops) for op in only] or op_folders(ops)
    if not any(folder.has_cuda_kernel for folder in folders):
        raise BuildError(f"{' and '.join(op.name for op in only) or f'{ops}'} has no CUDA kernel")
    log("compiling the CUDA kernels for emulated threads")
    kernels = sorted({folder.path.name for folder in folders}) if only else []
    output = options.output / "_".join(["emulated", *kernels])[:200]
    with locked(output):
        program = build_emulated(output, ops=ops, domain=options.domain, kernels=kernels, log=log)
    return [
        Program("emulated", "cuda", program, (), {"EMULATION_SEED": "0"}),
        Program("emulated, shuffled", "cuda", program, ("--unaligned", "--padded"), {"EMULATION_SEED": "7"}),
    ]
