"""Attaches pre- and post-processing to a network for pictures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx

from opgate.attach.model import folder, graph, head, heads_without_boxes, labels, post, takes
from opgate.attach.model.attached import Attached, attached
from opgate.attach.model.examples import PICTURES, files
from opgate.attach.model.network_file import NetworkFile
from opgate.attach.model.nodes import Nodes
from opgate.attach.model.report import AttachError, Report
from opgate.attach.model.serving import grey_picture
from opgate.attach.model.wish import Wish
from opgate.attach.pictures import batching, detectors, drawing, pre, pre_words, reading, rotated, trials
from opgate.attach.pictures.known_network import Known, known

#: How many pictures a batch has at most, if nobody says it.
MAX_BATCH_SIZE = 8
_COMPARED = 3
_STATUSES = (
    "1=not a JPEG, PNG, WebP, BMP or GIF;2=corrupt or truncated;3=more than 50000000 pixels;"
    "4=an unsupported kind of picture"
)


def attach(wish: Wish, name: str, network: NetworkFile, report: Report) -> Attached:
    """Makes the model `name`. Raises AttachError, RunError and SessionError."""
    of = known(wish, network, report)
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
    others = partial(trials.outputs, of.network, of.size)
    this = head.Head(of.network, of.outputs, of.size, of.said, of.labels, report, others, fixed=not opened.batched)
    if reader:
        answers, fitted = reading.add(nodes_after, this, reader, turner), reader.labels
    else:
        answers, classes = _adds(of.said)(nodes_after, this)
        counted = of.said.kind in post.COUNTED
        classes = classes or labels.count_in(of.network.metadata)
        fitted = labels.fitted(of.labels, classes, of.said.kind, of.said.blank, report, counted=counted)
    beside = drawing.models(name, answers, fitted, nodes_after.settings) if wish.draw else {}
    made = attached(
        name,
        _takes(),
        opened.model,
        (nodes_before, nodes_after),
        answers,
        _batch_size(wish, opened, of.before, report),
        fitted,
        report,
        beside=beside,
        picture_model=f"{name}{folder.PICTURE}" if wish.draw else "",
    )
    _compare(made.model, opened, of, report)
    return made


def _takes() -> takes.Takes:
    return takes.file(
        "picture",
        grey_picture(),
        "a grey picture",
        "picture.jpg",
        "image/jpeg",
        _STATUSES,
        wrong="A file that is no picture, or a broken one, is answered with 400 and the reason, also among others in a "
        "batch.",
        examples=lambda place: files(place, PICTURES),
    )


def _adds(said: post.Post) -> Callable[[Nodes, head.Head], tuple[post.Answers, int]]:
    """Returns what adds the nodes of a head."""
    if said.kind == "obb":
        return rotated.add
    return detectors.add if said.detects else heads_without_boxes.add


def _opened(wish: Wish, of: Known, report: Report) -> batching.Opened:
    if wish.read:
        return batching.Opened(of.network.model, False, "--read reads the lines of one picture at a time")
    return batching.open_batch(of.network, of.size, of.bytes, report, trials.examples_in(wish.examples))


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
