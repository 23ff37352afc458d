"""The engines that ops are verified on."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from opgate.ops_build.building.options import BuildOptions
from opgate.ops_build.case import Array, Case
from opgate.ops_build.table import Op


class EngineEnded(RuntimeError):
    """The process of an engine has ended during a case, or was ended because the case took too long."""


class CaseRefused(RuntimeError):
    """An engine in another process raised an exception: `kind` is its type, the text is its text."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Engine(Protocol):
    """Runs ops on one device, for verification."""

    name: str

    @property
    def device(self) -> str: ...

    def refusal(self, op: Op, types: Mapping[str, str]) -> str | None:
        """Says why the engine doesn't support the op with these dtypes, or returns None if it does."""

    def run(self, op: Op, case: Case, types: Mapping[str, str]) -> dict[str, Array]:
        """Returns the outputs by name; bf16 may come as f32. Raises if the engine or the op refuses the case."""


@dataclass(frozen=True, slots=True)
class Absent:
    """An engine that can't run on a device of this machine. `reason` says why."""

    name: str
    device: str
    reason: str


class EngineSource(Protocol):
    """Makes engines. It can be sent to another process, which makes them there."""

    @property
    def name(self) -> str: ...

    def engines(self) -> Iterable[Engine | Absent]: ...


@dataclass(frozen=True, slots=True)
class Adapter:
    """The engines of an adapter, with the libraries of a build."""

    name: str
    options: BuildOptions

    def engines(self) -> Iterable[Engine | Absent]:
        """Yields the engine on each device that the adapter supports, or Absent with the reason."""
        try:
            module = importlib.import_module(f"opgate.ops_build.adapters.{self.name}.engine")
        except ModuleNotFoundError as error:
            yield Absent(self.name, "cpu", f"the Python package {error.name} is not installed")
            return
        yield from module.engines(self.options)


@dataclass(frozen=True, slots=True)
class OneLibrary:
    """ONNX Runtime on the CPU, with one op library."""

    library: Path
    name: str = "onnxruntime"

    def engines(self) -> Iterable[Engine | Absent]:
        """Yields the engine."""
        from opgate.ops_build.adapters.onnxruntime.engine import OnnxRuntimeEngine

        yield OnnxRuntimeEngine(self.library)


def adapters_of(options: BuildOptions) -> list[Adapter]:
    """Returns the adapters of a build."""
    return [Adapter(name, options) for name in options.engines]


def engines_of(options: BuildOptions) -> list[Engine | Absent]:
    """Returns every engine on every device that its adapter supports, in this process."""
    return [engine for adapter in adapters_of(options) for engine in adapter.engines()]
