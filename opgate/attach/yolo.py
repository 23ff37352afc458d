"""The heads of YOLO: boxes of anchors that lie on grids."""

from __future__ import annotations

import numpy as np

from opgate.attach.facts import Output, listed
from opgate.attach.head import Beside, Boxes, Head, class_count, gathered, grid, in_pixels, mapped_points
from opgate.attach.heads import STRIDES, STRIDES_P6, cells
from opgate.attach.nodes import Nodes
from opgate.attach.post import Answer
from opgate.attach.report import AttachError, shape_text


def yolov8(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
    rows = "rows" in head.post.words
    axis = 2 if rows else 1
    output = head.output(lambda output: len(output.shape) == 3, "one output of rank 3")
    task = head.network.metadata.get("task", "")
    if task == "obb":
        raise AttachError("--post: the metadata 'task' is obb: rotated boxes can't be attached")
    points = _points_of(head)
    extra = points[0] * points[1] if points else _masks(head, output, output.shape[axis] - 4)
    if task == "pose" and not extra and not head.post.classes:
        raise AttachError("--post: the metadata 'task' is pose and has no kpt_shape: say classes:1 behind yolov8")
    classes = class_count(head, output.shape[axis], 4, extra)
    boxes = Boxes(_in_pixels(nodes, head, output, axis), classes, rows)
    if points is None:
        return boxes, None
    return boxes, lambda indices: [_points(nodes, head, boxes, indices, points)]


def _in_pixels(nodes: Nodes, head: Head, output: Output, axis: int) -> str:
    """Returns the output in f32, with the boxes, the first four channels along an axis, in pixels of the input."""
    x = nodes.float(output.name, output.dtype, "head")
    if in_pixels(head, output.value, axis):
        return x
    factors = np.ones(output.shape[axis], np.float32)
    factors[:4] = head.pixels
    shape = [1, 1, -1] if axis == 2 else [1, -1, 1]
    return nodes.add("Mul", [x, nodes.constant("pixels", factors.reshape(shape))], "in_pixels")


def _points_of(head: Head) -> tuple[int, int] | None:
    """Returns the number of keypoints and of the numbers of each, None if the metadata 'kpt_shape' doesn't say them."""
    text = head.network.metadata.get("kpt_shape", "")
    sizes = listed(text) or []
    if len(sizes) == 2 and sizes[0].isdecimal() and int(sizes[0]) and sizes[1] in ("2", "3"):
        return int(sizes[0]), int(sizes[1])
    if text:
        why = f"the metadata 'kpt_shape' is {text[:80]}: expected a number of points and 2 or 3, such as [17, 3]"
        head.report.default("keypoints", "none", why)
    return None


def _masks(head: Head, output: Output, channels: int) -> int:
    """Returns how many of the channels behind the box belong to masks, and reports the outputs that are not served.

    An output has the prototypes of masks if it has a quarter of the picture's size, and leaves channels to the classes:
    as many as there are labels, if those are known.
    """
    others = [other for other in head.outputs if other is not output]
    quarter = (head.size[0] // 4, head.size[1] // 4)
    known = head.post.classes or len(head.labels or ())
    masks = [
        other
        for other in others
        if len(other.shape) == 4 and other.shape[2:] == quarter and 0 < other.shape[1] < channels and known != channels
    ]
    if masks:
        head.report.found("masks", shape_text(masks[0].shape), "not served: the boxes are")
    if names := [other.name for other in others if other not in masks[:1]]:
        head.report.found("other outputs", ", ".join(names), "not served")
    return masks[0].shape[1] if masks else 0


def yolov5(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
    output = head.output(lambda output: len(output.shape) == 3, "one output of rank 3")
    classes = class_count(head, output.shape[2], 5, _masks(head, output, output.shape[2] - 5))
    return Boxes(_in_pixels(nodes, head, output, 2), classes, True, objectness=True), None


def yolox(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
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
        head.report.ran("scores", "logits", "beyond 0..1: a sigmoid is added")
        rest = nodes.add("Sigmoid", [rest], "probabilities")
    joined = nodes.add("Concat", [centres, sizes, rest], "decoded", axis=2)
    return Boxes(joined, class_count(head, channels, 5), True, objectness=True), None


def _points(nodes: Nodes, head: Head, boxes: Boxes, indices: str, shape: tuple[int, int]) -> tuple[str, Answer]:
    """Adds the keypoints of the kept boxes, x y or x y score in pixels of the source picture."""
    count, numbers = shape
    first = 4 + boxes.classes
    x = nodes.slice(boxes.name, 2 if boxes.rows else 1, first, first + count * numbers, "points.all")
    x = x if boxes.rows else nodes.add("Transpose", [x], "points.rows", perm=[0, 2, 1])
    kept = gathered(nodes, x, indices, "points")
    return mapped_points(nodes, kept, indices, head.post.most, count, numbers)
