"""Runs the TensorRT plugins of ops, for verification. A host program creates and calls the plugins as TensorRT does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from opgate.ops_build.building.build import runner_of
from opgate.ops_build.building.options import BuildOptions
from opgate.ops_build.building.toolchain import NO_GPU, gpus
from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.engines.engine import Absent, Engine
from opgate.ops_build.op_table import Op
from opgate.ops_build.runner.engine import KernelsEngine


def engines(options: BuildOptions) -> Iterator[Engine | Absent]:
    """Yields an engine for the plugins of a build, or Absent with the reason why they can't run."""
    library, runner = options.library("tensorrt"), runner_of(options)
    if not gpus():
        yield Absent("tensorrt", "cuda", NO_GPU)
    elif not runner.is_file():
        yield Absent("tensorrt", "cuda", "the host program that calls plugins is not built: make gpu-check does")
    else:
        yield PluginEngine(runner, library)


class PluginEngine(KernelsEngine):
    """Runs the plugins of a library in the host program. Without a library it runs the plugins in the program."""

    def __init__(self, runner: Path, library: Path | None, environment: Mapping[str, str] | None = None) -> None:
        arguments = ["--plugins", str(library.resolve()) if library else ""]
        super().__init__(runner, arguments, environment, name="tensorrt")

    def refusal(self, op: Op, types: Mapping[str, str]) -> str | None:
        for name in op.tensor_types:
            if DTYPES[types.get(name, name)].tensorrt is None:
                return f"TensorRT's plugins take no tensors of {types.get(name, name)}"
        return None
