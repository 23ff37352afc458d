"""Heads without anchors on a grid: DETR and RT-DETR, SSD, end-to-end detectors, lists of boxes."""

from __future__ import annotations

import numpy as np

from opgate.attach.model.head import Beside, Boxes, Head, gathered, in_pixels, mapped_points
from opgate.attach.model.nodes import Nodes
from opgate.attach.model.outputs import Output, are_probabilities
from opgate.attach.model.post import Answer
from opgate.attach.model.report import AttachError
from opgate.attach.pictures import masks
from opgate.attach.pictures.heads import listed_boxes


def end2end(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
    output = head.output(lambda output: len(output.shape) == 3 and output.shape[2] >= 6, "one output [n, q, 6]")
    numbers = output.shape[2] - 6
    prototypes = masks.prototypes_of(head, output, lambda count: count == numbers) if numbers else None
    if numbers and prototypes is None:
        raise AttachError(f"--post: end2end needs one output [n, q, 6], or prototypes of masks beside it: got {output}")
    x = nodes.float(output.name, output.dtype, "head")
    if not in_pixels(head, output.value, 2, corners=True, scores=output.value[..., 4]):
        x = nodes.add("Mul", [x, nodes.constant("pixels", [[[*head.pixels, *[1] * (numbers + 2)]]])], "in_pixels")
    boxes = Boxes(x, 1, True, corners=True)
    if prototypes is None:
        return boxes, None
    return boxes, lambda indices: masks.of_prototypes(
        nodes, head, nodes.slice(x, 2, 6, 6 + numbers, "numbers"), prototypes, indices
    )


def boxes_in_three(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
    """Boxes, labels and scores in three outputs, of one picture or of several. Others may have keypoints [k, p, 2 or 3]
    and masks [k, 1, h, w] of the boxes of one picture."""
    found = listed_boxes(head.outputs)
    if found is None:
        raise AttachError(
            "--post: boxes needs boxes [..., 4], integers for their labels and a score for each, and the outputs are "
            f"{', '.join(map(str, head.outputs))}"
        )
    boxes, labels, scores = found
    alone = len(boxes.shape) == 2
    columns = [
        nodes.reshape(nodes.float(each.name, each.dtype, name), [1 if alone else 0, -1, size], f"{name}.rows")
        for name, each, size in (("boxes", boxes, 4), ("scores", scores, 1), ("labels", labels, 1))
    ]
    if not in_pixels(head, boxes.value, len(boxes.shape) - 1, corners=True, scores=scores.value):
        columns[0] = nodes.add("Mul", [columns[0], nodes.constant("pixels", [[head.pixels]])], "in_pixels")
    joined = nodes.add("Concat", columns, "joined", axis=2)
    more = [output for output in head.outputs if output not in found]
    points = next((each for each in more if alone and len(each.shape) == 3 and each.shape[2] in (2, 3)), None)
    maps = next((each for each in more if alone and each.shape[1:] == (1, *head.size)), None)
    if names := [output.name for output in more if output not in (points, maps)]:
        head.report.found("other outputs", ", ".join(names), "not served")

    def beside(indices: str) -> list[tuple[str, Answer]]:
        return [
            *([_points(nodes, head, points, indices)] if points else []),
            *(_masks(nodes, head, maps, indices) if maps else []),
        ]

    return Boxes(_and_none(nodes, joined, 6) if alone else joined, 1, True, corners=True), beside


def _and_none(nodes: Nodes, rows: str, size: int) -> str:
    """Adds a row of zeros behind [1, k, size]: where the network finds nothing, there is still a row to look at."""
    return nodes.add("Concat", [rows, nodes.constant("no_row", [[[0] * size]])], "at_least_one", axis=1)


def _points(nodes: Nodes, head: Head, output: Output, indices: str) -> tuple[str, Answer]:
    """Adds keypoints in pixels of the input [k, p, 2 or 3] as those of the kept boxes."""
    _, count, numbers = output.shape
    x = nodes.reshape(nodes.float(output.name, output.dtype, "points"), [1, -1, count * numbers], "points.rows")
    kept = gathered(nodes, _and_none(nodes, x, count * numbers), indices, "points")
    return mapped_points(nodes, kept, indices, head.post.most, count, numbers)


def _masks(nodes: Nodes, head: Head, output: Output, indices: str) -> list[tuple[str, Answer]]:
    """Adds the probabilities of masks in the size of the input [k, 1, h, w] as masks of a quarter of it, if it has
    one."""
    x, side = nodes.float(output.name, output.dtype, "maps"), 1 if any(size % 4 for size in head.size) else 4
    height, width = (size // side for size in head.size)
    means = nodes.add("AveragePool", [x], "maps.cells", kernel_shape=[side] * 2, strides=[side] * 2)
    rows = _and_none(nodes, nodes.reshape(means, [1, -1, height * width], "maps.rows"), height * width)
    return masks.add(
        nodes, head, (height, width), lambda kept: gathered(nodes, rows, kept, "masks"), indices, f"of {output}"
    )


def queries(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
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
    if not in_pixels(head, box_values, 2, corners=corners):
        box = nodes.add("Mul", [box, nodes.constant("pixels", [[head.pixels]])], "in_pixels")
    score, classes = _probabilities(nodes, head, score, score_values)
    if head.post.classes not in (0, classes):
        raise AttachError(f"--post: 'classes:{head.post.classes}', and the scores of {head.post.kind} have {classes}")
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
    head.report.ran("box form", "corners" if corners else "centre and size")
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
        head.report.ran("scores", min(words & {"probabilities", "sigmoid", "softmax"}), "and by the number of labels")
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
