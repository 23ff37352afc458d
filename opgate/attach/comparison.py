"""Compares a served model with a Python function of the user, picture by picture."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import numpy as np

from opgate.attach.answers import Agreement, Told, agreement, of_function, of_server
from opgate.attach.page import Case, page
from opgate.attach.report import AttachError
from opgate.attach.serving import Served
from opgate.attach.trials import ENDINGS, examples_in
from opgate.onnx_tools.run_model import load_model
from opgate.onnx_tools.sessions import session

#: How often a picture is timed: the least counts.
_TIMES = 3
_PATH_NAMES = ("path", "file", "name")


def function_of(text: str) -> Callable[[Path], Any]:
    """Returns what calls module:function or file.py:function with a picture's file. The function gets the bytes, or the
    path as a text if its first parameter is annotated str or Path or has path, file or name in its name. Raises
    AttachError."""
    module, colon, name = text.rpartition(":")
    if not module or not colon or not name:
        raise AttachError(f"--like: expected module:function or file.py:function, got '{text}'")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        function: Any = _file(Path(module)) if module.endswith(".py") else importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
    except Exception as error:  # whatever a module of somebody else raises
        raise AttachError(f"--like: {text}: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise AttachError(f"--like: {text} is no function")
    return _with_paths(function) if _takes_path(function) else _with_bytes(function)


def _file(path: Path) -> ModuleType:
    """Returns the module in a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _takes_path(function: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    if not parameters:
        return False
    first = parameters[0]
    annotation = str(getattr(first.annotation, "__name__", first.annotation))
    if annotation == "bytes":
        return False
    return annotation in ("str", "Path") or any(word in first.name.lower() for word in _PATH_NAMES)


def _with_paths(function: Callable[..., Any]) -> Callable[[Path], Any]:
    return lambda path: function(str(path))


def _with_bytes(function: Callable[..., Any]) -> Callable[[Path], Any]:
    return lambda path: function(path.read_bytes())


@dataclass(slots=True)
class Comparison:
    """What a comparison found: a line for each picture, the agreements, the CPU seconds of the graph and of the
    function, and the pictures on which they disagree."""

    lines: list[str] = field(default_factory=list)
    agreements: list[Agreement] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Compared:
    """The lines of the report of a comparison, and the page with the pictures on which the answers disagree."""

    lines: Sequence[str]
    page: str


def pictures_in(examples: Path) -> Sequence[Path]:
    """Returns the pictures of --examples. Raises AttachError if there is none."""
    pictures = examples_in(examples)
    if not pictures:
        raise AttachError(f"--examples: {examples} has no picture: expected {', '.join(ENDINGS)}")
    return pictures


def compare(
    like: str, call: Callable[[Path], Any], examples: Path, served: Served, folder: Path, library: Path
) -> Compared:
    """Compares the model in `folder` with `call`, the function that --like names, on the pictures in `examples`. Raises
    AttachError."""
    pictures = pictures_in(examples)
    found = compared(lambda path: _called(like, call, path), pictures, served, graph_of(folder, library))
    lines = [f"compared with {like} on {len(pictures)} pictures of {examples}:", *found.lines, *_summary(found)]
    return Compared(lines, page(f"{folder.name} and {like}", lines, found.cases))


def compared(
    call: Callable[[Path], Any], pictures: Sequence[Path], served: Served, graph: Callable[[bytes], Any]
) -> Comparison:
    """Compares what is served, and the CPU time of its graph, with a function from a picture's path to its answer.
    Raises AttachError."""
    from opgate.service.core.errors import ServingError

    found = Comparison()
    ours_is = theirs_is = ""
    for path in pictures:
        data = path.read_bytes()
        try:
            ours = of_server(served.predict(data))
        except ServingError as error:
            found.lines.append(f"  {path.name}: the served model refuses it: {error}")
            continue
        answer, seconds = _timed(partial(call, path))
        try:
            theirs = of_function(answer, vector=ours.vector is not None)
        except AttachError as error:
            raise AttachError(f"{error} (from your function, for {path.name})") from None
        ours_is, theirs_is = ours.kind or ours_is, theirs.kind or theirs_is
        if ours_is and theirs_is and ours_is != theirs_is:
            raise AttachError(
                f"--like: the model answers with {ours_is}, and your function with {theirs_is}, for {path.name}: "
                "these can't be compared"
            )
        found.theirs.append(seconds)
        found.ours.append(_timed(partial(graph, data))[1])
        result = agreement(ours, theirs)
        found.agreements.append(result)
        found.lines.append(f"  {path.name}: {_told(result, ours, theirs)}")
        if not result.equal:
            found.cases.append(Case(path.name, data, ours, theirs))
    return found


def graph_of(folder: Path, library: Path) -> Callable[[bytes], Any]:
    """Returns what runs a written model's graph on one thread."""
    opened = session(load_model(folder / "1" / "model.onnx"), [library], threads=1)

    def run(data: bytes) -> Any:
        feed = {"data": np.frombuffer(data, np.uint8), "ends": np.array([len(data)], np.int32)}
        return opened.run(None, feed)

    return run


def _called(like: str, call: Callable[[Path], Any], path: Path) -> Any:
    try:
        return call(path)
    except Exception as error:  # whatever a function of somebody else raises
        raise AttachError(f"--like: {like} fails on {path.name}: {type(error).__name__}: {error}") from error


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Returns what a call returns, and the least CPU time that it took, in seconds. The first call isn't timed."""
    answer, seconds = call(), []
    for _ in range(_TIMES):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return answer, min(seconds)


def _told(result: Agreement, ours: Told, theirs: Told) -> str:
    if ours.vector is not None and theirs.vector is None:
        return "a vector and nothing"
    if ours.vector is not None and theirs.vector is not None and len(ours.vector) != len(theirs.vector):
        return f"different: vectors of {len(ours.vector)} and {len(theirs.vector)} numbers"
    if ours.vector is not None:
        return f"{'equal' if result.equal else 'different'}, 1 - cosine {result.score:.1e}"
    if result.iou is None and not any(thing.box for thing in (*ours.things, *theirs.things)):
        shown = [told.things[0].label if told.things else "nothing" for told in (ours, theirs)]
        return ("equal: " + repr(shown[0]) if result.equal else f"{shown[0]!r} and {shown[1]!r}") + (
            f", scores differ by {result.score:.4f}" if result.score else ""
        )
    overlap = "" if result.iou is None else f", mean IoU {result.iou:.3f}"
    return (
        f"{result.ours} and {result.theirs} boxes, {result.matched} matched{overlap}, {result.labels} equal labels, "
        f"scores differ by up to {result.score:.4f}"
    )


def _summary(found: Comparison) -> list[str]:
    results = found.agreements
    if not results:
        return ["  no picture could be compared"]
    overlaps = [result.iou for result in results if result.iou is not None]
    lines = [
        f"in all: {sum(result.equal for result in results)} of {len(results)} pictures agree; "
        f"{sum(result.ours for result in results)} and {sum(result.theirs for result in results)} things, "
        f"{sum(result.matched for result in results)} matched"
        + (f", mean IoU {sum(overlaps) / len(overlaps):.3f}" if overlaps else "")
        + f", scores differ by up to {max(result.score for result in results):.4f}"
    ]
    one, other = median(found.ours) * 1000, median(found.theirs) * 1000
    lines.append(
        f"CPU time of a picture, median: {one:.1f} ms the graph on one thread, {other:.1f} ms the function"
        + (f": {one / other:.2f}" if other else "")
    )
    return lines
