"""Attaches pre- and post-processing to a network, and writes a model that is served."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from opgate.attach import batching, detectors, drawing, folder, graph, head, heads, labels, others, post, pre, words
from opgate.attach.facts import Network, Output, read_network, sizes_in, with_sizes
from opgate.attach.nodes import Nodes
from opgate.attach.report import AttachError, Report
from opgate.attach.serving import Served, grey_picture
from opgate.attach.trials import examples_in
from opgate.onnx_models import repository
from opgate.onnx_models.run_model import load_model
from opgate.onnx_models.sessions import session

#: How many pictures a batch has at most, if nobody says it.
MAX_BATCH_SIZE = 8
#: How long a side that follows the picture is in a trial.
_TRIAL_SIDE = 320
_COMPARED = 3


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user says: the file, and the options of `opgate attach`. An empty text says nothing.
    `libraries` have ops that the file may use. `draw` asks for a model that answers with the picture and its boxes.
    `examples` is a folder of pictures."""

    file: Path
    pre: str = ""
    post: str = ""
    labels: str = ""
    input: str = ""
    max_batch_size: int | None = None
    libraries: tuple[Path, ...] = ()
    draw: bool = False
    examples: Path | None = None


@dataclass(frozen=True, slots=True)
class Attached:
    """A model that is ready to be written. `optional` are inputs that a request may leave out, `beside` the graphs and
    configs of models that it needs, by their names."""

    model: onnx.ModelProto
    config: str
    optional: Sequence[str]
    labels: Sequence[str] | None
    report: Report
    beside: Mapping[str, tuple[onnx.ModelProto | None, str]]


def attach(wish: Wish, name: str) -> Attached:
    """Makes the model `name`. Raises AttachError, RunError and SessionError."""
    report = Report()
    original = load_model(wish.file)
    model = graph.prepared(original)
    network = read_network(wish.file, model, wish.input and graph.free_name(wish.input), report, wish.libraries)
    size = _size(network, wish.pre, post.kind_of(wish.post) if wish.post else "", report)
    if network.sizes:
        original, model = (with_sizes(each, network.sizes, *size) for each in (original, model))
        network = replace(network, model=model)
    try:
        outputs = network.outputs(model, *size, bytes_=network.scales)
    except AttachError as error:
        raise AttachError(f"{error}. Is the size of --pre right?") from None
    said = _head(wish, network, outputs, size, report)
    chosen = _chosen(outputs, said.only)
    option = "--labels" if wish.labels or not _characters(said) else "--post ctc:"
    stated = labels.read(wish.labels or _characters(said), network.metadata, said.kind, report, option)
    if said.kind == "ctc" and stated is None:
        raise AttachError("--post: which characters does it read? Say ctc:FILE, with one character a line, or --labels")
    before = pre.settle(wish.pre, said.kind, network, size, report)
    opened = batching.open_batch(network, size, _bytes(before), report, examples_in(wish.examples))
    nodes_before, nodes_after = (Nodes(graph.opset_of(model), prefix) for prefix in (graph.PRE, graph.POST))
    pre.add(nodes_before, before, network)
    of = head.Head(network, chosen, size, said, stated, report, fixed=not opened.batched)
    answers, classes = (detectors.add if said.detects else others.add)(nodes_after, of)
    fitted = labels.fitted(stated, classes, said.kind, said.blank, report, counted=said.kind in post.COUNTED)
    joined = graph.joined(opened.model, nodes_before, nodes_after, answers, batching.BATCH)
    _compare(joined, original, opened, network, size, _bytes(before), report)
    batch = _batch_size(wish, opened, before, report)
    beside = drawing.models(name, answers, fitted, list(nodes_after.defaults)) if wish.draw else {}
    config = folder.config_text(
        name,
        answers,
        batch,
        labelled=fitted is not None,
        optional=nodes_after.defaults,
        picture_model=f"{name}{drawing.PICTURE}" if wish.draw else "",
    )
    return Attached(joined, config, tuple(nodes_after.defaults), fitted, report, beside)


def _characters(said: post.Post) -> str:
    """Returns what stands behind ctc: in --post: a file of characters, or "metadata"."""
    return said.argument if said.kind == "ctc" else ""


def _bytes(before: words.Pre) -> bool:
    return before.scale == "byte" and not before.std


def _size(network: Network, said: str, said_head: str, report: Report) -> tuple[int, int]:
    """Returns the height and width of the pictures that are tried. `said` is --pre, `said_head` the head of --post.
    Raises AttachError if nothing tells them."""
    stated = words.stated_size(said)
    if network.height is not None and network.width is not None:
        report.found("size", f"{network.height} x {network.width}", "the shape of the input")
        return network.height, network.width
    known = sizes_in(network.metadata.get("imgsz", ""))
    if stated:
        report.said("size", " x ".join(str(size) if size else "as the picture" for size in stated))
        height, width = stated[0] or _TRIAL_SIDE, stated[1] or network.width or _TRIAL_SIDE
    elif known:
        report.found("size", f"{known[0]} x {known[1]}", "metadata 'imgsz'")
        height, width = known
    elif network.height is not None:  # a line of text
        return network.height, _TRIAL_SIDE
    elif said_head == "db" or (not said_head and heads.finds_text(network)):
        report.default("size", "as the picture")
        height = width = _TRIAL_SIDE
    elif "character" in network.metadata:
        raise AttachError(
            "--pre: the height of a line of text is open: say height:48 (PP-OCRv3 and later) or height:32"
        )
    else:
        raise AttachError(
            f"--pre: the size of the input '{network.input}' is open: say it, such as letterbox:640 for a detector or "
            "crop:224 for a classifier"
        )
    return network.height or height, network.width or width


def _head(wish: Wish, network: Network, outputs: Sequence[Output], size: tuple[int, int], report: Report) -> post.Post:
    """Returns the head: what --post says, else what the outputs tell. Raises AttachError."""
    shown = ", ".join(f"{output.name} {output.dtype}{list(output.shape)}" for output in outputs)
    report.ran("output", shown, f"of one random picture of {size[0]} x {size[1]}")
    if wish.post:
        return post.read(wish.post, report.said, "", report)
    guesses = heads.recognise(network, outputs, size)
    if len(guesses) != 1:
        raise heads.unknown(outputs, guesses)
    return post.read(guesses[0].kind, report.ran if guesses[0].ran else report.found, guesses[0].why, report)


def _chosen(outputs: Sequence[Output], names: str) -> Sequence[Output]:
    """Returns the outputs that the word output: names. Raises AttachError."""
    wanted = names.split(",") if names else [output.name for output in outputs]
    if unknown := set(wanted) - {output.name for output in outputs}:
        raise AttachError(
            f"--post: there is no output '{min(unknown)}': expected {', '.join(output.name for output in outputs)}"
        )
    return [output for output in outputs if output.name in wanted]


def _compare(
    joined: onnx.ModelProto,
    original: onnx.ModelProto,
    opened: batching.Opened,
    network: Network,
    size: tuple[int, int],
    bytes_: bool,
    report: Report,
) -> None:
    """Compares the network in the new graph with that of the file, on random pictures."""
    rows = [network.pictures(1, *size, bytes_=bytes_, seed=10 + i) for i in range(_COMPARED)]
    alone = graph.network_in(joined, opened.model)
    equal, largest = graph.difference(network.open(original), network.open(alone), rows)
    told = "bit for bit" if equal else f"apart from {largest:.1e} of the greatest magnitude"
    report.proved(f"network: on {_COMPARED} random pictures it gives what {network.path.name} gives, {told}")


def _batch_size(wish: Wish, opened: batching.Opened, before: words.Pre, report: Report) -> int:
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


def write(attached: Attached, to: Path, library: Path, command: str, *, overwrite: bool) -> tuple[list[Path], Served]:
    """Writes a model's folder, and loads it: in ONNX Runtime, and as the gateway does. Returns the paths, and the
    loaded model. Raises AttachError."""
    repository.check_free(to, 1, overwrite=overwrite)
    for place in (to, *(to.with_name(name) for name in attached.beside)):
        if (place / "config.pbtxt").exists() and not overwrite:
            raise AttachError(f"{place / 'config.pbtxt'} is there: replace the model with --overwrite")
    session(attached.model, [library])
    with tempfile.TemporaryDirectory() as tried:  # what can't be served is not written
        place = Path(tried) / to.resolve().name
        _write_model(attached, place, overwrite=False)
        served = Served(place, library)
        answer = served.predict(grey_picture())
    attached.report.proved("loaded: by ONNX Runtime with the op library, and by the gateway; it answers a grey picture")
    written = _write_model(attached, to, overwrite=overwrite)
    if overwrite:
        _remove_stale(attached, to)
    sample = json.dumps(_short(answer), ensure_ascii=False)
    readme = folder.readme_text(to.resolve().name, to.parent, command, attached.report, sample, attached.optional)
    for name, text in (("README.md", readme), ("report.txt", "\n".join(attached.report.lines()) + "\n")):
        written.append(to / name)
        written[-1].write_text(text, encoding="utf-8")
    return written, served


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
