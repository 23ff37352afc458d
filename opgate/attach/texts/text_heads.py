"""The nodes behind networks that read: labels, spans of the text, vectors, values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import TensorProto

from opgate.attach.model import heads_without_boxes
from opgate.attach.model.graph import PRE
from opgate.attach.model.head import Head
from opgate.attach.model.nodes import Nodes
from opgate.attach.model.outputs import Output
from opgate.attach.model.post import POOLS, Answer, Answers
from opgate.attach.model.report import AttachError

#: The heads that go with a text.
HEADS = ("classify", "spans", "embed", "value", "outputs")
#: What Tokenize gives.
IDS, MASK, TYPES, OFFSETS, SPECIAL = (f"{PRE}{name}" for name in ("ids", "mask", "types", "offsets", "special"))
#: How many tokens each text has, i64 [n].
COUNT = f"{PRE}count"


def usual(outputs: Sequence[Output], config: Mapping[str, Any]) -> str:
    """Returns the head that the outputs, and a config.json beside the network, tell."""
    kinds = " ".join(config.get("architectures") or ())
    if len(outputs) == 1 and outputs[0].value.ndim == 2:
        multiple = config.get("problem_type") == "multi_label_classification"
        return "classify sigmoid" if multiple else "classify"
    if "TokenClassification" in kinds and outputs[0].value.ndim == 3:
        return "spans"
    return "outputs"


def add(nodes: Nodes, head: Head, config: Mapping[str, Any], tokens: int) -> tuple[Answers, int]:
    """Adds the nodes behind a network that reads. `tokens` are those of the text that was tried. Returns the answers
    and the number of classes, 0 without any. Raises AttachError."""
    if head.post.kind == "spans":
        return _spans(nodes, head, tokens)
    pools = head.post.words & {*POOLS}
    if head.post.kind == "embed" and (pools or not any(output.value.ndim == 2 for output in head.outputs)):
        return _pooled(nodes, head, pools, tokens), 0
    return heads_without_boxes.add(nodes, head)


def _of_tokens(head: Head, tokens: int) -> Output:
    """Returns the output that has numbers for each token. Raises AttachError."""
    fits = [output for output in head.outputs if output.value.ndim == 3 and output.shape[1] == tokens]
    if not fits:
        shown = ", ".join(map(str, head.outputs))
        raise AttachError(f"--post: {head.post.kind} needs an output [n, tokens, numbers], and the outputs are {shown}")
    heads_without_boxes.check_floats(head, fits[0])
    return fits[0]


def _pooled(nodes: Nodes, head: Head, pools: frozenset[str], tokens: int) -> Answers:
    """Adds one vector of those of the tokens."""
    if not pools:
        raise AttachError(
            f"--post: which vector of {', '.join(map(str, head.outputs))}? Expected one of the words "
            f'{", ".join(POOLS)}, such as --post "embed mean-pool"'
        )
    (pool,) = pools
    output = _of_tokens(head, tokens)
    size = output.shape[2]
    x = nodes.float(output.name, output.dtype, "tokens")
    head.report.said("pool", pool.removesuffix("-pool"))
    mask = nodes.cast(MASK, TensorProto.FLOAT, "mask")
    if pool == "cls-pool":
        vectors = nodes.reshape(nodes.slice(x, 1, 0, 1, "first"), [0, size], "vector.first")
    elif pool == "last-pool":
        place = nodes.add("Sub", [nodes.reshape(COUNT, [-1, 1], "count"), nodes.ints("one", [1])], "place")
        vectors = nodes.add("GatherND", [x, place], "vector.last", batch_dims=1)
    elif pool == "mean-pool":  # a text without tokens, which has no mean, is refused
        total = nodes.add("MatMul", [nodes.reshape(mask, [0, 1, -1], "there"), x], "sum")
        count = nodes.reshape(nodes.cast(COUNT, TensorProto.FLOAT, "count"), [-1, 1], "count.rows")
        vectors = nodes.add("Div", [nodes.reshape(total, [0, size], "sum.flat"), count], "mean")
    else:
        there, none = nodes.reshape(mask, [0, -1, 1], "there"), nodes.constant("none", -3.4e38)
        used = nodes.add("Where", [nodes.cast(there, TensorProto.BOOL, "is_there"), x, none], "used")
        vectors = nodes.reduce("ReduceMax", used, 1, "greatest", keepdims=False)
    heads_without_boxes.vector(nodes, head, head.rows(nodes, vectors, 2), size)
    return Answers([Answer("embedding", "TYPE_FP32", (size,))])


def _spans(nodes: Nodes, head: Head, tokens: int) -> tuple[Answers, int]:
    """Adds the spans of a text that the classes of its tokens tell: the places of their characters, counted in code
    points, their labels and their mean probabilities."""
    output = _of_tokens(head, tokens)
    if head.labels is None:
        raise AttachError("--post: spans needs the labels of the classes: say --labels config.json, or a file of them")
    if len(head.labels) != output.shape[2]:
        raise AttachError(f"--labels: expected {output.shape[2]} labels, one for each class, got {len(head.labels)}")
    x = nodes.float(output.name, output.dtype, "classes")
    made = ["start", "end", "labels", "scores", "count"]
    nodes.add_op("TokenSpans", [x, OFFSETS, SPECIAL], made, "spans", labels="\n".join(head.labels))
    outputs = [
        *(Answer(name, "TYPE_INT32", (-1,)) for name in ("start", "end")),
        Answer("labels", "TYPE_INT32", (-1,), labels=True),
        Answer("scores", "TYPE_FP32", (-1,)),
        Answer("count", "TYPE_INT32", (1,), scalar=True),
    ]
    fields = [("label", "labels"), ("start", "start"), ("end", "end"), ("score", "scores"), ("text", "text[start:end]")]
    return Answers(outputs, fields, "count"), output.shape[2]


def without_prefixes(labels: Sequence[str]) -> list[str]:
    """Returns the names of spans: labels without B- and I-."""
    return [label[2:] if label[:2] in ("B-", "I-") else label for label in labels]
