"""Attaches to a network that tells what a file is: its first and last bytes before it, labels behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import TensorProto

from opgate.attach.model import graph, heads_without_boxes, labels, network_file, post, takes, words
from opgate.attach.model.attached import Attached, attached
from opgate.attach.model.head import Head
from opgate.attach.model.network_file import Feed, Input, NetworkFile
from opgate.attach.model.nodes import Nodes
from opgate.attach.model.report import AttachError, Report
from opgate.attach.model.wish import Wish
from opgate.onnx_tools.row_dependence import ROWS
from opgate.ops_build.dtypes import DTYPES

#: The words of --pre.
_BYTES = words.whole(1, 1 << 26)
WITH_ARGUMENT: Mapping[str, words.Reader] = {
    "head": _BYTES,
    "tail": _BYTES,
    "block": _BYTES,
    "pad": words.whole(0, (1 << 31) - 1),
    "least": _BYTES,
}
ALONE = {"strip": "strip"}
#: The heads that go with a file.
HEADS = ("classify", "embed", "outputs")
#: The file beside Magika's networks.
_MAGIKA = "config.min.json"
_MAX_BATCH_SIZE = 8
_TYPES = {"i32": TensorProto.INT32, "i64": TensorProto.INT64, "f32": TensorProto.FLOAT, "u8": TensorProto.UINT8}


@dataclass(frozen=True, slots=True)
class Ends:
    """Which bytes of a file are the input of a network, as FileEnds has it."""

    head: int = 0
    tail: int = 0
    block: int = 4096
    strip: bool = False
    pad: int = 256
    least: int = 0

    @property
    def attributes(self) -> dict[str, int]:
        """The attributes of FileEnds."""
        block = max(self.block, self.head, self.tail)
        stated = (("head", self.head), ("tail", self.tail), ("block", block), ("pad", self.pad), ("least", self.least))
        return {**dict(stated), "strip": int(self.strip)}


def wanted(wish: Wish, network: NetworkFile) -> bool:
    """Returns whether the words of --pre, or a file beside the network, say that it takes files of any kind."""
    first = {word.partition(":")[0] for word in wish.pre.split()}
    return bool(first & {"head", "tail"}) or (not wish.pre and "beg_size" in network.beside(_MAGIKA)[1])


def attach(wish: Wish, name: str, network: NetworkFile, report: Report) -> Attached:
    """Makes the model `name`. Raises AttachError, RunError and SessionError."""
    taken = _input(network)
    ends = _settled(wish, network, taken, report)
    rng = np.random.default_rng(0)

    def feed(rows: int, low: int = 0, high: int = 256) -> Feed:
        values = rng.integers(low, high, (rows, ends.head + ends.tail))
        return {taken.name: values.astype(DTYPES[taken.dtype].numpy)}

    def feeds() -> Iterator[Feed]:
        yield from (feed(1, *bounds) for bounds in ((0, 256), (32, 127), (0, 1), (ends.pad, ends.pad + 1)))

    ran = network_file.outputs(network, feed(1), "a file")
    said, found = post.settled(wish.post, ran, HEADS, "classify", report)
    file, config = network.beside(_MAGIKA)
    names = (file, list(map(str, config.get("target_labels_space", ()))))
    stated = labels.read(wish.labels, network.metadata, said.kind, report, beside=names)
    opened, batched, why = network_file.open_batch(network, feed(ROWS), report)
    before, after = (Nodes(graph.opset_of(network.model), prefix) for prefix in (graph.PRE, graph.POST))
    _add(before, taken, ends)
    head = Head(network, found, (0, 0), said, stated, report, network_file.tried(network, feeds), fixed=not batched)
    answers, classes = heads_without_boxes.add(after, head)
    fitted = labels.fitted(stated, classes, said.kind, 0, report)
    batch = network_file.batch_size(wish.max_batch_size, _MAX_BATCH_SIZE, batched, why, report, answers)
    made = attached(name, _takes(ends), opened.model, (before, after), answers, batch, fitted, report)
    network_file.compare(network, made.model, list(feeds()), "files", report)
    return made


def _input(network: NetworkFile) -> Input:
    if len(network.inputs) != 1:
        raise AttachError(f"{network.path.name}: expected one input for the bytes of a file, got {network.described}")
    (taken,) = network.inputs.values()
    if len(taken.shape) != 2 or taken.dtype not in _TYPES:
        raise AttachError(f"{network.path.name}: expected an input [n, bytes] of numbers, got {taken}")
    return taken


def _settled(wish: Wish, network: NetworkFile, taken: Input, report: Report) -> Ends:
    """Returns which bytes count: what --pre says, and what the file beside the network says. Raises AttachError."""
    width = taken.shape[1]
    file, config = network.beside(_MAGIKA)
    ends = Ends()
    if "beg_size" in config:
        head, tail, block, pad, least = (
            _number(config, key, file)
            for key in ("beg_size", "end_size", "block_size", "padding_token", "min_file_size_for_dl")
        )
        ends = Ends(head, tail, block, True, pad, least)
    said = words.read(wish.pre, WITH_ARGUMENT, ALONE)
    ends = replace(ends, **{**said, **({"strip": True} if "strip" in said else {})})
    if not ends.head + ends.tail or (width is not None and ends.head + ends.tail != width):
        wide = "so many bytes as you say" if width is None else f"{width} bytes"
        raise AttachError(
            f"--pre: {taken} takes {wide}: expected head:N and tail:M with that sum, got {ends.head + ends.tail}"
        )
    for subject, value in _described(ends).items():
        if subject in said:
            report.said(subject, value)
        elif config:
            report.found(subject, value, file)
        else:
            report.default(subject, value)
    return ends


def _number(config: Mapping[str, Any], key: str, file: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or not 0 <= value <= 1 << 26:
        raise AttachError(f"{file}: expected a number for {key}, got {value!r}")
    return value


def _described(ends: Ends) -> dict[str, str]:
    return {
        "head": f"{ends.head} bytes",
        "tail": f"{ends.tail} bytes",
        "block": f"{ends.block} bytes of each end are looked at",
        "strip": "white space at the ends is left out" if ends.strip else "no",
        "pad": str(ends.pad),
        "least": f"{ends.least} bytes" if ends.least else "none",
    }


def _add(nodes: Nodes, taken: Input, ends: Ends) -> None:
    """Adds the nodes from `data` and `ends` to the network's input."""
    values = taken.name if taken.dtype == "i32" else f"{nodes.prefix}values"
    nodes.add_op("FileEnds", ["data", "ends"], [values, graph.STATUS], "bytes", **ends.attributes)
    if taken.dtype != "i32":
        nodes.cast(values, _TYPES[taken.dtype], "typed", to=taken.name)


def _takes(ends: Ends) -> takes.Takes:
    short = f"1=shorter than {ends.least} bytes" + (" without white space" if ends.strip else "")
    return takes.file(
        "file",
        b"#!/bin/sh\necho hello\n",
        "a shell script",
        "any.file",
        "application/octet-stream",
        short if ends.least else "",
        media_types="*/*",
        wrong="A file that is too short is answered with 400 and the reason, also among others in a batch."
        if ends.least
        else "",
    )
