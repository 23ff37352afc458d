"""What a worker process opens. The gateway sends one of these to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from opgate.service.isolation.confinement import Confinement
from opgate.service.isolation.segments import Array


class Runner(Protocol):
    """A model that a worker has opened."""

    def description(self) -> dict[str, Any]:
        """Returns what the gateway must know of the model, as JSON."""

    def run_options(self) -> Any:
        """Returns options for one run. Another thread may set their `terminate`."""

    def run(self, outputs: Sequence[str], feeds: dict[str, Array], options: Any) -> Sequence[Array]:
        """Returns the named outputs."""


class Opening(Protocol):
    """How to open a model in a worker."""

    @property
    def confinement(self) -> Confinement:
        """What the worker may not do."""

    @property
    def files(self) -> tuple[int, ...]:
        """File descriptors of the gateway that the worker needs, under the same numbers."""

    def open(self, note: int) -> Runner:
        """Opens the model. `note` is the address of the memory in which a crash writes the op that it ran."""


@dataclass(frozen=True)
class OnnxOpening:
    """A model file for ONNX Runtime. `name` is what the last words of a crash call the model."""

    name: str
    path: Path
    options: Any  # opgate.service.execution.session.SessionOptions
    confinement: Confinement
    json_log: bool

    @property
    def files(self) -> tuple[int, ...]:
        """The images of the op libraries, see op_libraries.py."""
        images = (*self.options.libraries, *self.options.tensorrt_plugins)
        return tuple(int(path.name) for path in images if path.parent == Path("/proc/self/fd"))

    def open(self, note: int) -> Runner:
        from opgate.service.isolation.channel import NOTE_SIZE
        from opgate.service.native import process

        process.watch_crashes(self.json_log)
        process.note_crashes(note, NOTE_SIZE)
        process.set_running(self.name)
        return _OnnxRunner(self.path, self.options)


class _OnnxRunner:
    def __init__(self, path: Path, options: Any) -> None:
        from opgate.service.execution.session import Session

        self._session = Session(path, options)
        self.run_options = self._session.run_options
        self.run = self._session.run
        self._gpu = options.gpu

    def description(self) -> dict[str, Any]:
        session = self._session
        kinds = {"inputs": session.inputs, "outputs": session.outputs, "defaulted": session.defaulted}
        return {
            **{kind: [[t.name, t.type, t.shape] for t in tensors] for kind, tensors in kinds.items()},
            "nodes": {} if self._gpu is None else {name: sorted(types) for name, types in session.nodes().items()},
        }
