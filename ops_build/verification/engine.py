"""What ops are verified on."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ops_build.building.options import BuildOptions
from ops_build.case import Array, Case
from ops_build.table import Op


class Engine(Protocol):
    """What executes an op on a device."""

    name: str

    @property
    def device(self) -> str: ...

    def refusal(self, op: Op, types: Mapping[str, str]) -> str | None:
        """Why it can't have the op with these types at all; None where it can."""

    def run(self, op: Op, case: Case, types: Mapping[str, str]) -> dict[str, Array]:
        """The outputs by name; bf16 may come as f32. Raises where the engine or the op refuses the case."""


@dataclass(frozen=True, slots=True)
class Absent:
    """An engine and device that this machine can't run, and why."""

    name: str
    device: str
    reason: str


def engines_of(options: BuildOptions) -> list[Engine | Absent]:
    """Every engine on every device that there is an adapter for, with the libraries of a build."""
    found: list[Engine | Absent] = []
    for name in options.engines:
        try:
            module = importlib.import_module(f"ops_build.adapters.{name}.engine")
        except ModuleNotFoundError as error:
            found.append(Absent(name, "cpu", f"the Python package {error.name} is not installed"))
            continue
        found += module.engines(options)
    return found
