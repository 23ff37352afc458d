"""The nodes that turn the head of a detector into boxes of the source picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto, numpy_helper

from opgate.attach.facts import Network, Output, listed
from opgate.attach.heads import STRIDES, STRIDES_P6, are_probabilities, cells
from opgate.attach.nodes import Nodes
from opgate.attach.post import Answer, Answers, Post, detections
from opgate.attach.report import AttachError, Report, shape_text

#: The input with which a request asks for other boxes than those above the usual score.
THRESHOLD = "score_threshold"


@dataclass(frozen=True, slots=True)
class Head:
    """What a detector's nodes are made from. `outputs` are those of one random picture of `size`, height and width;
    `labels` those that are known so far. `fixed` says that the network takes one picture at a time."""

    network: Network
    outputs: Sequence[Output]
    size: tuple[int, int]
    post: Post
    labels: Sequence[str] | None
    report: Report
    fixed: bool = False

    def rows(self, nodes: Nodes, x: str, rank: int) -> str:
        """Returns a tensor whose first axis is that of `ends`. One of a network for one picture has a 1 there, from
        which the gateway would conclude that the model has no batch."""
        if not self.fixed:
            return x
        count = nodes.add("Shape", ["ends"], "rows")
        ones = nodes.ints("rows.others", [1] * (rank - 1))
        return nodes.add("Expand", [x, nodes.add("Concat", [count, ones], "rows.shape", axis=0)], "by_rows")

    def output(self, fits: Callable[[Output], bool], what: str) -> Output:
        """Returns the one output that fits. Raises AttachError."""
        found = [output for output in self.outputs if fits(output)]
        if len(found) != 1:
            shown = ", ".join(map(str, self.outputs))
            raise AttachError(f"--post: {self.post.kind} needs {what}, and the outputs are {shown}")
        return found[0]

    @property
    def pixels(self) -> list[float]:
        """The factors from 0..1 to pixels of the input, for x y x y."""
        height, width = self.size
        return [width, height, width, height]


@dataclass(frozen=True, slots=True)
class Boxes:
    """A tensor [n, a, 4 + ...] or [n, 4 + ..., a] in f32 for DetectionPostprocess: boxes in pixels of the input, the
    objectness if there is one, `classes` probabilities, and other channels."""

    name: str
    classes: int
    rows: bool
    objectness: bool = False
    corners: bool = False


#: What a decoder gives: the boxes, and from their tensor and the places of the kept ones the answers beside them.
Beside = Callable[[str], list[tuple[str, Answer]]]


def _classes(head: Head, channels: int, first: int, extra: int = 0) -> int:
    """Returns the number of classes among `channels`, of which `first` are no classes and `extra` follow them."""
    count = head.post.classes or channels - first - extra
    if not 0 < count <= channels - first:
        raise AttachError(
            f"--post: {head.post.kind} has {first} channels before its classes"
            f"{f' and {extra} behind' if extra else ''}, and the output has {channels} in all"
        )
    return count


def _yolov8(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
    rows = "rows" in head.post.words
    axis = 2 if rows else 1
    output = head.output(lambda output: len(output.shape) == 3, "one output of rank 3")
    masks = [other for other in head.outputs if len(other.shape) == 4]
    task = head.network.metadata.get("task", "")
    if task == "obb":
        raise AttachError("--post: the metadata 'task' is obb: rotated boxes can't be attached")
    points = listed(head.network.metadata.get("kpt_shape", "")) or []
    extra = masks[0].shape[1] if masks else int(points[0]) * int(points[1]) if len(points) == 2 else 0
    if task == "pose" and not extra and not head.post.classes:
        raise AttachError("--post: the metadata 'task' is pose and has no kpt_shape: say classes:1 behind yolov8")
    classes = _classes(head, output.shape[axis], 4, extra)
    x = nodes.float(output.name, output.dtype, "head")
    if masks:
        head.report.found("masks", shape_text(masks[0].shape), "not served: the boxes are")
    if not _in_pixels(head, output.value, axis):
        factors = np.ones(output.shape[axis], np.float32)
        factors[:4] = head.pixels
        shape = [1, 1, -1] if rows else [1, -1, 1]
        x = nodes.add("Mul", [x, nodes.constant("pixels", factors.reshape(shape))], "in_pixels")
    boxes = Boxes(x, classes, rows)
    if len(points) != 2:
        return boxes, None
    return boxes, lambda indices: [_points(nodes, head, boxes, indices, (int(points[0]), int(points[1])))]


def _in_pixels(head: Head, value: np.ndarray, axis: int) -> bool:
    """Returns whether boxes are in pixels, as a run shows, and reports it."""
    greatest = float(np.take(value, range(4), axis).max())
    pixels = greatest > 2
    head.report.found("boxes", "in pixels of the input" if pixels else "within 0..1", f"up to {greatest:.4g} in a run")
    return pixels


def _points(nodes: Nodes, head: Head, boxes: Boxes, indices: str, shape: tuple[int, int]) -> tuple[str, Answer]:
    """Adds the keypoints of the kept boxes, x y or x y score in pixels of the source picture."""
    count, numbers = shape
    first = 4 + boxes.classes
    x = nodes.slice(boxes.name, 2 if boxes.rows else 1, first, first + count * numbers, "points.all")
    x = x if boxes.rows else nodes.add("Transpose", [x], "points.rows", perm=[0, 2, 1])
    kept = gathered(nodes, x, indices, "points")
    return mapped_points(nodes, kept, indices, head.post.most, count, numbers)


def mapped_points(nodes: Nodes, kept: str, indices: str, most: int, count: int, numbers: int) -> tuple[str, Answer]:
    """Adds points [n, most, count * numbers] in pixels of the input as points of the source picture."""
    points = nodes.reshape(kept, [0, most, count, numbers], "points.each")
    geometry = nodes.reshape("geometry", [0, 1, 1, 6], "points.geometry")
    placed = nodes.add(
        "Sub",
        [nodes.slice(points, 3, 0, 2, "points.xy"), nodes.slice(geometry, 3, 2, 4, "points.origin")],
        "points.placed",
    )
    scaled = nodes.add("Mul", [placed, nodes.slice(geometry, 3, 0, 2, "points.scale")], "points.scaled")
    used = nodes.add("Less", [indices, nodes.constant("zero", 0, np.int32)], "points.unused")
    unused = nodes.reshape(used, [0, 0, 1, 1], "points.mask")
    zero = nodes.constant("nothing", 0.0)
    scaled = nodes.add("Where", [unused, zero, scaled], "points.source", to="keypoints" if numbers == 2 else "")
    if numbers > 2:
        rest = nodes.slice(points, 3, 2, numbers, "points.scores")
        rest = nodes.add("Where", [unused, zero, rest], "points.scores_used")
        nodes.add("Concat", [scaled, rest], "points.joined", to="keypoints", axis=3)
    return "keypoints", Answer("keypoints", "TYPE_FP32", (most, count, numbers))


def gathered(nodes: Nodes, x: str, indices: str, name: str) -> str:
    """Adds the rows of x [n, a, k] that `indices` i32 [n, most] name, [n, most, k]. An index of -1 gives row 0."""
    if nodes.opset < 12:
        raise AttachError(f"--post: this head needs opset 12, and the file has {nodes.opset}")
    held = nodes.add("Max", [indices, nodes.constant("zero", 0, np.int32)], f"{name}.held")
    wide = nodes.cast(held, 7, f"{name}.wide")
    places = nodes.reshape(wide, [0, 0, 1], f"{name}.places")
    return nodes.add("GatherND", [x, places], f"{name}.kept", batch_dims=1)


def _yolov5(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
    output = head.output(lambda output: len(output.shape) == 3, "one output of rank 3")
    classes = _classes(head, output.shape[2], 5)
    x = nodes.float(output.name, output.dtype, "head")
    if not _in_pixels(head, output.value, 2):
        factors = np.ones((1, 1, output.shape[2]), np.float32)
        factors[..., :4] = head.pixels
        x = nodes.add("Mul", [x, nodes.constant("pixels", factors)], "in_pixels")
    return Boxes(x, classes, True, objectness=True), None


def _yolox(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
    """Adds the boxes of offsets: (x + column) stride, (y + row) stride, exp(w) stride, exp(h) stride."""
    output = head.output(lambda output: len(output.shape) == 3, "one output of rank 3")
    _, anchors, channels = output.shape
    strides = next((s for s in (STRIDES, STRIDES_P6) if cells(*head.size, s) == anchors), None)
    if strides is None:
        raise AttachError(f"--post: yolox: {anchors} anchors are not the cells of the strides 8, 16, 32 of {head.size}")
    places, steps = grid(head.size, strides)
    x = nodes.float(output.name, output.dtype, "head")
    step = nodes.constant("strides", steps[None])
    moved = nodes.add("Add", [nodes.slice(x, 2, 0, 2, "offsets"), nodes.constant("grid", places[None])], "in_cells")
    centres = nodes.add("Mul", [moved, step], "centres")
    sizes = nodes.add("Mul", [nodes.add("Exp", [nodes.slice(x, 2, 2, 4, "logarithms")], "in_strides"), step], "sizes")
    rest = nodes.slice(x, 2, 4, channels, "scores")
    numbers = output.value[..., 4:].astype(np.float64)
    if numbers.min() < 0 or numbers.max() > 1:
        head.report.found("scores", "logits", "beyond 0..1 in a run: a sigmoid is added")
        rest = nodes.add("Sigmoid", [rest], "probabilities")
    joined = nodes.add("Concat", [centres, sizes, rest], "decoded", axis=2)
    return Boxes(joined, _classes(head, channels, 5), True, objectness=True), None


def grid(size: tuple[int, int], strides: Sequence[int], repeat: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Returns column and row of each cell, f32 [a, 2], and its stride, f32 [a, 1]. Each cell stands `repeat` times."""
    places, steps = [], []
    for stride in strides:
        rows, columns = np.mgrid[: size[0] // stride, : size[1] // stride]
        cell = np.stack([columns.ravel(), rows.ravel()], 1).repeat(repeat, 0)
        places.append(cell)
        steps.append(np.full((len(cell), 1), stride))
    return np.concatenate(places).astype(np.float32), np.concatenate(steps).astype(np.float32)


def _end2end(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
    output = head.output(lambda output: len(output.shape) == 3 and output.shape[2] == 6, "one output [n, q, 6]")
    x = nodes.float(output.name, output.dtype, "head")
    if not _in_pixels(head, output.value, 2):
        x = nodes.add("Mul", [x, nodes.constant("pixels", [[[*head.pixels, 1, 1]]])], "in_pixels")
    return Boxes(x, 1, True, corners=True), None


def _boxes(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
    """Boxes, labels and scores in three outputs, of one picture or of several."""
    boxes = head.output(lambda output: output.shape[-1:] == (4,) and output.value.dtype.kind == "f", "boxes [..., 4]")
    labels = head.output(lambda output: output.value.dtype.kind in "iu", "integers for the labels")
    scores = head.output(lambda output: output not in (boxes, labels), "one output for the scores")
    wide = nodes.reshape(nodes.float(boxes.name, boxes.dtype, "boxes"), _batched(boxes, [-1, 4]), "boxes.rows")
    if boxes.value.size and not _in_pixels(head, boxes.value, len(boxes.shape) - 1):
        wide = nodes.add("Mul", [wide, nodes.constant("pixels", [[head.pixels]])], "in_pixels")
    columns = [
        nodes.reshape(nodes.float(each.name, each.dtype, name), _batched(boxes, [-1, 1]), f"{name}.column")
        for name, each in (("scores", scores), ("labels", labels))
    ]
    return Boxes(nodes.add("Concat", [wide, *columns], "joined", axis=2), 1, True, corners=True), None


def _batched(boxes: Output, shape: Sequence[int]) -> list[int]:
    return [1, *shape] if len(boxes.shape) == 2 else [0, *shape]


def _queries(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
    """DETR's and SSD's forms: boxes [n, a, 4] and scores [n, a, c] in two outputs, or in one [n, a, 4 + c]."""
    if len(head.outputs) == 1:
        only = head.outputs[0]
        whole = nodes.float(only.name, only.dtype, "head")
        box, score = nodes.slice(whole, 2, 0, 4, "boxes"), nodes.slice(whole, 2, 4, only.shape[2], "scores")
        box_values, score_values = only.value[..., :4], only.value[..., 4:]
    else:
        boxes, scores = _pair(head)
        box = nodes.float(boxes.name, boxes.dtype, "boxes")
        score = nodes.float(scores.name, scores.dtype, "scores")
        box_values, score_values = boxes.value, scores.value
    corners = _corners(head, box_values)
    if not _in_pixels(head, box_values, 2):
        box = nodes.add("Mul", [box, nodes.constant("pixels", [[head.pixels]])], "in_pixels")
    score, classes = _probabilities(nodes, head, score, score_values)
    joined = nodes.add("Concat", [box, score], "joined", axis=2)
    return Boxes(joined, classes, True, corners=corners), None


def _pair(head: Head) -> tuple[Output, Output]:
    """Returns the outputs for boxes and scores."""
    boxes = [output for output in head.outputs if output.shape[-1] == 4]
    if len(boxes) == 2:  # four classes: the name tells
        boxes = [output for output in boxes if "box" in output.name.lower()]
    if len(boxes) != 1:
        raise AttachError(f"--post: {head.post.kind}: which output has the boxes? {', '.join(map(str, head.outputs))}")
    return boxes[0], next(output for output in head.outputs if output is not boxes[0])


def _corners(head: Head, values: np.ndarray) -> bool:
    """Returns whether boxes are x1 y1 x2 y2, and not centre and size."""
    words = head.post.words & {"xyxy", "cxcywh"}
    if words:
        return "xyxy" in words
    if head.post.kind == "detr":
        head.report.default("box form", "centre and size", "as DETR and RT-DETR have it; the word xyxy says otherwise")
        return False
    corners = bool((values[..., 2:] >= values[..., :2]).all())
    if not corners and values.min() < 0:
        raise AttachError(
            "--post: the boxes of a run are neither corners nor centre and size: they are offsets to anchors, which "
            "the file doesn't have. Export the network with its decoding, or say xyxy or cxcywh"
        )
    head.report.found("box form", "corners" if corners else "centre and size", "by a run")
    return corners


def _probabilities(nodes: Nodes, head: Head, score: str, values: np.ndarray) -> tuple[str, int]:
    """Adds what turns scores into probabilities, without the background. Returns them and the number of classes."""
    words, count = set(head.post.words), values.shape[2]
    known = len(head.labels) if head.labels is not None else head.post.classes
    numbers = values.astype(np.float64)
    sums = are_probabilities(values)
    within = numbers.min() >= 0 and numbers.max() <= 1
    if not words & {"sigmoid", "softmax", "probabilities"}:
        if not within and known not in (count, count - 1):
            raise AttachError(
                f"--post: the scores of {head.post.kind} are logits of {count} classes: say sigmoid (RT-DETR, "
                f"{count} labels) or softmax background-last (DETR, {count - 1} labels and none)"
            )
        words |= {"probabilities"} if within else {"sigmoid"} if known == count else {"softmax"}
        head.report.found("scores", min(words & {"probabilities", "sigmoid", "softmax"}), "by a run and the labels")
    if "sigmoid" in words:
        score = nodes.add("Sigmoid", [score], "probabilities")
    if "softmax" in words:
        score = nodes.softmax(score, 3, "probabilities")
    background = words & {"background-first", "background-last"}
    if not background and (("softmax" in words or sums) and (known == count - 1 or known == 0)):
        background = {"background-first" if head.post.kind == "ssd" else "background-last"}
        head.report.default("background", min(background), f"as the makers of {head.post.kind} have it")
    if not background:
        return score, count
    first = int("background-first" in background)
    return nodes.slice(score, 2, first, count - 1 + first, "foreground"), count - 1


_DECODERS: Mapping[str, Callable[[Nodes, Head], tuple[Boxes, Beside | None]]] = {
    "yolov8": _yolov8,
    "yolov5": _yolov5,
    "yolox": _yolox,
    "end2end": _end2end,
    "boxes": _boxes,
    "detr": _queries,
    "ssd": _queries,
}


def add(nodes: Nodes, head: Head) -> tuple[Answers, int]:
    """Adds the nodes from a head to `boxes`, `scores`, `labels` and `count`. Returns the answers and the number of
    classes, 0 where the network itself gives numbers of classes. Raises AttachError."""
    if head.post.kind not in _DECODERS:
        raise AttachError(f"--post: {head.post.kind} can't be attached yet")
    boxes, beside = _DECODERS[head.post.kind](nodes, head)
    post, listed_classes = head.post, head.post.kind in ("end2end", "boxes")
    if boxes.classes > 1 and "agnostic" not in post.words:
        boxes = _best_class(nodes, boxes)
    attributes = {
        "score_threshold": min(post.score, post.lowest),
        "iou_threshold": post.iou,
        "max_detections": post.most,
        "box_format": "xyxy" if boxes.corners else "cxcywh",
        "class_agnostic": int("agnostic" in post.words),
        "classes": boxes.classes,
        "layout": "anchors_first" if boxes.rows else "channels_first",
        "objectness": int(boxes.objectness),
    }
    boxes = replace(boxes, name=head.rows(nodes, boxes.name, 3))
    labels = f"{nodes.prefix}one_class" if listed_classes else "labels"
    indices = f"{nodes.prefix}indices"
    counted = f"{nodes.prefix}count"
    outputs = ["boxes", "scores", labels, counted, *([indices] if beside or listed_classes else [])]
    nodes.add_op("DetectionPostprocess", [boxes.name, "geometry"], outputs, "detections", **attributes)
    if listed_classes:
        _given_labels(nodes, boxes.name, indices)
    _threshold(nodes, post.score)
    answers = detections(post.most, head.labels is not None, beside(indices) if beside else [])
    return answers, 0 if listed_classes else boxes.classes


def _threshold(nodes: Nodes, default: float) -> None:
    """Adds `count`: the number of boxes, best first, whose score is above the input `score_threshold`."""
    nodes.defaults[THRESHOLD] = numpy_helper.from_array(np.array([[default]], np.float32), THRESHOLD)
    above = nodes.add("Greater", ["scores", THRESHOLD], "above")
    ones = nodes.cast(above, TensorProto.INT32, "above.ones")
    nodes.reduce("ReduceSum", ones, 1, "above.count", keepdims=False, to="count")


def _best_class(nodes: Nodes, boxes: Boxes) -> Boxes:
    """Leaves each anchor the probability of its best class, as the tools of the networks' makers do."""
    axis, first = (2 if boxes.rows else 1), 4 + boxes.objectness
    scores = nodes.slice(boxes.name, axis, first, first + boxes.classes, "each_class")
    numbers = np.arange(boxes.classes).reshape([1, 1, -1] if boxes.rows else [1, -1, 1])
    best = nodes.add("ArgMax", [scores], "best", axis=axis, keepdims=1)
    best = nodes.add("Equal", [best, nodes.constant("numbers", numbers, np.int64)], "is_best")
    kept = nodes.add("Where", [best, scores, nodes.constant("nothing", 0.0)], "one_class_each")
    before = nodes.slice(boxes.name, axis, 0, first, "before_classes")
    after = nodes.slice(boxes.name, axis, first + boxes.classes, 2**31 - 1, "after_classes")
    name = nodes.add("Concat", [before, kept, after], "best_head", axis=axis)
    return Boxes(name, boxes.classes, boxes.rows, boxes.objectness, boxes.corners)


def _given_labels(nodes: Nodes, head: str, indices: str) -> None:
    """Adds `labels` from the last column of a head [n, q, 6], -1 where there is no detection."""
    kept = gathered(nodes, nodes.slice(head, 2, 5, 6, "classes"), indices, "class")
    whole = nodes.cast(nodes.reshape(kept, [0, 0], "class.flat"), 6, "class.whole")
    unused = nodes.add("Less", [indices, nodes.constant("zero", 0, np.int32)], "class.unused")
    nodes.add("Where", [unused, nodes.constant("none", -1, np.int32), whole], "class.labels", to="labels")
