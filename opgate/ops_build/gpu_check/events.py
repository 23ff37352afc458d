"""What the process of a stage tells `make gpu-check`: events, one line of JSON each.

A line is an object with one key, the name of an event class, and its fields.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from opgate.ops_build.verification.verify import Cell


@dataclass(frozen=True, slots=True)
class Begun:
    """The stage begins an item: an op with one choice of dtypes."""

    op: str
    types: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The cell of an item."""

    cell: Cell


@dataclass(frozen=True, slots=True)
class Timed:
    """A time of an op at its large case in milliseconds, and the bytes of its inputs and outputs.

    `what` is "kernel" for the op itself, and otherwise the name of the function of a peer.
    """

    op: str
    types: str
    case: str
    what: str
    milliseconds: float
    bytes: int

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return self.bytes / (self.milliseconds / 1e3)


@dataclass(frozen=True, slots=True)
class Profiled:
    """What ncu measured of one kernel of an op at its large case: its time in milliseconds, its share of the op's time,
    and how much of the device's memory bandwidth, instruction rate and warp slots it uses, in percent."""

    op: str
    types: str
    kernel: str
    milliseconds: float
    share: float
    memory: float
    instructions: float
    warps: float
    registers: int


@dataclass(frozen=True, slots=True)
class Fact:
    """A text for the page or the screen. `name` is "absent", why the stage can't run; "copy", the bytes that a copy
    reads and writes per second; "version", of a package; "restart", why the next item needs a new process; "no peer",
    an op that nothing was timed beside; or "note"."""

    name: str
    text: str


Event = Begun | Ended | Timed | Profiled | Fact


def event_line(event: Event) -> str:
    """Returns the event as a line of JSON."""
    return json.dumps({type(event).__name__: dataclasses.asdict(event)}) + "\n"


def read_event(line: str) -> Event:
    """Reads a line that event_line has written. Raises ValueError for any other line."""
    ((name, fields),) = json.loads(line).items()
    if name == "Ended":
        return Ended(Cell(**fields["cell"]))
    classes: dict[str, type[Begun | Timed | Profiled | Fact]] = {c.__name__: c for c in (Begun, Timed, Profiled, Fact)}
    if name not in classes:
        raise ValueError(f"an unknown event: {name}")
    return classes[name](**fields)
