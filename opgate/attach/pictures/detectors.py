"""The nodes that turn the head of a detector into boxes of the source picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto

from opgate.attach.model import settings
from opgate.attach.model.head import Beside, Boxes, Head, gathered
from opgate.attach.model.nodes import Nodes, Setting
from opgate.attach.model.post import ALL_CLASSES, Answers, Post, detections
from opgate.attach.model.report import AttachError
from opgate.attach.pictures import distances, faces, queries, weighted, yolo

_DECODERS: Mapping[str, Callable[[Nodes, Head], tuple[Boxes, Beside | None]]] = {
    "yolov8": yolo.yolov8,
    "yolov5": yolo.yolov5,
    "yolox": yolo.yolox,
    "end2end": queries.end2end,
    "boxes": queries.boxes_in_three,
    "detr": queries.queries,
    "ssd": queries.queries,
    "picodet": distances.picodet,
    "nanodet": distances.nanodet,
    "blazeface": faces.blazeface,
    "scrfd": faces.scrfd,
}


def add(nodes: Nodes, head: Head) -> tuple[Answers, int]:
    """Adds the nodes from a head to `boxes`, `scores`, `labels` and `count`. Returns the answers and the number of
    classes, 0 where the network itself gives numbers of classes. Raises AttachError."""
    if head.post.kind not in _DECODERS:
        raise AttachError(f"--post: {head.post.kind} can't be attached yet")
    boxes, beside = _DECODERS[head.post.kind](nodes, head)
    post, listed_classes = head.post, head.post.kind in ("end2end", "boxes")
    if boxes.classes > 1 and "agnostic" not in post.words and post.kind not in ALL_CLASSES:
        boxes = _best_class(nodes, boxes)
    attributes: dict[str, Any] = {
        "score_threshold": post.least_score,
        "iou_threshold": post.iou,
        "max_detections": post.most,
        "class_agnostic": int("agnostic" in post.words),
    }
    boxes = replace(boxes, name=head.rows(nodes, boxes.name, 3))
    own = [overlaps(nodes, post)] if post.iou < 1 else []
    counted = f"{nodes.prefix}count"
    if post.nms == "weighted":
        more = weighted.add(nodes, head, boxes, own, ["scores", "labels", counted], attributes)
    else:
        attributes |= {
            "box_format": "xyxy" if boxes.corners else "cxcywh",
            "classes": boxes.classes,
            "layout": "anchors_first" if boxes.rows else "channels_first",
            "objectness": int(boxes.objectness),
        }
        labels = f"{nodes.prefix}one_class" if listed_classes else "labels"
        indices = f"{nodes.prefix}indices"
        outputs = ["boxes", "scores", labels, counted, *([indices] if beside or listed_classes else [])]
        nodes.add_op("DetectionPostprocess", [boxes.name, "geometry", *own], outputs, "detections", **attributes)
        if listed_classes:
            _given_labels(nodes, boxes.name, indices)
        more = beside(indices) if beside else []
    add_count(nodes, post)
    answers = detections(post.most, head.labels is not None, more)
    return answers, 0 if listed_classes else boxes.classes


def overlaps(nodes: Nodes, post: Post) -> str:
    """Adds the IoU threshold of each picture, f32 [n]: that of the input `iou_threshold`."""
    return settings.each_picture(nodes, settings.add(nodes, settings.IOU, Setting(post.iou)))


def add_count(nodes: Nodes, post: Post) -> None:
    """Adds `count`: the number of boxes, best first, whose score is above the input `score_threshold`, at most the
    input `top_k`."""
    settings.add(nodes, settings.SCORE, Setting(post.score, post.least_score))
    ones = nodes.cast(nodes.add("Greater", ["scores", settings.SCORE], "above"), TensorProto.INT32, "above.ones")
    above = nodes.reduce("ReduceSum", ones, 1, "above.count", keepdims=False)
    settings.add(nodes, settings.TOP_K, Setting(post.most, 1, post.most, whole=True))
    settings.at_most(nodes, above, settings.TOP_K, to="count")


def _best_class(nodes: Nodes, boxes: Boxes) -> Boxes:
    """Leaves each anchor the probability of its best class, as the tools of the networks' makers do."""
    axis, first = (2 if boxes.rows else 1), 4 + boxes.objectness
    scores = nodes.slice(boxes.name, axis, first, first + boxes.classes, "each_class")
    kept = of_best_class(nodes, scores, boxes.classes, axis)
    before = nodes.slice(boxes.name, axis, 0, first, "before_classes")
    after = nodes.slice(boxes.name, axis, first + boxes.classes, 2**31 - 1, "after_classes")
    name = nodes.add("Concat", [before, kept, after], "best_head", axis=axis)
    return replace(boxes, name=name)


def of_best_class(nodes: Nodes, scores: str, classes: int, axis: int) -> str:
    """Adds scores of rank 3 that are 0 but for the best class of each anchor. The classes lie along an axis."""
    numbers = np.arange(classes).reshape([1, 1, -1] if axis == 2 else [1, -1, 1])
    best = nodes.add("ArgMax", [scores], "best", axis=axis, keepdims=1)
    best = nodes.add("Equal", [best, nodes.constant("numbers", numbers, np.int64)], "is_best")
    return nodes.add("Where", [best, scores, nodes.constant("nothing", 0.0)], "one_class_each")


def _given_labels(nodes: Nodes, head: str, indices: str) -> None:
    """Adds `labels` from the last column of a head [n, q, 6], -1 where there is no detection."""
    kept = gathered(nodes, nodes.slice(head, 2, 5, 6, "classes"), indices, "class")
    whole = nodes.cast(nodes.reshape(kept, [0, 0], "class.flat"), 6, "class.whole")
    unused = nodes.add("Less", [indices, nodes.constant("zero", 0, np.int32)], "class.unused")
    nodes.add("Where", [unused, nodes.constant("none", -1, np.int32), whole], "class.labels", to="labels")
