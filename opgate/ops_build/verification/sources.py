"""Where the engines come from on which ops are verified."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from opgate.ops_build.adapters.numpy.library import LoadError
from opgate.ops_build.building.manifest import why_not_built
from opgate.ops_build.building.options import BuildOptions
from opgate.ops_build.engines.engine import Absent, Engine


@dataclass(frozen=True, slots=True)
class Adapter:
    """The engines of an adapter, with the libraries of a build."""

    name: str
    options: BuildOptions

    def engines(self) -> Iterable[Engine | Absent]:
        """Yields the engine on each device that the adapter supports, or Absent with the reason."""
        names = (self.name, f"{self.name}_cuda")
        if not any(self.options.library(name).is_file() for name in names):  # an engine takes seconds to import
            device = "cuda" if self.name == "tensorrt" else "cpu"
            yield Absent(self.name, device, why_not_built(self.options, self.name))
            return
        module = _engine_module(self.name)
        if isinstance(module, Absent):
            yield module
        else:
            yield from module.engines(self.options)


def _engine_module(name: str) -> ModuleType | Absent:
    """Returns the module with the engine of an adapter, Absent with the reason if it can't be imported."""
    try:
        return importlib.import_module(f"opgate.ops_build.adapters.{name}.engine")
    except ModuleNotFoundError as error:
        return Absent(name, "cpu", f"the Python package {error.name} is not installed")


@dataclass(frozen=True, slots=True)
class OneLibrary:
    """ONNX Runtime on the CPU, with one op library."""

    library: Path
    name: str = "onnxruntime"

    def engines(self) -> Iterable[Engine | Absent]:
        """Yields the engine."""
        from opgate.ops_build.adapters.onnxruntime.engine import OnnxRuntimeEngine

        yield OnnxRuntimeEngine(self.library)


@dataclass(frozen=True, slots=True)
class Caller:
    """An engine that calls the library of another one: JAX, or OpenVINO."""

    name: str
    options: BuildOptions

    def engines(self) -> Iterable[Engine | Absent]:
        """Yields the engine on the CPU, with the first library of the build that it can call, or Absent with the
        reason."""
        module = _engine_module(self.name)
        if isinstance(module, Absent):
            yield module
            return
        reason = "there is no library: run opgate build"
        for library in filter(Path.is_file, map(self.options.library, self.options.engines)):
            try:
                yield module.engine(library)
            except LoadError as error:
                reason = str(error)
            else:
                return
        yield Absent(self.name, "cpu", reason)


def callers_of(options: BuildOptions) -> list[Caller]:
    """Returns the engines that need no library of their own."""
    return [Caller("jax", options), Caller("openvino", options)]


def adapters_of(options: BuildOptions) -> list[Adapter]:
    """Returns the adapters of a build."""
    return [Adapter(name, options) for name in options.engines]


def engines_of(options: BuildOptions) -> list[Engine | Absent]:
    """Returns every engine on every device that its adapter supports, in this process."""
    return [engine for adapter in adapters_of(options) for engine in adapter.engines()]
