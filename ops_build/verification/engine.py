"""The engines that ops are verified on."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from opgate.ops_build.building.options import BuildOptions
from opgate.ops_build.case import Array, Case
from opgate.ops_build.table import Op


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


def engines_of(options: BuildOptions) -> list[Engine | Absent]:
    """Returns every engine on every device that its adapter supports. The engines load the libraries of the build with
    these options."""
    engines: list[Engine | Absent] = []
    for name in options.engines:
        try:
            module = importlib.import_module(f"opgate.ops_build.adapters.{name}.engine")
        except ModuleNotFoundError as error:
            engines.append(Absent(name, "cpu", f"the Python package {error.name} is not installed"))
            continue
        engines += module.engines(options)
    return engines
