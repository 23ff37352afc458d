"""Reads the lines of text that a detector finds: a second network, which gets an upright crop of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from opgate.attach import graph, labels, others, pre, settings
from opgate.attach.facts import Network
from opgate.attach.head import Head
from opgate.attach.known import SAY_CHARACTERS, Known, Wish, known
from opgate.attach.nodes import OPS, Nodes, Setting
from opgate.attach.post import Answer, Answers
from opgate.attach.report import AttachError, Report
from opgate.attach.words import Pre

#: The tensors from which the loop over lines takes a crop and its width, and the number of the line.
_CROPS, _WIDTHS, _NUMBER, _MORE = (f"{graph.READ}{name}" for name in ("crops", "widths", "number", "more"))


@dataclass(frozen=True, slots=True)
class Reader:
    """A network that reads lines. `body` is that of a loop over the crops of a picture, whose outputs for a line are
    `steps` labels, -1 behind the last one, and a score. `labels` are the characters."""

    before: Pre
    body: onnx.GraphProto
    steps: int
    labels: Sequence[str] | None


def reader(wish: Wish, beam: int, opset: int, report: Report) -> Reader:
    """Returns the reader in the file of --read for a model with this version of the standard operators. `beam` is the
    width of its beam, 0 for none. Raises AttachError."""
    assert wish.read is not None
    own = Report()
    head = f"ctc beam:{beam}" if beam else "ctc"
    try:
        of = known(Wish(wish.read, wish.read_pre, head, wish.labels, libraries=wish.libraries), own)
        made = _reader(of, opset, own)
    except AttachError as error:
        text = str(error).replace("--pre", "--read-pre")
        text = text.replace(SAY_CHARACTERS, "Say --labels FILE, with one character a line")
        raise AttachError(f"--read {wish.read.name}: {text}") from None
    report.facts += [replace(fact, subject=f"reader: {fact.subject}") for fact in own.facts]
    return made


def _reader(of: Known, opset: int, report: Report) -> Reader:
    network, before = of.network, of.before
    if before.fit != "fit_height" or before.channels != 3:
        raise AttachError("--pre: a reader of lines takes colours, and a word such as height:48")
    model = _prefixed(_converted(network.model, opset))
    network = replace(network, model=model, input=_name(network.input))
    outputs = [replace(output, name=_name(output.name)) for output in of.outputs]
    line, text = (Nodes(opset, f"{graph.READ}{part}/") for part in ("line", "text"))
    _add_line(line, before, network)
    head = Head(network, outputs, of.size, of.said, of.labels, report)
    classes = others.text(text, head, f"{text.prefix}count")
    characters = labels.fitted(of.labels, classes, "ctc", of.said.blank, report)
    steps = _most_steps(of)
    wanted = [
        helper.make_tensor_value_info(text.add("Identity", [_MORE], "more"), TensorProto.BOOL, [1]),
        helper.make_tensor_value_info(_padded(text, "labels", steps), TensorProto.INT32, [steps]),
        helper.make_tensor_value_info("score", TensorProto.FLOAT, [1]),
    ]
    given = [
        helper.make_tensor_value_info(_NUMBER, TensorProto.INT64, []),
        helper.make_tensor_value_info(_MORE, TensorProto.BOOL, [1]),
    ]
    nodes = [*line.nodes, *model.graph.node, *text.nodes]
    constants = [*line.constants.values(), *model.graph.initializer, *text.constants.values()]
    return Reader(before, helper.make_graph(nodes, "line", given, wanted, constants), steps, characters)


def _most_steps(of: Known) -> int:
    """Returns how many steps the widest line has."""
    names = [output.name for output in of.outputs]
    pictures = of.network.outputs(of.network.model, of.before.height, of.before.width, bytes_=of.bytes)
    return max(max(output.shape[:2]) for output in pictures if output.name in names)


def _padded(nodes: Nodes, x: str, size: int) -> str:
    """Adds i32 [size] from [1, t]: -1 behind the end."""
    used = nodes.slice(nodes.add("Shape", [x], "shape"), 0, 1, 2, "used")
    missing = nodes.add("Sub", [nodes.ints("most", [size]), used], "missing")
    pads = nodes.add("Concat", [nodes.ints("before", [0, 0, 0]), missing], "pads", axis=0)
    return nodes.reshape(nodes.add("Pad", [x, pads, nodes.constant("none", -1, np.int32)], "padded"), [size], "flat")


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


def _name(name: str) -> str:
    return f"{graph.READ}network/{name}" if name else ""


def _prefixed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy in which all names are those of a reader."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph.rename(copy, _name)
    return copy


def _add_line(nodes: Nodes, before: Pre, network: Network) -> None:
    """Adds the nodes from all crops [k, 3, h, c] to the network's input: one crop without what stands behind its end,
    and zeros up to a width that the network takes."""
    number = nodes.reshape(_NUMBER, [1], "number")
    crop = nodes.add("Gather", [_CROPS, number], "crop", axis=0)
    width = nodes.cast(nodes.add("Gather", [_WIDTHS, number], "width", axis=0), TensorProto.INT64, "width.wide")
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


def add(nodes: Nodes, head: Head, reader: Reader) -> Answers:
    """Adds the nodes from a map of text to `quads`, `texts` and `scores` of the lines of one picture. Raises
    AttachError."""
    if nodes.opset < 12:
        raise AttachError(
            f"--read needs opset 12, and the detector has {nodes.opset}: convert it with onnx.version_converter"
        )
    named = [f"{nodes.prefix}{name}" for name in ("all_quads", "all_scores", "all_count")]
    others.regions(nodes, head, named, settings.BOX)
    every = nodes.reshape(named[0], [-1, 4, 2], "each")
    count = nodes.cast(named[2], TensorProto.INT64, "found")
    quads = nodes.add("Slice", [every, nodes.ints("start", [0]), count, nodes.ints("axis", [0])], "quads")
    nodes.add_op("DecodeImage", ["data"], [f"{nodes.prefix}pixels"], "picture")
    pixels = f"{nodes.prefix}pixels"
    shape = nodes.add("Concat", [nodes.ints("one", [1]), nodes.add("Shape", [pixels], "sides")], "batch", axis=0)
    image = nodes.add("Reshape", [pixels, shape], "image")
    nodes.add_op("PerspectiveCrop", [image, quads], [_CROPS, _WIDTHS], "lines", **_attributes(reader.before))
    texts, scores = f"{nodes.prefix}all_texts", f"{nodes.prefix}text_scores"
    inputs = [nodes.reshape(count, [], "times"), nodes.constant("more", True, np.bool_)]
    nodes.nodes.append(helper.make_node("Loop", inputs, [texts, scores], f"{nodes.prefix}loop", body=reader.body))
    flat = nodes.reshape(scores, [-1], "flat")
    least = settings.add(nodes, settings.SCORE, Setting(head.post.text))
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


def _attributes(before: Pre) -> dict[str, object]:
    """Returns the attributes of PerspectiveCrop, whose mean and std belong to 0..1."""
    most = 255 if before.scale == "byte" else 1
    mean, std = (
        [number / most for number in (numbers * 3 if len(numbers) == 1 else numbers)]
        for numbers in (before.mean or (0.0,), before.std or (1.0,))
    )
    return {"height": before.height, "width": before.width, "order": before.order, "mean": mean, "std": std}
