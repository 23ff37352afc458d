"""What a report says: each fact, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from opgate.service.similar_names import Names

#: Where a fact comes from.
FOUND, RAN, DEFAULT, SAID = "found in the file", "found by a run", "taken as default", "said by you"


class AttachError(ValueError):
    """The network can't be attached with what is known. The message names the option that helps."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact: what it is about, its value, where it comes from, and why it holds."""

    subject: str
    value: str
    origin: str
    why: str = ""


@dataclass(slots=True)
class Report:
    """The facts of a network and the proofs of what was written, in their order."""

    facts: list[Fact] = field(default_factory=list)
    proofs: list[str] = field(default_factory=list)

    def found(self, subject: str, value: object, why: str = "") -> None:
        """Adds a fact that the file tells."""
        self.facts.append(Fact(subject, str(value), FOUND, why))

    def ran(self, subject: str, value: object, why: str = "") -> None:
        """Adds a fact that a run of the network has shown."""
        self.facts.append(Fact(subject, str(value), RAN, why))

    def default(self, subject: str, value: object, why: str = "") -> None:
        """Adds a fact that nobody stated."""
        self.facts.append(Fact(subject, str(value), DEFAULT, why))

    def said(self, subject: str, value: object, why: str = "") -> None:
        """Adds a fact that an option states."""
        self.facts.append(Fact(subject, str(value), SAID, why))

    def proved(self, line: str) -> None:
        """Adds what a run has shown."""
        self.proofs.append(line)

    def lines(self) -> list[str]:
        """Returns the report: a table of the facts, then the proofs."""
        rows = [(fact.subject, fact.value, fact.origin, fact.why) for fact in self.facts]
        return [*_columns(rows), *self.proofs]


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Returns rows of text whose columns begin below each other. A long cell moves what is behind it."""
    widths = [min(40, max((len(row[column]) for row in rows), default=0)) for column in range(4)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def did_you_mean(word: str, alone: Iterable[str], with_argument: Iterable[str] = ()) -> str:
    """Returns the question for the known word that is most like this one, "" if none is. What stands behind a colon is
    not compared."""
    alone, with_argument = set(alone), set(with_argument)
    name, colon, argument = word.partition(":")
    near = Names(alone | with_argument).nearest(name)
    if near in with_argument and (colon or near not in alone):
        near = f"{near}:{argument or '…'}"
    return f" Did you mean '{near}'?" if near else ""


def shape_text(shape: Sequence[object]) -> str:
    """Returns a shape as text, such as [?, 84, 8400]."""
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
