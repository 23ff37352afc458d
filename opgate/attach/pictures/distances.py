"""The heads of PicoDet and NanoDet-Plus: for each cell of a grid, distributions of the distances to the sides of a box.

Generalized focal loss, https://arxiv.org/abs/2006.04388: a distance is the mean of a distribution over 0, 1, ..., r
strides, whose softmax the network leaves out.
"""

from __future__ import annotations

import numpy as np

from opgate.attach.model.head import Beside, Boxes, Head, class_count, grid
from opgate.attach.model.nodes import Nodes
from opgate.attach.model.outputs import Output
from opgate.attach.model.report import AttachError
from opgate.attach.pictures.heads import STRIDES_P6, levels_of, paired_levels

#: The numbers of NanoDet's distributions, of four sides.
_NANODET = 32


def picodet(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
    """Adds boxes and scores of two outputs for each stride: probabilities [n, a, c] and distributions
    [n, a, 4 (r + 1)], whose distances begin at the centre of a cell."""
    levels = paired_levels(head.outputs, head.size)
    if not levels:
        raise AttachError(
            "--post: picodet has scores [n, a, c] and distributions [n, a, 32] for each of the strides 8, 16, 32 and "
            f"64: got {', '.join(map(str, head.outputs))}"
        )
    boxes, scores = [], []
    for (score, sides), stride in zip(levels, STRIDES_P6, strict=False):
        name = f"stride{stride}"
        x = nodes.float(sides.name, sides.dtype, f"{name}.sides")
        boxes.append(_boxes(nodes, head, x, sides.shape[2], stride, 0.5))
        scores.append(nodes.float(score.name, score.dtype, f"{name}.scores"))
    whole = [nodes.add("Concat", parts, name, axis=1) for name, parts in (("corners", boxes), ("classes", scores))]
    count = class_count(head, levels[0][0].shape[2], 0)
    return Boxes(nodes.add("Concat", whole, "joined", axis=2), count, True, corners=True), None


def nanodet(nodes: Nodes, head: Head) -> tuple[Boxes, Beside | None]:
    """Adds boxes and scores of [n, a, c + 32]: the probabilities of the classes, and distributions, whose distances
    begin at the corner of a cell."""
    output: Output = head.output(lambda output: len(output.shape) == 3, "one output [n, a, classes + 32]")
    _, anchors, channels = output.shape
    sizes = levels_of(head.size)
    expected = sum(rows * columns for rows, columns in sizes)
    if anchors != expected or channels <= _NANODET:
        raise AttachError(f"--post: nanodet has an output [n, {expected}, classes + 32] for this size: got {output}")
    x = nodes.float(output.name, output.dtype, "head")
    classes = channels - _NANODET
    parts, first = [], 0
    for (rows, columns), stride in zip(sizes, STRIDES_P6, strict=True):
        level = nodes.slice(x, 1, first, first + rows * columns, f"stride{stride}")
        sides = nodes.slice(level, 2, classes, channels, f"stride{stride}.sides")
        parts.append(_boxes(nodes, head, sides, _NANODET, stride, 0))
        first += rows * columns
    corners = nodes.add("Concat", parts, "corners", axis=1)
    joined = nodes.add("Concat", [corners, nodes.slice(x, 2, 0, classes, "classes")], "joined", axis=2)
    return Boxes(joined, class_count(head, classes, 0), True, corners=True), None


def _boxes(nodes: Nodes, head: Head, x: str, numbers: int, stride: int, offset: float) -> str:
    """Adds the corners [n, a, 4] of the distributions x [n, a, numbers] of a level. Distances begin `offset` of a cell
    from its corner."""
    name, bins = f"stride{stride}", numbers // 4
    spread = nodes.softmax(nodes.reshape(x, [0, -1, 4, bins], f"{name}.each"), 4, f"{name}.spread")
    weights = np.arange(bins, dtype=np.float32).reshape(bins, 1) * stride
    distances = nodes.add("MatMul", [spread, nodes.constant(f"{name}.bins", weights)], f"{name}.distances")
    sides = nodes.reshape(distances, [0, -1, 4], f"{name}.sides")
    signed = nodes.add("Mul", [sides, nodes.constant("signs", [[[-1, -1, 1, 1]]])], f"{name}.signed")
    rows, columns = levels_of(head.size)[STRIDES_P6.index(stride)]
    places, _ = grid((rows * stride, columns * stride), (stride,))
    centre = np.tile((places + offset) * stride, (1, 2))
    return nodes.add("Add", [signed, nodes.constant(f"{name}.centres", centre[None])], f"{name}.corners")
