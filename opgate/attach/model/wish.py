"""What the user of `opgate attach` says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user says: the file, and the options of `opgate attach`. An empty text says nothing.
    `libraries` have ops that the file may use. `draw` asks for a model that answers with the picture and its boxes.
    `examples` is a folder of pictures. `read` is a file that reads the lines that the network finds, and `turn`
    one that says which of them are upside down; `read_pre` and `turn_pre` are their pre-processing.
    `state` has the inputs and outputs of a state, as input=output."""

    file: Path
    pre: str = ""
    post: str = ""
    labels: str = ""
    input: str = ""
    max_batch_size: int | None = None
    libraries: tuple[Path, ...] = ()
    draw: bool = False
    examples: Path | None = None
    read: Path | None = None
    read_pre: str = ""
    turn: Path | None = None
    turn_pre: str = ""
    state: str = ""
