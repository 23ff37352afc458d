"""What a worker process opens. The gateway sends one of these to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from opgate.service.isolation.channel import NOTE_SIZE
from opgate.service.isolation.confinement import Confinement

if TYPE_CHECKING:
    from opgate.service.execution.session import SessionOptions
    from opgate.service.isolation.worker import Link


class Runner(Protocol):
    """A model that a worker has opened."""

    def description(self) -> dict[str, Any]:
        """Returns what the gateway must know of the model, as JSON."""

    def answer(self, question: Any) -> list[Any]:
        """Answers a question of the gateway. An exception becomes an error."""


class Opening(Protocol):
    """How to open a model in a worker."""

    @property
    def confinement(self) -> Confinement:
        """What the worker may not do."""

    @property
    def files(self) -> tuple[int, ...]:
        """File descriptors of the gateway that the worker needs, under the same numbers."""

    def open(self, note: int, link: Link) -> Runner:
        """Opens the model. `note` is the address of the memory in which a crash writes the op that it ran."""


@dataclass(frozen=True)
class OnnxOpening:
    """A model file for ONNX Runtime. `name` is what the last words of a crash call the model."""

    name: str
    path: Path
    options: SessionOptions
    confinement: Confinement
    json_log: bool

    @property
    def files(self) -> tuple[int, ...]:
        """The images of the op libraries, see op_libraries.py."""
        images = (*self.options.libraries, *self.options.tensorrt_plugins)
        return tuple(int(path.name) for path in images if path.parent == Path("/proc/self/fd"))

    def open(self, note: int, link: Link) -> Runner:
        """Opens the file. Raises ServingError as `Session` does."""
        from opgate.service.native import process

        process.watch_crashes(self.json_log)
        process.note_crashes(note, NOTE_SIZE)
        process.set_running(f"model '{self.name}'")
        return _OnnxRunner(self.path, self.options, link)


class _OnnxRunner:
    def __init__(self, path: Path, options: SessionOptions, link: Link) -> None:
        from opgate.service.execution.session import Session

        self._session = Session(path, options)
        self._link = link

    def description(self) -> dict[str, Any]:
        session = self._session
        kinds = {"inputs": session.inputs, "outputs": session.outputs, "defaulted": session.defaulted}
        return {
            **{kind: [[t.name, t.type, t.shape] for t in tensors] for kind, tensors in kinds.items()},
            "nodes": {} if session.gpu is None else {name: sorted(types) for name, types in session.nodes().items()},
        }

    def answer(self, question: Any) -> list[Any]:
        _, _, number, names, entries, source, target = question
        link = self._link
        feeds = dict(link.read(entries, source))
        options = self._session.run_options()
        link.number, link.options = number, options
        try:
            results = self._session.run(names, feeds, options)
        finally:
            link.options = None
        return ["done", *link.write(names, results, target)]
