"""The heads of face detectors: a box and a few points of each anchor."""

from __future__ import annotations

import numpy as np

from opgate.attach.model.head import Beside, Boxes, Head, gathered, grid, mapped_points
from opgate.attach.model.nodes import Nodes
from opgate.attach.model.outputs import Output
from opgate.attach.model.report import AttachError
from opgate.attach.pictures.heads import STRIDES

#: The cells of BlazeFace's grids along a side, and the anchors of each cell, by the number of anchors in all.
_BLAZE_GRIDS = {896: ((16, 2), (8, 6)), 2304: ((48, 1),)}
_BLAZE_POINTS = 6


def blazeface(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
    """Adds boxes, scores and six points of [n, a, 16] and [n, a, 1]: all are offsets in pixels from the centre of a
    cell, and the score is a logit."""
    numbers = head.output(lambda output: output.shape[-1:] == (16,), "an output [n, a, 16]")
    logits = head.output(lambda output: output.shape[-1:] == (1,), "an output [n, a, 1]")
    grids = _BLAZE_GRIDS.get(numbers.shape[1])
    if grids is None:
        raise AttachError(f"--post: blazeface has 896 or 2304 anchors, and the output is {numbers}")
    size, centres = head.size[1], []
    for side, repeat in grids:
        places, _ = grid((side, side), (1,), repeat)
        centres.append((places + 0.5) * (size / side))
    centre = np.concatenate(centres)
    x = nodes.float(numbers.name, numbers.dtype, "numbers")
    moved = nodes.constant("centres", np.concatenate([centre, 0 * centre, *[centre] * _BLAZE_POINTS], 1)[None])
    placed = nodes.add("Add", [x, moved], "placed")
    score = nodes.add("Sigmoid", [nodes.float(logits.name, logits.dtype, "logits")], "probabilities")
    points = nodes.slice(placed, 2, 4, 16, "points.all")
    joined = nodes.add("Concat", [nodes.slice(placed, 2, 0, 4, "boxes"), score, points], "joined", axis=2)
    return Boxes(joined, 1, True, points=_BLAZE_POINTS), lambda indices: [
        mapped_points(nodes, gathered(nodes, points, indices, "points"), indices, head.post.most, _BLAZE_POINTS, 2)
    ]


def scrfd(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
    """Adds boxes, scores and five points of three outputs for each stride: a probability, the distances of the sides
    and of the points from the corner of a cell, in strides."""
    by_size: dict[int, list[Output]] = {}
    for output in head.outputs:
        by_size.setdefault(output.shape[-1], []).append(output)
    if not {1, 4} <= by_size.keys() <= {1, 4, 10} or any(len(each) != len(STRIDES) for each in by_size.values()):
        raise AttachError(f"--post: scrfd has outputs of 1, 4 and 10 numbers: got {', '.join(map(str, head.outputs))}")
    columns: dict[int, list[str]] = {size: [] for size in by_size}
    for level, stride in enumerate(STRIDES):
        for size, outputs in by_size.items():
            output = sorted(outputs, key=lambda each: -each.shape[-2])[level]
            columns[size].append(_level(nodes, head, output, stride))
    whole = {size: nodes.add("Concat", parts, f"all_{size}", axis=1) for size, parts in columns.items()}
    joined = nodes.add("Concat", [whole[4], whole[1]], "joined", axis=2)
    boxes = Boxes(joined, 1, True, corners=True)
    if 10 not in whole:
        return boxes, None
    return boxes, lambda indices: [
        mapped_points(nodes, gathered(nodes, whole[10], indices, "points"), indices, head.post.most, 5, 2)
    ]


def _level(nodes: Nodes, head: Head, output: Output, stride: int) -> str:
    """Adds what one output says, in pixels of the input: [n, a, 1], corners [n, a, 4] or points [n, a, 10]."""
    cells = (head.size[0] // stride) * (head.size[1] // stride)
    anchors, size = output.shape[-2:]
    if anchors % cells:
        raise AttachError(f"--post: scrfd: {output} has no whole number of anchors for {cells} cells")
    name = f"stride{stride}"
    batch = 1 if len(output.shape) == 2 else 0
    x = nodes.reshape(nodes.float(output.name, output.dtype, name), [batch, anchors, size], name)
    if size == 1:
        return x
    places, _ = grid(head.size, (stride,), anchors // cells)
    signs = [[-stride, -stride, stride, stride]] if size == 4 else [[stride] * size]
    scaled = nodes.add("Mul", [x, nodes.constant(f"{name}.scale", np.array([signs]))], f"{name}.scaled")
    corner = np.tile(places * stride, (1, size // 2))[None]
    return nodes.add("Add", [scaled, nodes.constant(f"{name}.corners", corner)], f"{name}.placed")
