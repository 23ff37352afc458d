"""The heads of YOLO: boxes of anchors that lie on grids."""

from __future__ import annotations

import numpy as np

from opgate.attach.facts import listed
from opgate.attach.head import Beside, Boxes, Head, class_count, gathered, grid, in_pixels, mapped_points
from opgate.attach.heads import STRIDES, STRIDES_P6, cells
from opgate.attach.nodes import Nodes
from opgate.attach.post import Answer
from opgate.attach.report import AttachError, shape_text


def yolov8(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
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
    classes = class_count(head, output.shape[axis], 4, extra)
    x = nodes.float(output.name, output.dtype, "head")
    if masks:
        head.report.found("masks", shape_text(masks[0].shape), "not served: the boxes are")
    if not in_pixels(head, output.value, axis):
        factors = np.ones(output.shape[axis], np.float32)
        factors[:4] = head.pixels
        shape = [1, 1, -1] if rows else [1, -1, 1]
        x = nodes.add("Mul", [x, nodes.constant("pixels", factors.reshape(shape))], "in_pixels")
    boxes = Boxes(x, classes, rows)
    if len(points) != 2:
        return boxes, None
    return boxes, lambda indices: [_points(nodes, head, boxes, indices, (int(points[0]), int(points[1])))]


def yolov5(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
    output = head.output(lambda output: len(output.shape) == 3, "one output of rank 3")
    masks = [other for other in head.outputs if len(other.shape) == 4 and other.shape[2] * 4 == head.size[0]]
    classes = class_count(head, output.shape[2], 5, masks[0].shape[1] if masks else 0)
    if len(head.outputs) > 1:
        others = [other.name for other in head.outputs if other is not output]
        head.report.found("other outputs", ", ".join(others), "not served")
    x = nodes.float(output.name, output.dtype, "head")
    if not in_pixels(head, output.value, 2):
        factors = np.ones((1, 1, output.shape[2]), np.float32)
        factors[..., :4] = head.pixels
        x = nodes.add("Mul", [x, nodes.constant("pixels", factors)], "in_pixels")
    return Boxes(x, classes, True, objectness=True), None


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
