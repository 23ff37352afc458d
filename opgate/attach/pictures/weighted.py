"""The nodes that give the means of boxes that overlap, weighted by their scores, as BlazeFace is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opgate.attach.model.head import Boxes, Head, in_source, mapped_points, none_there
from opgate.attach.model.nodes import Nodes
from opgate.attach.model.post import Answer


def add(
    nodes: Nodes,
    head: Head,
    boxes: Boxes,
    overlaps: Sequence[str],
    outputs: Sequence[str],
    attributes: Mapping[str, object],
) -> list[tuple[str, Answer]]:
    """Adds `boxes`, and scores, labels and count with the names in `outputs`. Points of boxes are means, too.

    `boxes` are rows. `overlaps` is the IoU threshold of each picture, if it has one, and `attributes` are those of
    WeightedNMS. Returns the answers beside the boxes.
    """
    most, rows = head.post.most, nodes.slice(boxes.name, 2, 0, 4, "box")
    if not boxes.corners:
        rows = _corners(nodes, rows)
    scores = nodes.slice(boxes.name, 2, 4, 4 + boxes.classes, "each_class")
    if boxes.points:
        points = nodes.slice(boxes.name, 2, 4 + boxes.classes, 4 + boxes.classes + 2 * boxes.points, "points")
        rows = nodes.add("Concat", [rows, points], "with_points", axis=2)
    inputs = [rows, nodes.add("Transpose", [scores], "by_class", perm=[0, 2, 1]), *overlaps]
    means = f"{nodes.prefix}means"
    nodes.add_op("WeightedNMS", inputs, [means, *outputs], "detections", **attributes)
    unused = none_there(nodes, outputs[1])
    corners = nodes.reshape(nodes.slice(means, 2, 0, 4, "means.box"), [0, most, 2, 2], "means.corners")
    placed = nodes.add("Max", [in_source(nodes, corners, unused), nodes.constant("nothing", 0.0)], "means.from_0")
    sides = nodes.reshape(nodes.slice("geometry", 1, 4, 6, "source"), [0, 1, 1, 2], "source.sides")
    nodes.reshape(nodes.add("Min", [placed, sides], "means.inside"), [0, most, 4], "means.flat", to="boxes")
    if not boxes.points:
        return []
    points = nodes.slice(means, 2, 4, 4 + 2 * boxes.points, "means.points")
    return [mapped_points(nodes, points, outputs[1], most, boxes.points, 2)]


def _corners(nodes: Nodes, boxes: str) -> str:
    """Adds x1 y1 x2 y2 of boxes with a centre and a size [n, a, 4]."""
    centre = nodes.slice(boxes, 2, 0, 2, "centre")
    half = nodes.add("Mul", [nodes.slice(boxes, 2, 2, 4, "size"), nodes.constant("half", 0.5)], "half_size")
    sides = [nodes.add(op, [centre, half], name) for op, name in (("Sub", "first"), ("Add", "last"))]
    return nodes.add("Concat", sides, "corners", axis=2)
