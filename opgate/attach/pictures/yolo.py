"""The heads of YOLO: boxes of anchors that lie on grids."""

from __future__ import annotations

import numpy as np

from opgate.attach.model.head import Beside, Boxes, Head, class_count, gathered, grid, in_pixels, mapped_points
from opgate.attach.model.labels import listed
from opgate.attach.model.nodes import Nodes
from opgate.attach.model.outputs import Output
from opgate.attach.model.post import Answer
from opgate.attach.model.report import AttachError
from opgate.attach.pictures import masks
from opgate.attach.pictures.heads import STRIDES, STRIDES_P6, cells


def yolov8(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
    rows = "rows" in head.post.words
    axis = 2 if rows else 1
    output = head.output(lambda output: len(output.shape) == 3, "one output of rank 3")
    task = head.network.metadata.get("task", "")
    if task == "obb":
        raise AttachError("--post: the metadata 'task' is obb: say obb for rotated boxes")
    points = _points_of(head)
    prototypes = None if points else _prototypes(head, output, output.shape[axis] - 4)
    extra = points[0] * points[1] if points else prototypes.shape[1] if prototypes else 0
    if task == "pose" and not extra and not head.post.classes:
        raise AttachError("--post: the metadata 'task' is pose and has no kpt_shape: say classes:1 behind yolov8")
    classes = class_count(head, output.shape[axis], 4, extra)
    boxes = Boxes(with_boxes_in_pixels(nodes, head, output, axis), classes, rows)
    if points is None:
        return boxes, _beside(nodes, head, boxes, prototypes)
    return boxes, lambda indices: [_points(nodes, head, boxes, indices, points)]


def with_boxes_in_pixels(nodes: Nodes, head: Head, output: Output, axis: int) -> str:
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


def _prototypes(head: Head, output: Output, channels: int) -> Output | None:
    """Returns the prototypes of masks, None without any. They leave some of the channels behind the box to the classes:
    as many as there are labels, if those are known."""
    known = head.post.classes or len(head.labels or ())
    return masks.prototypes_of(head, output, lambda count: 0 < count < channels and known != channels)


def _beside(nodes: Nodes, head: Head, boxes: Boxes, prototypes: Output | None) -> Beside | None:
    """Returns what adds the masks of boxes, None without prototypes. Their numbers stand behind the classes."""
    if prototypes is None:
        return None
    first = 4 + boxes.objectness + boxes.classes
    return lambda indices: masks.of_prototypes(
        nodes, head, _numbers(nodes, boxes, first, prototypes.shape[1], "numbers"), prototypes, indices
    )


def _numbers(nodes: Nodes, boxes: Boxes, first: int, count: int, name: str) -> str:
    """Adds `count` channels from `first` on, f32 [n, a, count]."""
    x = nodes.slice(boxes.name, 2 if boxes.rows else 1, first, first + count, name)
    return x if boxes.rows else nodes.add("Transpose", [x], f"{name}.rows", perm=[0, 2, 1])


def yolov5(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
    output = head.output(lambda output: len(output.shape) == 3, "one output of rank 3")
    prototypes = _prototypes(head, output, output.shape[2] - 5)
    classes = class_count(head, output.shape[2], 5, prototypes.shape[1] if prototypes else 0)
    boxes = Boxes(with_boxes_in_pixels(nodes, head, output, 2), classes, True, objectness=True)
    return boxes, _beside(nodes, head, boxes, prototypes)


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
    x = _numbers(nodes, boxes, 4 + boxes.classes, count * numbers, "points.all")
    kept = gathered(nodes, x, indices, "points")
    return mapped_points(nodes, kept, indices, head.post.most, count, numbers)
