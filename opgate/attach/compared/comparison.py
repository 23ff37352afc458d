"""Compares a served model with a Python function of the user, example by example."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import numpy as np

from opgate.attach.compared.answers import Agreement, Told, agreement, of_function, of_server
from opgate.attach.compared.page import Case, page
from opgate.attach.model.attached import Compared
from opgate.attach.model.examples import PICTURES, Example
from opgate.attach.model.report import AttachError
from opgate.attach.model.serving import Served
from opgate.onnx_tools.run_model import load_model
from opgate.onnx_tools.sessions import session

#: How often a picture is timed: the least counts.
_TIMES = 3
_PATH_NAMES = ("path", "file", "name")


def function_of(text: str) -> Callable[[Example], Any]:
    """Returns what calls module:function or file.py:function with an example. The function gets the bytes of a file, or
    its path as a text if its first parameter is annotated str or Path or has path, file or name in its name. It gets
    texts as they are, and a row of a table as a dict. Raises AttachError."""
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
    with_path = _takes_path(function)

    def call(example: Example) -> Any:
        if isinstance(example.content, bytes):
            return function(str(example.path)) if with_path and example.path else function(example.content)
        return function(dict(example.content)) if example.row else function(*example.content.values())

    return call


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


@dataclass(slots=True)
class Comparison:
    """What a comparison found: a line for each example, the agreements, the CPU seconds of the graph and of the
    function, and the pictures on which they disagree."""

    lines: list[str] = field(default_factory=list)
    agreements: list[Agreement] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)


def compare(
    like: str, call: Callable[[Example], Any], examples: Sequence[Example], served: Served, folder: Path, library: Path
) -> Compared:
    """Compares the model in `folder` with `call`, the function that --like names. Raises AttachError."""
    found = compared(lambda example: _called(like, call, example), examples, served, graph_of(folder, library))
    lines = [f"compared with {like} on {len(examples)} examples:", *found.lines, *_summary(found)]
    return Compared(lines, page(f"{folder.name} and {like}", lines, found.cases))


def compared(
    call: Callable[[Example], Any],
    examples: Sequence[Example],
    served: Served,
    graph: Callable[[Mapping[str, np.ndarray]], Any],
) -> Comparison:
    """Compares what is served, and the CPU time of its graph, with a function from an example to its answer. Raises
    AttachError."""
    from opgate.service.core.errors import ServingError

    found = Comparison()
    ours_is = theirs_is = ""
    for example in examples:
        try:
            ours = of_server(served.predict(example.content))
        except ServingError as error:
            found.lines.append(f"  {example.name}: the served model refuses it: {error}")
            continue
        answer, seconds = _timed(partial(call, example))
        try:
            theirs = of_function(answer, vector=ours.vector is not None)
        except AttachError as error:
            raise AttachError(f"{error} (from your function, for {example.name})") from None
        ours_is, theirs_is = ours.kind or ours_is, theirs.kind or theirs_is
        if ours_is and theirs_is and ours_is != theirs_is:
            raise AttachError(
                f"--like: the model answers with {ours_is}, and your function with {theirs_is}, for {example.name}: "
                "these can't be compared"
            )
        found.theirs.append(seconds)
        found.ours.append(_timed(partial(graph, served.feed(example.content)))[1])
        result = agreement(ours, theirs)
        found.agreements.append(result)
        found.lines.append(f"  {example.name}: {_told(result, ours, theirs)}")
        if not result.equal and example.path and example.path.suffix.lower() in PICTURES:
            found.cases.append(Case(example.name, example.path.read_bytes(), ours, theirs))
    return found


def graph_of(folder: Path, library: Path) -> Callable[[Mapping[str, np.ndarray]], Any]:
    """Returns what runs a written model's graph on one thread."""
    opened = session(load_model(folder / "1" / "model.onnx"), [library], threads=1)
    return lambda feed: opened.run(None, dict(feed))


def _called(like: str, call: Callable[[Example], Any], example: Example) -> Any:
    try:
        return call(example)
    except Exception as error:  # whatever a function of somebody else raises
        raise AttachError(f"--like: {like} fails on {example.name}: {type(error).__name__}: {error}") from error


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
        how = "apart by" if ours.exact else "1 - cosine"
        return f"{'equal' if result.equal else 'different'}, {how} {result.score:.1e}"
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
        return ["  nothing could be compared"]
    overlaps = [result.iou for result in results if result.iou is not None]
    lines = [
        f"in all: {sum(result.equal for result in results)} of {len(results)} agree; "
        f"{sum(result.ours for result in results)} and {sum(result.theirs for result in results)} things, "
        f"{sum(result.matched for result in results)} matched"
        + (f", mean IoU {sum(overlaps) / len(overlaps):.3f}" if overlaps else "")
        + f", scores differ by up to {max(result.score for result in results):.4f}"
    ]
    one, other = median(found.ours) * 1000, median(found.theirs) * 1000
    lines.append(
        f"CPU time of each, median: {one:.1f} ms the graph on one thread, {other:.1f} ms the function"
        + (f": {one / other:.2f}" if other else "")
    )
    return lines
