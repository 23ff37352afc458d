"""Attaches pre- and post-processing to a network, and writes a model that is served."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from opgate.attach import (
    batching,
    detectors,
    drawing,
    folder,
    graph,
    head,
    heads_without_boxes,
    labels,
    post,
    pre,
    pre_words,
    reading,
    rotated,
    settings,
)
from opgate.attach.comparison import Compared
from opgate.attach.known_network import Known, Wish, known
from opgate.attach.nodes import Nodes, Setting
from opgate.attach.report import AttachError, Report
from opgate.attach.serving import Served, grey_picture
from opgate.attach.trials import examples_in
from opgate.onnx_tools import repository
from opgate.onnx_tools.sessions import session

#: How many pictures a batch has at most, if nobody says it.
MAX_BATCH_SIZE = 8
_COMPARED = 3


@dataclass(frozen=True, slots=True)
class Attached:
    """A model that is ready to be written. `settings` are inputs that a request may leave out, `beside` the graphs and
    configs of models that it needs, by their names."""

    model: onnx.ModelProto
    config: str
    settings: Mapping[str, Setting]
    labels: Sequence[str] | None
    report: Report
    beside: Mapping[str, tuple[onnx.ModelProto | None, str]]


def attach(wish: Wish, name: str) -> Attached:
    """Makes the model `name`. Raises AttachError, RunError and SessionError."""
    report = Report()
    of = known(wish, report)
    opset = graph.opset_of(of.network.model)
    if wish.read and of.said.kind != "db":
        raise AttachError(f"--read: {of.network.path.name} finds no lines of text: a reader goes with the head db")
    if of.said.kind == "db" and not wish.read:
        for word in sorted(of.said.stated & {"text", "beam", "blank"}):
            raise AttachError(f"--post: the word {word}: goes with --read")
    if "turn" in of.said.stated and not wish.turn:
        raise AttachError("--post: the word turn: goes with --turn")
    reader = reading.reader(wish, of.said, opset, report) if wish.read else None
    turner = reading.turner(wish, opset, report) if wish.turn else None
    opened = _opened(wish, of, report)
    nodes_before, nodes_after = (Nodes(opset, prefix) for prefix in (graph.PRE, graph.POST))
    pre.add(nodes_before, of.before, of.network)
    this = head.Head(of.network, of.outputs, of.size, of.said, of.labels, report, fixed=not opened.batched)
    if reader:
        answers, fitted = reading.add(nodes_after, this, reader, turner), reader.labels
    else:
        answers, classes = _adds(of.said)(nodes_after, this)
        counted = of.said.kind in post.COUNTED
        classes = classes or labels.count_in(of.network.metadata)
        fitted = labels.fitted(of.labels, classes, of.said.kind, of.said.blank, report, counted=counted)
    settings.check(nodes_after, pre.STATUS)
    joined = graph.joined(opened.model, nodes_before, nodes_after, answers, batching.BATCH)
    _compare(joined, opened, of, report)
    batch = _batch_size(wish, opened, of.before, report)
    beside = drawing.models(name, answers, fitted, nodes_after.settings) if wish.draw else {}
    config = folder.config_text(
        name,
        answers,
        batch,
        labelled=fitted is not None,
        settings=nodes_after.settings,
        picture_model=f"{name}{drawing.PICTURE}" if wish.draw else "",
    )
    return Attached(joined, config, nodes_after.settings, fitted, report, beside)


def _adds(said: post.Post) -> Callable[[Nodes, head.Head], tuple[post.Answers, int]]:
    """Returns what adds the nodes of a head."""
    if said.kind == "obb":
        return rotated.add
    return detectors.add if said.detects else heads_without_boxes.add


def _opened(wish: Wish, of: Known, report: Report) -> batching.Opened:
    if wish.read:
        return batching.Opened(of.network.model, False, "--read reads the lines of one picture at a time")
    return batching.open_batch(of.network, of.size, of.bytes, report, examples_in(wish.examples))


def _compare(joined: onnx.ModelProto, opened: batching.Opened, of: Known, report: Report) -> None:
    """Compares the network in the new graph with that of the file, on random pictures."""
    network = of.network
    rows = [network.pictures(1, *of.size, bytes_=of.bytes, seed=10 + i) for i in range(_COMPARED)]
    alone = graph.network_in(joined, opened.model)
    equal, largest = graph.difference(network.open(of.original), network.open(alone), rows)
    told = "bit for bit" if equal else f"apart from {largest:.1e} of the greatest magnitude"
    report.proved(f"network: on {_COMPARED} random pictures it gives what {network.path.name} gives, {told}")


def _batch_size(wish: Wish, opened: batching.Opened, before: pre_words.Pre, report: Report) -> int:
    if not opened.batched:
        if wish.max_batch_size and wish.max_batch_size > 1:
            raise AttachError(f"--max-batch-size: the network takes one picture at a time: {opened.reason}")
        report.ran("max_batch_size", 1, "the network takes one picture at a time")
        return 1
    if wish.max_batch_size is not None:
        why = (
            "an answer depends on the largest picture of its batch"
            if before.follows and wish.max_batch_size > 1
            else ""
        )
        report.said("max_batch_size", wish.max_batch_size, why)
        return wish.max_batch_size
    if before.follows:
        report.default("max_batch_size", 1, "because a larger picture beside it would change its answer")
        return 1
    report.default("max_batch_size", MAX_BATCH_SIZE)
    return MAX_BATCH_SIZE


def write(
    attached: Attached,
    to: Path,
    library: Path,
    command: str,
    *,
    overwrite: bool,
    compare: Callable[[Served, Path], Compared] | None = None,
) -> tuple[list[Path], Sequence[str]]:
    """Writes a model's folder, after it has loaded it, in ONNX Runtime and as the gateway does, and has compared it:
    `compare` gets the loaded model and its folder. Returns the paths, and the lines of the comparison. Raises
    AttachError."""
    repository.check_free(to, 1, overwrite=overwrite, other="name another folder with --to")
    for place in (to, *(to.with_name(name) for name in attached.beside)):
        if (place / "config.pbtxt").exists() and not overwrite:
            raise AttachError(f"{place / 'config.pbtxt'} is there: replace the model with --overwrite")
    session(attached.model, [library])
    with tempfile.TemporaryDirectory() as tried:  # what can't be served is not written
        place = Path(tried) / to.resolve().name
        _write_model(attached, place, overwrite=False)
        served = Served(place, library)
        answer = served.predict(grey_picture())
        compared = compare(served, place) if compare else None
    attached.report.proved("loaded: by ONNX Runtime with the op library, and by the gateway; it answers a grey picture")
    written = _write_model(attached, to, overwrite=overwrite)
    if overwrite:
        _remove_stale(attached, to)
    sample = json.dumps(_short(answer), ensure_ascii=False)
    readme = folder.readme_text(to.resolve().name, to.parent, command, attached.report, sample, attached.settings)
    texts = {"README.md": readme, "report.txt": "\n".join(attached.report.lines()) + "\n"}
    if compared:
        texts["comparison.html"] = compared.page
    for name, text in texts.items():
        written.append(to / name)
        written[-1].write_text(text, encoding="utf-8")
    return written, compared.lines if compared else ()


def _remove_stale(attached: Attached, to: Path) -> None:
    """Removes the models that an earlier --draw wrote beside a model, and that the new one doesn't have. They would
    draw what the old one found."""
    for name in {f"{to.resolve().name}{ending}" for ending in (drawing.DRAW, drawing.PICTURE)} - attached.beside.keys():
        place = to.with_name(name)
        config = place / "config.pbtxt"
        if place.is_symlink() or not config.is_file():
            continue
        if config.read_text(encoding="utf-8", errors="replace").startswith(folder.MADE):
            shutil.rmtree(place)


def _write_model(attached: Attached, to: Path, *, overwrite: bool) -> list[Path]:
    """Writes the model file, the config and the labels. Returns the paths."""
    written = []
    if attached.labels is not None:
        to.mkdir(parents=True, exist_ok=True)
        written.append(to / folder.LABELS)
        written[-1].write_text("".join(f"{label}\n" for label in attached.labels), encoding="utf-8")
    for name, (model, config) in attached.beside.items():
        beside = to.with_name(name)
        if model is not None:
            written += repository.write(model, beside, config, overwrite=overwrite)
            continue
        (beside / "1").mkdir(parents=True, exist_ok=True)  # an ensemble has an empty version
        written.append(beside / "config.pbtxt")
        written[-1].write_text(config, encoding="utf-8")
    return [*repository.write(attached.model, to, attached.config, overwrite=overwrite), *written]


def _short(answer: object) -> object:
    """Returns an answer with few numbers of each long list."""
    if isinstance(answer, dict):
        return {key: _short(value) for key, value in answer.items()}
    if isinstance(answer, list):
        return [_short(value) for value in answer[:5]] + (["..."] if len(answer) > 5 else [])
    return float(np.float32(answer)) if isinstance(answer, float) else answer
