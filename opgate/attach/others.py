"""The nodes behind heads that give no boxes: classifiers, vectors, maps, lines of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onnx import TensorProto

from opgate.attach.facts import Output
from opgate.attach.head import Head
from opgate.attach.heads import are_probabilities
from opgate.attach.nodes import Nodes
from opgate.attach.post import Answer, Answers
from opgate.attach.report import AttachError


def _flat(nodes: Nodes, head: Head) -> tuple[str, Output, int]:
    """Returns an output [n, c] or [n, c, 1, 1] as [n, c], and c."""
    output = head.output(lambda output: len(output.shape) in (2, 4), "one output [n, c]")
    if len(output.shape) == 2:
        return head.rows(nodes, output.name, 2), output, output.shape[1]
    if output.shape[2:] != (1, 1):
        raise AttachError(f"--post: {head.post.kind} needs an output [n, c], and it is {output}")
    flat = nodes.reshape(output.name, [0, output.shape[1]], "flat")
    return head.rows(nodes, flat, 2), output, output.shape[1]


def _classify(nodes: Nodes, head: Head) -> tuple[Answers, int]:
    x, output, classes = _flat(nodes, head)
    if head.post.argument and not (head.post.argument.isdecimal() and int(head.post.argument)):
        raise AttachError(f"--post: expected classify:5 or another number of labels, got classify:{head.post.argument}")
    k = min(int(head.post.argument or 5), classes)
    values = output.value.reshape(1, -1)
    stated = head.post.words & {"softmax", "sigmoid", "probabilities"}
    if stated:
        activation = min(stated).replace("probabilities", "none")
        head.report.said("scores", min(stated))
    elif are_probabilities(values) and classes > 1:
        activation = "none"
        head.report.found("scores", "probabilities", "they sum to 1 in a run")
    else:
        activation = "softmax"
        head.report.found("scores", "logits", "they don't sum to 1 in a run: a softmax is added")
    nodes.add_op("TopKLabels", [x], ["scores", "labels"], "best", k=k, activation=activation)
    outputs = [
        Answer("labels", "TYPE_INT32", (k,), labels=head.labels is not None),
        Answer("scores", "TYPE_FP32", (k,)),
    ]
    return Answers(outputs, [("label", "labels"), ("score", "scores")]), classes


def _embed(nodes: Nodes, head: Head) -> tuple[Answers, int]:
    x, output, size = _flat(nodes, head)
    wide = nodes.float(x, output.dtype, "vector")
    nodes.add("LpNormalization", [wide], "normalized", to="embedding", axis=1, p=2)
    head.report.default("vector", f"{size} numbers, divided by their length")
    return Answers([Answer("embedding", "TYPE_FP32", (size,))]), 0


def _segment(nodes: Nodes, head: Head) -> tuple[Answers, int]:
    output = head.output(lambda output: len(output.shape) == 4, "one output [n, classes, h, w]")
    _, classes, height, width = output.shape
    if classes > 256:
        raise AttachError(f"--post: segment takes up to 256 classes, and the output has {classes}")
    x = head.rows(nodes, nodes.float(output.name, output.dtype, "maps"), 4)
    best = nodes.add("ArgMax", [x], "best", axis=1, keepdims=0)
    nodes.cast(best, TensorProto.UINT8, "bytes", to="classes")
    return Answers([Answer("classes", "TYPE_UINT8", (height, width))]), classes


def _ctc(nodes: Nodes, head: Head) -> tuple[Answers, int]:
    output = head.output(lambda output: len(output.shape) == 3, "one output [n, steps, classes]")
    x, classes = output.name, output.shape[2]
    if output.shape[0] > 1 and output.shape[1] == 1:
        head.report.ran("steps", "the first axis of the output")
        x = nodes.add("Transpose", [x], "rows", perm=[1, 0, 2])
    x = head.rows(nodes, x, 3)
    if not 0 <= head.post.blank < classes:
        raise AttachError(f"--post: blank:{head.post.blank} is no class of {classes}")
    activation = "none" if are_probabilities(output.value) else "softmax"
    head.report.ran("scores", "probabilities" if activation == "none" else "logits")
    nodes.add_op(
        "CTCGreedyDecode", [x], ["labels", "count", "score"], "text", blank=head.post.blank, activation=activation
    )
    outputs = [
        Answer("labels", "TYPE_INT32", (-1,), labels=head.labels is not None),
        Answer("count", "TYPE_INT32", (1,), scalar=True),
        Answer("score", "TYPE_FP32", (1,), scalar=True),
    ]
    return Answers(outputs, [("score", "score")], "count", "labels"), classes


_MAKERS: Mapping[str, Callable[[Nodes, Head], tuple[Answers, int]]] = {
    "classify": _classify,
    "embed": _embed,
    "segment": _segment,
    "ctc": _ctc,
}


def add(nodes: Nodes, head: Head) -> tuple[Answers, int]:
    """Adds the nodes behind a head that gives no boxes. Returns the answers and the number of classes, 0 without any.
    Raises AttachError."""
    return _MAKERS[head.post.kind](nodes, head)
