"""The head of YOLO with rotated boxes."""

from __future__ import annotations

import numpy as np

from opgate.attach.model.head import Head, class_count, in_source, none_there
from opgate.attach.model.nodes import Nodes
from opgate.attach.model.post import Answer, Answers
from opgate.attach.pictures.detectors import add_count, of_best_class
from opgate.attach.pictures.yolo import with_boxes_in_pixels

#: How far the corners lie from the centre along the sides, in halves of them.
_SIGNS = (("right.signs", (-1.0, 1.0, 1.0, -1.0)), ("down.signs", (-1.0, -1.0, 1.0, 1.0)))


def add(nodes: Nodes, head: Head) -> tuple[Answers, int]:
    """Adds `quads`, `scores`, `labels` and `count` of [n, 4 + classes + 1, a]: centre and size, probabilities, and an
    angle in radians, by which the box is turned from x to y. Returns the answers and the number of classes.

    The corners begin with the one that is at the top left of the box before it is turned, and follow it clockwise.
    Raises AttachError.
    """
    post = head.post
    output = head.output(lambda output: len(output.shape) == 3, "one output of rank 3")
    classes = class_count(head, output.shape[1], 4, 1)
    x = with_boxes_in_pixels(nodes, head, output, 1)
    box, angle = nodes.slice(x, 1, 0, 4, "box"), nodes.slice(x, 1, 4 + classes, 5 + classes, "angle")
    turned = nodes.add("Concat", [box, angle], "turned", axis=1)
    rows = head.rows(nodes, nodes.add("Transpose", [turned], "turned.rows", perm=[0, 2, 1]), 3)
    scores = nodes.slice(x, 1, 4, 4 + classes, "probabilities")
    if classes > 1 and "agnostic" not in post.words:
        scores = of_best_class(nodes, scores, classes, 1)
    attributes = {
        "score_threshold": post.least_score,
        "iou_threshold": post.iou,
        "max_detections": post.most,
        "class_agnostic": int("agnostic" in post.words),
    }
    found = [f"{nodes.prefix}{name}" for name in ("detections", "count")]
    outputs = [found[0], "scores", "labels", found[1]]
    nodes.add_op("NMSRotated", [rows, head.rows(nodes, scores, 3)], outputs, "detections", **attributes)
    add_count(nodes, post)
    _corners(nodes, found[0], post.most)
    answers = [
        Answer("quads", "TYPE_FP32", (post.most, 4, 2)),
        Answer("scores", "TYPE_FP32", (post.most,)),
        Answer("labels", "TYPE_INT32", (post.most,), labels=head.labels is not None),
        Answer("count", "TYPE_INT32", (1,), scalar=True),
    ]
    return Answers(answers, [("polygon", "quads"), ("label", "labels"), ("score", "scores")], "count"), classes


def _corners(nodes: Nodes, found: str, most: int) -> None:
    """Adds `quads`, the corners of boxes [n, most, 5] in pixels of the source picture, 0 where there is none."""
    angle = nodes.slice(found, 2, 4, 5, "corners.angle")
    cosine, sine = nodes.add("Cos", [angle], "corners.cosine"), nodes.add("Sin", [angle], "corners.sine")
    back = nodes.add("Neg", [sine], "corners.back")
    half = nodes.add("Mul", [nodes.slice(found, 2, 2, 4, "corners.size"), nodes.constant("half", 0.5)], "corners.half")
    along = nodes.add("Concat", [cosine, sine], "corners.along", axis=2)
    across = nodes.add("Concat", [back, cosine], "corners.across", axis=2)
    ways = []
    for name, axis, way in (("right", 0, along), ("down", 1, across)):
        length = nodes.slice(half, 2, axis, axis + 1, f"corners.{name}_length")
        ways.append(nodes.reshape(nodes.add("Mul", [way, length], f"corners.{name}"), [0, most, 1, 2], name))
    signs = [nodes.constant(name, np.array(each).reshape(1, 1, 4, 1)) for name, each in _SIGNS]
    moved = [nodes.add("Mul", pair, "corners.moved") for pair in zip(ways, signs, strict=True)]
    centre = nodes.reshape(nodes.slice(found, 2, 0, 2, "corners.centre"), [0, most, 1, 2], "corners.centres")
    placed = nodes.add("Add", [nodes.add("Add", moved, "corners.offset"), centre], "corners.placed")
    in_source(nodes, placed, none_there(nodes, "labels"), to="quads")
