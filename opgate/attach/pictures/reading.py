"""Reads the lines of text that a detector finds: a second network, which gets an upright crop of each. A third one may
say before which of them are upside down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper

from opgate.attach.model import graph, heads_without_boxes, labels, network_file, settings
from opgate.attach.model.head import Head
from opgate.attach.model.nodes import OPS, Nodes, Setting
from opgate.attach.model.post import ANY, Answer, Answers, Post
from opgate.attach.model.report import AttachError, Report
from opgate.attach.model.wish import Wish
from opgate.attach.pictures import pre, trials
from opgate.attach.pictures.facts import Network
from opgate.attach.pictures.known_network import SAY_CHARACTERS, Known, known
from opgate.attach.pictures.pre_words import Pre

#: The tensors from which a loop over lines takes the crops, their widths and the number of a line, behind its prefix.
_CROPS, _WIDTHS, _NUMBER, _MORE = "crops", "widths", "number", "more"

_Made = TypeVar("_Made", "Reader", "Turner")


@dataclass(frozen=True, slots=True)
class Reader:
    """A network that reads lines. `body` is that of a loop over the crops of a picture, whose outputs for a line are
    `steps` labels, -1 behind the last one, and a score. `labels` are the characters."""

    before: Pre
    body: onnx.GraphProto
    steps: int
    labels: Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Turner:
    """A network that says which lines are upside down. `body` is that of a loop over the crops of a picture, whose
    output for a line is whether it is, with a score above the input `turn_threshold`."""

    before: Pre
    body: onnx.GraphProto


def reader(wish: Wish, said: Post, opset: int, report: Report) -> Reader:
    """Returns the reader in the file of --read for a model with this version of the standard operators. `said`
    is the head of the detector, which has the words for the reader. Raises AttachError."""
    assert wish.read is not None
    words = [f"{word}:{value}" for word, value in (("beam", said.beam), ("blank", said.blank)) if word in said.stated]
    of_reader = Wish(wish.read, wish.read_pre, " ".join(("ctc", *words)), wish.labels, libraries=wish.libraries)
    return _told("reader", "--read", of_reader, report, lambda of, own: _reader(of, opset, own))


def turner(wish: Wish, opset: int, report: Report) -> Turner:
    """Returns what says which lines are upside down, of the file of --turn, for a model with this version of the
    standard operators. Raises AttachError."""
    assert wish.turn is not None
    of_turner = Wish(wish.turn, wish.turn_pre, "classify:1", libraries=wish.libraries)
    return _told("turner", "--turn", of_turner, report, lambda of, own: _turner(of, opset, own))


def _told(name: str, option: str, wish: Wish, report: Report, make: Callable[[Known, Report], _Made]) -> _Made:
    """Returns what `make` makes of a network. Reports its facts behind a name, and its errors behind an option."""
    own = Report()
    try:
        made = make(known(wish, network_file.load(wish), own), own)
    except AttachError as error:
        text = str(error).replace("--pre", f"{option}-pre")
        text = text.replace(SAY_CHARACTERS, "Say --labels FILE, with one character a line")
        raise AttachError(f"{option} {wish.file.name}: {text}") from None
    report.facts += [replace(fact, subject=f"{name}: {fact.subject}") for fact in own.facts]
    return made


def _reader(of: Known, opset: int, report: Report) -> Reader:
    text = Nodes(opset, f"{graph.READ}text/")
    head, nodes, constants = _line(of, opset, graph.READ, report)
    classes = heads_without_boxes.text(text, head, f"{text.prefix}count")
    characters = labels.fitted(of.labels, classes, "ctc", of.said.blank, report)
    steps = _most_steps(of)
    wanted = [
        helper.make_tensor_value_info(_padded(text, "labels", steps), TensorProto.INT32, [steps]),
        helper.make_tensor_value_info("score", TensorProto.FLOAT, [1]),
    ]
    return Reader(of.before, _body(graph.READ, nodes, constants, text, wanted), steps, characters)


def _turner(of: Known, opset: int, report: Report) -> Turner:
    way = Nodes(opset, f"{graph.TURN}way/")
    head, nodes, constants = _line(of, opset, graph.TURN, report)
    x, classes, activation = heads_without_boxes.scores(way, head)
    if classes != 2:
        raise AttachError(f"expected two classes, of upright lines and of those that are upside down, got {classes}")
    named = [number for number, label in enumerate(of.labels or ()) if "180" in label]
    number = named[0] if len(named) == 1 else 1
    (report.found if named else report.default)("upside down", f"class {number}")
    score, label = f"{way.prefix}score", f"{way.prefix}label"
    way.add_op("TopKLabels", [x], [score, label], "best", k=1, activation=activation)
    sure = way.add("Greater", [score, settings.TURN], "sure")
    turned = way.add(
        "And", [way.add("Equal", [label, way.constant("down", number, np.int32)], "is_down"), sure], "turned"
    )
    wanted = [helper.make_tensor_value_info(turned, TensorProto.BOOL, [1, 1])]
    return Turner(of.before, _body(graph.TURN, nodes, constants, way, wanted))


def _line(
    of: Known, opset: int, prefix: str, report: Report
) -> tuple[Head, list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Returns a network for lines whose names begin with a prefix, and the nodes and constants from the crops of a
    picture to what it says of one."""
    before = of.before
    if before.fit != "fit_height" or before.channels != 3:
        raise AttachError("--pre: it gets lines of text in colours: say a word such as height:48")

    def renamed(name: str) -> str:
        return f"{prefix}network/{name}" if name else ""

    model = onnx.ModelProto()
    model.CopyFrom(_converted(of.network.model, opset))
    graph.rename(model, renamed)
    network = replace(of.network, model=model, input=renamed(of.network.input))
    outputs = [replace(output, name=renamed(output.name)) for output in of.outputs]
    line = Nodes(opset, f"{prefix}line/")
    _add_line(line, before, network, prefix)
    head = Head(network, outputs, of.size, of.said, of.labels, report, partial(trials.outputs, network, of.size))
    constants = [*line.constants.values(), *model.graph.initializer]
    return head, [*line.nodes, *model.graph.node], constants


def _body(
    prefix: str,
    nodes: Sequence[onnx.NodeProto],
    constants: Sequence[onnx.TensorProto],
    last: Nodes,
    wanted: Sequence[onnx.ValueInfoProto],
) -> onnx.GraphProto:
    """Returns the body of a loop over lines: `nodes`, then those in `last`, with the outputs in `wanted`."""
    number, more = f"{prefix}{_NUMBER}", f"{prefix}{_MORE}"
    given = [
        helper.make_tensor_value_info(number, TensorProto.INT64, []),
        helper.make_tensor_value_info(more, TensorProto.BOOL, [1]),
    ]
    on = helper.make_tensor_value_info(last.add("Identity", [more], "more"), TensorProto.BOOL, [1])
    return helper.make_graph(
        [*nodes, *last.nodes], "line", given, [on, *wanted], [*constants, *last.constants.values()]
    )


def _most_steps(of: Known) -> int:
    """Returns how many steps the widest line has."""
    names = [output.name for output in of.outputs]
    pictures = of.network.outputs(of.network.model, of.before.height, of.before.width, bytes_=of.bytes)
    return max(max(output.shape[:2]) for output in pictures if output.name in names)


def _padded(nodes: Nodes, x: str, size: int) -> str:
    """Adds i32 [size] from [1, t]: -1 behind the end."""
    longer = nodes.fitted(x, 2, 1, size, nodes.constant("none", -1, np.int32), "padded")
    return nodes.reshape(longer, [size], "flat")


def _converted(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Returns a model whose standard operators are of a version. Raises AttachError."""
    domains = {entry.domain for entry in model.opset_import} - {"", "ai.onnx", OPS}
    if domains or model.functions or model.graph.sparse_initializer:
        raise AttachError(
            f"a reader with {', '.join(sorted(domains)) or 'functions'} can't be put into another model yet"
        )
    if graph.opset_of(model) == opset:
        return model
    try:
        return onnx.version_converter.convert_version(model, opset)
    except RuntimeError as error:
        raise AttachError(
            f"its standard operators are of version {graph.opset_of(model)}, and those of the detector of {opset}: "
            f"export both with the same ({error})"
        ) from None


def _add_line(nodes: Nodes, before: Pre, network: Network, prefix: str) -> None:
    """Adds the nodes from all crops [k, 3, h, c] to the network's input: one crop without what stands behind its end,
    and zeros up to a width that the network takes."""
    number = nodes.reshape(f"{prefix}{_NUMBER}", [1], "number")
    crop = nodes.add("Gather", [f"{prefix}{_CROPS}", number], "crop", axis=0)
    width = nodes.add("Gather", [f"{prefix}{_WIDTHS}", number], "width", axis=0)
    width = nodes.cast(width, TensorProto.INT64, "width.wide")
    cut = nodes.add("Slice", [crop, nodes.ints("start", [0]), width, nodes.ints("axis", [3])], "cut")
    target = nodes.ints("columns", [before.width])
    if before.bucket:
        bucket, least = nodes.ints("bucket", [before.bucket]), min(max(before.bucket, before.narrowest), before.width)
        above = nodes.add("Add", [width, nodes.ints("rounding", [before.bucket - 1])], "above")
        rounded = nodes.add("Mul", [nodes.add("Div", [above, bucket], "buckets"), bucket], "rounded")
        held = nodes.add("Min", [rounded, target], "held")
        target = nodes.add("Max", [held, nodes.ints("least", [least])], "at_least")
    missing = nodes.add("Sub", [target, width], "missing")
    pads = nodes.add("Concat", [nodes.ints("before", [0] * 7), missing], "pads", axis=0)
    image = nodes.add("Pad", [cut, pads], "padded")
    for step in pre.typed(nodes, network):
        image = step(image, "")
    nodes.add("Identity", [image], "input", to=network.input)


def add(nodes: Nodes, head: Head, reader: Reader, turner: Turner | None) -> Answers:
    """Adds the nodes from a map of text to `quads`, `texts` and `scores` of the lines of one picture. Those that are
    upside down, as `turner` says, are turned before they are read. Raises AttachError."""
    if nodes.opset < 12:
        raise AttachError(
            f"--read needs opset 12, and the detector has {nodes.opset}: convert it with onnx.version_converter"
        )
    named = [f"{nodes.prefix}{name}" for name in ("all_quads", "all_scores", "all_count")]
    heads_without_boxes.regions(nodes, head, named, settings.BOX)
    every = nodes.reshape(named[0], [-1, 4, 2], "each")
    count = nodes.cast(named[2], TensorProto.INT64, "found")
    quads = nodes.add("Slice", [every, nodes.ints("start", [0]), count, nodes.ints("axis", [0])], "quads")
    nodes.add_op("DecodeImage", ["data"], [f"{nodes.prefix}pixels"], "picture")
    pixels = f"{nodes.prefix}pixels"
    shape = nodes.add("Concat", [nodes.ints("one", [1]), nodes.add("Shape", [pixels], "sides")], "batch", axis=0)
    image = nodes.add("Reshape", [pixels, shape], "image")
    upright = quads
    if turner:
        settings.add(nodes, settings.TURN, Setting(head.post.turn))
        told = head.report.said if "turn" in head.post.stated else head.report.default
        told("turn threshold", f"{head.post.turn:g}", f"above which score a line is turned; {ANY}")
        (turned,) = _for_each_line(nodes, graph.TURN, turner, [image, quads], count, ["turned"])
        opposite = nodes.add("Gather", [quads, nodes.ints("opposite", [2, 3, 0, 1])], "quads.turned", axis=1)
        upright = nodes.add("Where", [turned, opposite, quads], "quads.upright")
    named = ["all_texts", "text_scores"]
    texts, scores = _for_each_line(nodes, graph.READ, reader, [image, upright], count, named)
    flat = nodes.reshape(scores, [-1], "flat")
    least = nodes.reshape(settings.add(nodes, settings.SCORE, Setting(head.post.text)), [-1], "least_score")
    kept = nodes.add("Not", [nodes.add("Less", [flat, least], "low")], "kept")
    for name, x, dims in (("quads", quads, [4, 2]), ("texts", texts, [reader.steps]), ("scores", flat, [])):
        row = nodes.reshape(nodes.add("Compress", [x, kept], f"{name}.kept", axis=0), [1, -1, *dims], f"{name}.row")
        nodes.add("Identity", [head.rows(nodes, row, 2 + len(dims))], f"{name}.all", to=name)
    told = head.report.said if "text" in head.post.stated else head.report.default
    told("least text score", f"{head.post.text:g}", "of a line; the word text: or a request says another")
    outputs = [
        Answer("quads", "TYPE_FP32", (-1, 4, 2)),
        Answer("texts", "TYPE_INT32", (-1, reader.steps), labels=True),
        Answer("scores", "TYPE_FP32", (-1,)),
    ]
    return Answers(outputs, [("polygon", "quads"), ("score", "scores")], text="texts")


def _for_each_line(
    nodes: Nodes, prefix: str, of: Reader | Turner, inputs: Sequence[str], count: str, names: Sequence[str]
) -> list[str]:
    """Adds the crops of an image and its quads, `inputs`, and a loop over them. Returns its outputs."""
    crops = [f"{prefix}{name}" for name in (_CROPS, _WIDTHS)]
    nodes.add_op("PerspectiveCrop", inputs, crops, f"{prefix}lines", **_attributes(of.before))
    times, more = nodes.reshape(count, [], f"{prefix}times"), nodes.constant("more", True, np.bool_)
    outputs = [f"{nodes.prefix}{name}" for name in names]
    nodes.nodes.append(helper.make_node("Loop", [times, more], outputs, f"{nodes.prefix}{prefix}loop", body=of.body))
    return outputs


def _attributes(before: Pre) -> dict[str, object]:
    """Returns the attributes of PerspectiveCrop, whose mean and std belong to 0..1."""
    most = 255 if before.scale == "byte" else 1
    mean, std = (
        [number / most for number in (numbers * 3 if len(numbers) == 1 else numbers)]
        for numbers in (before.mean or (0.0,), before.std or (1.0,))
    )
    return {"height": before.height, "width": before.width, "order": before.order, "mean": mean, "std": std}
