"""What an engine is: it runs ops on a device, for verification."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from opgate.ops_build.case import Array, Case
from opgate.ops_build.op_table import Op


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
