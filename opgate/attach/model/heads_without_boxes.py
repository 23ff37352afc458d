"""The nodes behind heads that give no boxes: classifiers, vectors, maps, lines of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import TensorProto

from opgate.attach.model import settings
from opgate.attach.model.head import Head
from opgate.attach.model.nodes import Nodes, Setting
from opgate.attach.model.outputs import Output, are_probabilities, class_axis
from opgate.attach.model.post import ANY, LABELS, Answer, Answers
from opgate.attach.model.report import AttachError


def _flat(nodes: Nodes, head: Head) -> tuple[str, Output, int]:
    """Returns an output [n, c] or [n, c, 1, 1] as [n, c], and c."""
    output = head.output(lambda output: len(output.shape) in (2, 4), "one output [n, c]")
    check_floats(head, output)
    x = nodes.float(output.name, output.dtype, "scores.f32") if output.dtype == "f64" else output.name
    if len(output.shape) == 2:
        return head.rows(nodes, x, 2), output, output.shape[1]
    if output.shape[2:] != (1, 1):
        raise AttachError(f"--post: {head.post.kind} needs an output [n, c], and it is {output}")
    flat = nodes.reshape(x, [0, output.shape[1]], "flat")
    return head.rows(nodes, flat, 2), output, output.shape[1]


def check_floats(head: Head, output: Output) -> None:
    """Raises AttachError if an output has integers."""
    if output.value.dtype.kind in "iub":
        raise AttachError(f"--post: {head.post.kind} needs scores, and {output} has integers ({output.dtype})")


def scores(nodes: Nodes, head: Head) -> tuple[str, int, str]:
    """Returns the scores of a classifier [n, c], c, and what TopKLabels makes probabilities of them with. Raises
    AttachError."""
    x, output, classes = _flat(nodes, head)
    kind = activation(head, output, classes)
    if classes == 1 and head.labels is not None and len(head.labels) == 2:
        return _two_classes(nodes, x, output, kind), 2, "none"
    return x, classes, kind


def _classify(nodes: Nodes, head: Head) -> tuple[Answers, int]:
    if head.post.argument and not (head.post.argument.isdecimal() and int(head.post.argument)):
        raise AttachError(f"--post: expected classify:5 or another number of labels, got classify:{head.post.argument}")
    x, classes, kind = scores(nodes, head)
    if int(head.post.argument or 1) > classes:
        raise AttachError(f"--post: classify:{head.post.argument} asks for more labels than the {classes} classes")
    return best(nodes, head, x, classes, kind), classes


def best(nodes: Nodes, head: Head, x: str, classes: int, kind: str) -> Answers:
    """Adds the best labels of scores x [n, classes], of which `kind`, that of TopKLabels, makes probabilities."""
    k = min(int(head.post.argument or LABELS), classes)
    most = min(max(head.post.most, k), classes)
    nodes.add_op("TopKLabels", [x], ["scores", "labels"], "best", k=most, activation=kind)
    enough = _enough(nodes, head, "scores", [-1, 1])
    count = nodes.reduce("ReduceSum", nodes.cast(enough, TensorProto.INT32, "ones"), 1, "enough.count", keepdims=False)
    settings.add(nodes, settings.TOP_K, Setting(k, 1, most, whole=True))
    may = f"a request may say 1 to {most}"
    (head.report.said if head.post.argument else head.report.default)("labels at most", k, may)
    settings.at_most(nodes, count, settings.TOP_K, to="count")
    outputs = [
        Answer("labels", "TYPE_INT32", (most,), labels=head.labels is not None),
        Answer("scores", "TYPE_FP32", (most,)),
        Answer("count", "TYPE_INT32", (1,), scalar=True),
    ]
    return Answers(outputs, [("label", "labels"), ("score", "scores")], "count")


def _enough(nodes: Nodes, head: Head, scores: str, shape: Sequence[int]) -> str:
    """Adds whether scores are at least the input `score_threshold`, which takes a shape for it."""
    told = head.report.said if "score" in head.post.stated else head.report.default
    told("score threshold", f"{head.post.score:g}", ANY)
    least = nodes.reshape(settings.add(nodes, settings.SCORE, Setting(head.post.score)), shape, "least_score")
    return nodes.add("Not", [nodes.add("Less", [scores, least], "low")], "enough")


def activation(head: Head, output: Output, classes: int) -> str:
    """Returns what makes probabilities of the scores of classes: what --post says, else what runs show."""
    stated = head.post.words & {"softmax", "sigmoid", "probabilities"}
    if stated:
        head.report.said("scores", min(stated))
        return min(stated).replace("probabilities", "none")
    if classes > 1 and are_probabilities(output.value.reshape(1, -1)):
        head.report.ran("scores", "probabilities", "they sum to 1")
        return "none"
    if _within_one(head, output):
        what = "of one class" if classes == 1 else "of each class for itself: they don't sum to 1"
        head.report.ran("scores", "probabilities", f"within 0..1, {what}")
        return "none"
    if classes == 1:
        head.report.ran("scores", "a logit", "beyond 0..1: a sigmoid is added")
        return "sigmoid"
    head.report.ran("scores", "logits", "they don't sum to 1: a softmax is added")
    return "softmax"


def _within_one(head: Head, output: Output) -> bool:
    """Returns whether an output stays within 0..1 on pictures of many kinds, also on some beyond the range of the
    usual ones, where logits leave it."""
    if _beyond(output.value):
        return False
    try:
        values = list(head.others(output.name))
    except Exception as error:  # the classes of onnxruntime's exceptions share no other base
        raise AttachError(f"{head.network.path.name} fails on random numbers: {error}") from None
    return not any(map(_beyond, values))


def _beyond(values: np.ndarray) -> bool:
    return bool(values.size) and not (float(values.min()) >= 0 and float(values.max()) <= 1)


def _two_classes(nodes: Nodes, x: str, output: Output, activation: str) -> str:
    """Adds the probabilities of both classes [n, 2] of a network that gives that of the second [n, 1]."""
    wide = nodes.float(x, output.dtype, "score") if output.dtype != "f64" else x
    second = nodes.add("Sigmoid", [wide], "second") if activation == "sigmoid" else wide
    first = nodes.add("Sub", [nodes.constant("one", [[1.0]]), second], "first")
    return nodes.add("Concat", [first, second], "both", axis=1)


def _embed(nodes: Nodes, head: Head) -> tuple[Answers, int]:
    x, output, size = _flat(nodes, head)
    wide = nodes.float(x, output.dtype, "vector") if output.dtype != "f64" else x
    vector(nodes, head, wide, size)
    return Answers([Answer("embedding", "TYPE_FP32", (size,))]), 0


def vector(nodes: Nodes, head: Head, x: str, size: int) -> None:
    """Adds the `embedding`, the vectors x [n, size] divided by their length unless --post says otherwise."""
    told = head.report.said if head.post.words & {"normalize", "unscaled"} else head.report.default
    if "unscaled" in head.post.words:
        nodes.add("Identity", [x], "vector", to="embedding")
        told("vector", f"{size} numbers as they are")
        return
    nodes.add("LpNormalization", [x], "normalized", to="embedding", axis=1, p=2)
    told("vector", f"{size} numbers, divided by their length")


def _segment(nodes: Nodes, head: Head) -> tuple[Answers, int]:
    output = head.output(lambda output: len(output.shape) in (3, 4), "one output [n, classes, h, w] or [n, h, w]")
    shape = output.shape if len(output.shape) == 4 else (output.shape[0], 1, *output.shape[1:])
    axis = class_axis(shape, head.size)
    if axis is None:
        height, width = head.size
        raise AttachError(f"--post: segment needs maps in the form of the picture, {height} x {width}: got {output}")
    classes, (height, width) = shape[axis], shape[2:] if axis == 1 else shape[1:3]
    numbers = classes == 1 and output.value.dtype.kind in "iu"
    if not numbers:
        check_floats(head, output)
    if classes > 256:
        raise AttachError(f"--post: segment takes up to 256 classes, and the output has {classes}")
    x = output.name if numbers else nodes.float(output.name, output.dtype, "maps")
    x = head.rows(nodes, nodes.reshape(x, [0, *shape[1:]], "maps.whole") if len(output.shape) == 3 else x, 4)
    if classes > 1 or numbers:
        for word in sorted(head.post.words | (head.post.stated & {"threshold"})):
            raise AttachError(f"--post: '{word}' goes with a map of one class, and {output} has none")
    if classes > 1:
        best = nodes.add("ArgMax", [x], "best", axis=axis, keepdims=0)
    else:
        best = nodes.reshape(x if numbers else _inside(nodes, head, output, x), [-1, height, width], "inside.flat")
    nodes.cast(best, TensorProto.UINT8, "bytes", to="classes")
    named = len(head.labels) if head.labels is not None else 0
    known = 0 if numbers else max(classes, min(named, 2))
    return Answers([Answer("classes", "TYPE_UINT8", (height, width))]), known


def _inside(nodes: Nodes, head: Head, output: Output, x: str) -> str:
    """Adds whether the probability of the one class is above the input `mask_threshold`. A logit is compared with that
    of the threshold."""
    level = nodes.reshape(settings.add(nodes, settings.MASK, Setting(head.post.threshold)), [-1, 1, 1, 1], "level")
    if activation(head, output, 1) == "sigmoid":
        other = nodes.add("Sub", [nodes.constant("one", 1.0), level], "level.other")
        level = nodes.add("Log", [nodes.add("Div", [level, other], "level.odds")], "level.logit")
    told = head.report.said if "threshold" in head.post.stated else head.report.default
    told("map", f"1 where the one class is above {head.post.threshold:g}, else 0", ANY)
    return nodes.add("Greater", [x, level], "inside")


def text(nodes: Nodes, head: Head, count: str) -> int:
    """Adds the `labels` and the `score` of a line, and how many labels are used, with the name `count`. Returns the
    number of classes. Raises AttachError."""
    output = head.output(lambda output: len(output.shape) == 3, "one output [n, steps, classes]")
    check_floats(head, output)
    x = nodes.float(output.name, output.dtype, "scores.f32") if output.dtype == "f64" else output.name
    classes = output.shape[2]
    if output.shape[0] > 1 and output.shape[1] == 1:
        head.report.ran("steps", "the first axis of the output")
        x = nodes.add("Transpose", [x], "rows", perm=[1, 0, 2])
    x = head.rows(nodes, x, 3)
    if not 0 <= head.post.blank < classes:
        raise AttachError(f"--post: blank:{head.post.blank} is no class of {classes}")
    stated = head.post.words & {"softmax", "probabilities"}
    kind = "softmax" if "softmax" in stated or not (stated or are_probabilities(output.value)) else "none"
    told = head.report.said if stated else head.report.ran
    told("scores", "probabilities" if kind == "none" else "logits")
    attributes = {"blank": head.post.blank, "activation": kind}
    if head.post.kind == "ctc":
        if head.post.beam:
            head.report.said("beam", f"{head.post.beam} texts", "the score is the probability of the whole text")
        else:
            head.report.default("beam", "none", "the best class of each step; the word beam:10 sums over alignments")
    if head.post.beam:
        outputs = ["labels", count, f"{nodes.prefix}log_probability"]
        nodes.add_op("CTCBeamSearch", [x], outputs, "text", beam_width=head.post.beam, **attributes)
        nodes.add("Exp", [outputs[2]], "probability", to="score")
    else:
        nodes.add_op("CTCGreedyDecode", [x], ["labels", count, "score"], "text", **attributes)
    return classes


def _ctc(nodes: Nodes, head: Head) -> tuple[Answers, int]:
    count = f"{nodes.prefix}count"
    classes = text(nodes, head, count)
    none = nodes.constant("no_text", -1, np.int32)
    nodes.add("Where", [_enough(nodes, head, "score", [-1]), count, none], "used", to="count")
    answers = [
        Answer("labels", "TYPE_INT32", (-1,), labels=head.labels is not None),
        Answer("count", "TYPE_INT32", (1,), scalar=True),
        Answer("score", "TYPE_FP32", (1,), scalar=True),
    ]
    return Answers(answers, [("score", "score")], "count", "labels"), classes


def regions(nodes: Nodes, head: Head, outputs: Sequence[str], score: str) -> None:
    """Adds the quads, scores and count of a text detector, with the names of `outputs`. `score` is the name of the
    input for the least score of a region. Raises AttachError."""
    output = head.output(lambda output: output.shape[1:2] == (1,), "one output [n, 1, h, w]")
    check_floats(head, output)
    if output.shape[2:] != head.size:
        height, width = head.size
        raise AttachError(f"--post: db needs a map of the size of the picture, {height} x {width}: got {output}")
    x = nodes.float(output.name, output.dtype, "map")
    if activation(head, output, 1) == "sigmoid":
        x = nodes.add("Sigmoid", [x], "probabilities")
    post = head.post
    level = settings.add(nodes, settings.MASK, Setting(post.threshold))
    least = settings.add(nodes, score, Setting(post.score, post.least_score))
    inputs = [
        head.rows(nodes, x, 4),
        "geometry",
        settings.each_picture(nodes, level),
        settings.each_picture(nodes, least),
    ]
    attributes = {
        "unclip_ratio": post.unclip,
        "max_detections": post.most,
        "dilation": int("dilate" in post.words),
    }
    nodes.add_op("DBPostprocess", inputs, outputs, "regions", **attributes)


def _db(nodes: Nodes, head: Head) -> tuple[Answers, int]:
    regions(nodes, head, ["quads", "scores", "count"], settings.SCORE)
    outputs = [
        Answer("quads", "TYPE_FP32", (head.post.most, 4, 2)),
        Answer("scores", "TYPE_FP32", (head.post.most,)),
        Answer("count", "TYPE_INT32", (1,), scalar=True),
    ]
    return Answers(outputs, [("polygon", "quads"), ("score", "scores")], "count"), 0


#: The types in a config by those of a run.
_DATATYPES = {
    "f16": "TYPE_FP16", "f32": "TYPE_FP32", "f64": "TYPE_FP64", "i32": "TYPE_INT32", "i64": "TYPE_INT64",
    "u8": "TYPE_UINT8", "bool": "TYPE_BOOL", "str": "TYPE_STRING", "object": "TYPE_STRING",
}  # fmt: skip


def _outputs(nodes: Nodes, head: Head) -> tuple[Answers, int]:
    """Answers with the outputs of the network as they are. A size that is not the same for others is open."""
    answers = []
    for output in head.outputs:
        if output.dtype not in _DATATYPES:
            raise AttachError(f"--post: outputs can't answer with {output}, which has the type {output.dtype}")
        shapes = [output.shape, *(value.shape for value in head.others(output.name))]
        dims = tuple(sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes, strict=True))[1:]
        name = head.rows(nodes, output.name, len(output.shape))
        if name != output.name:
            name = nodes.add("Identity", [name], "as_it_is", to=f"{output.name}_row")
        answers.append(Answer(name, _DATATYPES[output.dtype], dims or (1,), scalar=not dims))
    return Answers(answers), 0


def _value(nodes: Nodes, head: Head) -> tuple[Answers, int]:
    """Answers with numbers: a record for each, with its label if there are labels."""
    output = head.output(lambda output: output.value.ndim in (1, 2), "one output [n] or [n, numbers]")
    check_floats(head, output)
    count = output.shape[1] if output.value.ndim == 2 else 1
    wide = nodes.float(output.name, output.dtype, "numbers")
    flat = head.rows(nodes, nodes.reshape(wide, [-1, count], "rows_of_numbers"), 2)
    return values(nodes, head, flat, count)


def values(nodes: Nodes, head: Head, x: str, count: int) -> tuple[Answers, int]:
    """Adds the numbers x [n, count] as records. Returns the answers and how many labels there are, 0 without any."""
    nodes.add("Identity", [x], "value", to="value")
    answers, fields = [Answer("value", "TYPE_FP32", (count,))], [("value", "value")]
    if head.labels is not None:
        numbers = nodes.constant("numbers_of_labels", [range(count)], np.int32)
        shape = nodes.add("Shape", ["value"], "value.shape")
        nodes.add("Expand", [numbers, shape], "labels", to="labels")
        answers.append(Answer("labels", "TYPE_INT32", (count,), labels=True))
        fields.insert(0, ("label", "labels"))
    return Answers(answers, fields), count if head.labels is not None else 0


_MAKERS: Mapping[str, Callable[[Nodes, Head], tuple[Answers, int]]] = {
    "classify": _classify,
    "embed": _embed,
    "segment": _segment,
    "ctc": _ctc,
    "db": _db,
    "outputs": _outputs,
    "value": _value,
}


def add(nodes: Nodes, head: Head) -> tuple[Answers, int]:
    """Adds the nodes behind a head that gives no boxes. Returns the answers and the number of classes, 0 without any.
    Raises AttachError."""
    return _MAKERS[head.post.kind](nodes, head)
