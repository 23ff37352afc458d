"""Workers that break the rules of the connection. A test lets the gateway's side of it run them."""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from opgate.service.isolation import channel
from opgate.service.isolation.channel import encoded
from opgate.service.isolation.confinement import Confinement
from opgate.service.isolation.worker_end import Link

#: A good answer for a run that asks for the output "y" of three floats.
GOOD = ["done", [["y", "<f4", [3], 64, 12]]]


@dataclass(frozen=True)
class Hostile:
    """Opens a model that does something else than to answer, when the first element of its input is 666."""

    way: str
    confinement: Confinement = field(default_factory=Confinement)
    files: tuple[int, ...] = ()

    def open(self, link: Link) -> Runner:
        """Opens it."""
        return Runner(link, WAYS[self.way])


@dataclass(frozen=True)
class Slow(Hostile):
    """Opens its model at once the first time, and takes a minute each time after that. `way` is a file it writes."""

    def open(self, link: Link) -> Runner:
        """Opens it."""
        if Path(self.way).exists():
            time.sleep(60)
        Path(self.way).touch()
        return Runner(link, WAYS["closes"])


@dataclass(frozen=True)
class Liar:
    """Opens nothing, or describes what it has opened as no model is."""

    way: str
    confinement: Confinement = field(default_factory=Confinement)
    files: tuple[int, ...] = ()

    def open(self, link: Link) -> Any:
        """Opens it."""
        return None if self.way == "Opens nothing" else self

    def description(self) -> dict[str, Any]:
        """Returns inputs that are none."""
        return {"inputs": [["x", "tensor(float)"]], "outputs": 5, "nodes": []}


class Runner:
    """Returns twice its input, as a model of one input and one output, or does what it wants."""

    def __init__(self, link: Link, way: Callable[[Link, Any], Any]) -> None:
        self._link, self._way = link, way

    def description(self) -> dict[str, Any]:
        """Returns the inputs and outputs."""
        return {kind: [[name, "tensor(float)", ["n"]]] for kind, name in (("inputs", "x"), ("outputs", "y"))}

    def again(self, data: bytes) -> bytes | None:
        """Remembers nothing."""
        return None

    def answer(self, question: Any, data: bytes) -> Any:
        """Answers."""
        _, names, entries, free = question
        ((_, x),) = self._link.view(entries)
        if x.size and x[0] == 666:
            return self._way(self._link, question)
        return ["done", self._link.write(names, [2 * x], free)]


def _raw(data: bytes, number: int | None = None, length: int | None = None) -> Callable[[Link, Any], Any]:
    """Writes a message past the rules, and rings."""

    def do(link: Link, question: Any) -> Any:
        talk = link._talk
        begin = talk._own + channel._PREFIX.size
        talk.memory[begin : begin + len(data)] = data
        said = len(data) if length is None else length
        channel._PREFIX.pack_into(talk.memory, talk._own, said, link.number if number is None else number)
        os.write(talk.rings, b"!")
        time.sleep(60)

    return do


def _says(message: Any) -> Callable[[Link, Any], Any]:
    return _raw(json.dumps(message).encode())


def _rings(link: Link, question: Any) -> Any:
    """Rings without end, and answers between."""
    os.set_blocking(link._talk.rings, False)
    for _ in range(100_000):
        try:
            os.write(link._talk.rings, b"!" * 1000)
        except BlockingIOError:
            break
    return ["done", link.write(["y"], [np.ones(3, np.float32)], question[3])]


def _closes(link: Link, question: Any) -> Any:
    os.close(link._talk.rings)
    time.sleep(60)


def _deaf(link: Link, question: Any) -> Any:
    """Reads nothing any more, and fills the pipe that wakes it."""
    os.close(link._talk.wakes)
    return ["done", link.write(["y"], [np.ones(3, np.float32)], question[3])]


def _changes(link: Link, question: Any) -> Any:
    """Changes lengths, entries and tensors from a thread, all the time."""
    talk, tensors = link._talk, link._tensors

    def work() -> None:
        rng = np.random.default_rng(1)
        own = np.frombuffer(talk.memory, np.uint8)[talk._own : talk._own + 256]
        data = np.frombuffer(tensors.memory, np.uint8)[:4096]
        while True:
            own[rng.integers(0, 256)] = rng.integers(0, 256)
            data[rng.integers(0, 4096)] = rng.integers(0, 256)

    threading.Thread(target=work, daemon=True).start()
    return ["done", link.write(["y"], [np.ones(3, np.float32)], question[3])]


def _strings(link: Link, question: Any) -> Any:
    """Changes the lengths of strings while they are read."""
    memory = link._tensors.memory

    def work() -> None:
        lengths = (ctypes.c_uint32 * 64).from_buffer(memory, 64)
        while True:
            for i in range(64):
                lengths[i] = 0xFFFFFFF0
            for i in range(64):
                lengths[i] = 0

    threading.Thread(target=work, daemon=True).start()
    return ["done", [["y", "|O", [64], 64, 256]]]


def _late(link: Link, question: Any) -> Any:
    """Answers the run twice: once more when the next one is under way."""
    number = link.number
    talk = link._talk

    def work() -> None:
        time.sleep(0.3)
        talk.send(encoded(["done", [["y", "<f4", [3], 64, 12]]]), number)

    threading.Thread(target=work, daemon=True).start()
    return ["done", link.write(["y"], [np.ones(3, np.float32)], question[3])]


_DEEP = b"[" * 200_000
WAYS: dict[str, Callable[[Link, Any], Any]] = {
    "another run's number": _raw(json.dumps(GOOD).encode(), number=10_000),
    "no number": _raw(json.dumps(GOOD).encode(), number=0),
    "a length beyond the memory": _raw(b"", length=1 << 62),
    "no JSON": _raw(b"\xff\xfe[["),
    "deep JSON": _raw(_DEEP),
    "a number": _says(5),
    "an empty list": _says([]),
    "a list of a list": _says([["done"]]),
    "an unknown message": _says(["please", 1]),
    "done without entries": _says(["done"]),
    "done with too much": _says(["done", [], 0, 0]),
    "no outputs": _says(["done", []]),
    "another output": _says(["done", [["z", "<f4", [3], 64, 12]]]),
    "two outputs": _says(["done", [["y", "<f4", [3], 64, 12], ["y", "<f4", [3], 64, 12]]]),
    "another type": _says(["done", [["y", "<i8", [3], 64, 24]]]),
    "strings": _says(["done", [["y", "|O", [3], 64, 12]]]),
    "far behind": _says(["done", [["y", "<f4", [3], 1 << 50, 12]]]),
    "a huge shape": _says(["done", [["y", "<f4", [1 << 62, 1 << 62], 64, 12]]]),
    "many of the same bytes": _says(["done", [["y", "|u1", [1 << 23], 64, 1 << 23]] * 90_000]),
    "many dims": _says(["done", [["y", "<f4", [1] * 100_000, 64, 4]]]),
    "an offset of another kind": _says(["done", [["y", "<f4", [3], "64", 12]]]),
    "a name of another kind": _says(["done", [[["y"], "<f4", [3], 64, 12]]]),
    "an error of no kind": _says(["error", "NOTHING", "text"]),
    "an error without a text": _says(["error", ""]),
    "an error with a list": _says(["error", "", ["text"], 5]),
    "rings": _rings,
    "closes": _closes,
    "deaf": _deaf,
    "changes": _changes,
    "changing strings": _strings,
    "late": _late,
}
