"""Masks of the boxes of a detector, which the network gives, or numbers of each box to weigh prototypes with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from opgate.attach.model.head import Head, gathered
from opgate.attach.model.nodes import Nodes
from opgate.attach.model.outputs import Output
from opgate.attach.model.post import MASKS, Answer
from opgate.attach.model.report import AttachError

#: How many bytes the masks of a picture may have.
_MOST = 2**26
#: By how many cells a mask goes beyond its box, so that its probability can be interpolated up to the sides.
_MARGIN = 1.0


def prototypes_of(head: Head, output: Output, fits: Callable[[int], bool]) -> Output | None:
    """Returns the output with the prototypes of masks [n, k, h, w], None without one, and reports the outputs that are
    not served.

    It has a quarter of the picture's size, and `fits` says whether `output` may have k numbers for masks.
    """
    others = [other for other in head.outputs if other is not output]
    quarter = (head.size[0] // 4, head.size[1] // 4)
    found = [each for each in others if len(each.shape) == 4 and each.shape[2:] == quarter and fits(each.shape[1])]
    if names := [other.name for other in others if other not in found[:1]]:
        head.report.found("other outputs", ", ".join(names), "not served")
    return found[0] if found else None


def of_prototypes(nodes: Nodes, head: Head, numbers: str, prototypes: Output, indices: str) -> list[tuple[str, Answer]]:
    """Adds masks as `add` does: the sigmoid of the product of the numbers of each anchor, f32 [n, a, k], and prototypes
    [n, k, h, w]."""
    channels, height, width = prototypes.shape[1:]

    def probabilities(kept: str) -> str:
        each = nodes.float(prototypes.name, prototypes.dtype, "prototypes")
        flat = nodes.reshape(each, [0, channels, height * width], "prototypes.flat")
        product = nodes.add("MatMul", [gathered(nodes, numbers, kept, "masks"), flat], "masks.product")
        return nodes.add("Sigmoid", [product], "masks.sigmoid")

    return add(nodes, head, (height, width), probabilities, indices, f"prototypes {prototypes}")


def add(
    nodes: Nodes, head: Head, cells: tuple[int, int], probabilities: Callable[[str], str], indices: str, why: str
) -> list[tuple[str, Answer]]:
    """Adds the masks of the boxes that are answered, u8 [n, most, h, w], and how they lie in the picture, f32 [n, 6].

    `indices` i32 [n, most] are the places of the boxes among those of the network, and `probabilities` gives for some
    of them the probability of each cell of the input, f32 [n, some, h w]. It becomes 0 more than a cell beyond the box,
    and in the masks behind the first `count`. As many masks are computed for each picture as the greatest `count` of
    the batch, at least one. `why` is for the report. Raises AttachError if the masks of a picture are too large.
    """
    most, (height, width) = head.post.most, cells
    if most * height * width > _MOST:
        raise AttachError(
            f"--post: the masks of {most} boxes have {most * height * width} bytes for each picture: "
            f"expected max:1 to max:{_MOST // (height * width)}"
        )
    head.report.found("masks", f"{height} x {width} cells for each box", why)
    masks, geometry, boxes = MASKS
    cell = np.array([head.size[1] / width, head.size[0] / height])
    in_cells = nodes.constant("masks.in_cells", [[*cell, *(1 / cell), 1, 1]])
    nodes.add("Mul", ["geometry", in_cells], "masks.geometry", to=geometry)

    greatest = nodes.reduce("ReduceMax", "count", 0, "masks.greatest")
    at_least_one = nodes.add("Max", [greatest, nodes.constant("one", [1], np.int32)], "masks.at_least_one")
    used = nodes.cast(at_least_one, TensorProto.INT64, "masks.used")

    def first(x: str, name: str) -> str:
        return nodes.add("Slice", [x, nodes.ints("start", [0]), used, nodes.ints("axis", [1])], f"masks.{name}")

    probable = nodes.reshape(probabilities(first(indices, "indices")), [0, -1, height, width], "masks.probable")
    inside = _inside(nodes, first(boxes, "boxes"), geometry, height, width)
    places = first(nodes.constant("places", np.arange(most).reshape(1, -1, 1, 1), np.int32), "places")
    counted = nodes.add("Less", [places, nodes.reshape("count", [-1, 1, 1, 1], "masks.counts")], "masks.counted")
    inside = nodes.add("And", [inside, counted], "masks.inside")
    cut = nodes.add("Where", [inside, probable, nodes.constant("nothing", 0.0)], "masks.cut")
    scaled = nodes.add("Mul", [cut, nodes.constant("byte", 255.0)], "masks.scaled")
    rounded = nodes.cast(nodes.add("Add", [scaled, nodes.constant("half", 0.5)], "masks.rounded"), TensorProto.UINT8)
    missing = nodes.add("Sub", [nodes.ints("most", [most]), used], "masks.missing")
    before, behind = nodes.ints("before", [0] * 5), nodes.ints("behind", [0] * 2)
    pads = nodes.add("Concat", [before, missing, behind], "masks.pads", axis=0)
    nodes.add("Pad", [rounded, pads], "masks.padded", to=masks)
    answers = [Answer(masks, "TYPE_UINT8", (most, height, width)), Answer(geometry, "TYPE_FP32", (6,))]
    return [("mask", answers[0]), ("", answers[1])]


def _inside(nodes: Nodes, boxes: str, geometry: str, height: int, width: int) -> str:
    """Adds which cells lie in boxes [n, k, 4] of the picture or at most the margin beyond them, bool [n, k, h, w]."""
    place = nodes.reshape(geometry, [0, 1, 6], "masks.place")
    scale, origin = nodes.slice(place, 2, 0, 2, "masks.scale"), nodes.slice(place, 2, 2, 4, "masks.origin")
    sides = []
    for name, begin, margin in (("low", 0, -_MARGIN), ("high", 2, _MARGIN)):
        corner = nodes.add("Div", [nodes.slice(boxes, 2, begin, begin + 2, f"masks.{name}"), scale], f"masks.{name}")
        moved = nodes.add("Add", [corner, origin], f"masks.{name}")
        sides.append(nodes.add("Add", [moved, nodes.constant("margin", margin)], f"masks.{name}"))
    parts = []
    for axis, shape in ((0, [1, 1, 1, width]), (1, [1, 1, height, 1])):
        centres = nodes.constant("centres", (np.arange(max(shape)) + 0.5).reshape(shape))
        for op, side in zip(("Greater", "Less"), sides, strict=True):
            limit = nodes.reshape(nodes.slice(side, 2, axis, axis + 1, "masks.side"), [0, 0, 1, 1], "masks.limit")
            parts.append(nodes.add(op, [centres, limit], "masks.within"))
    columns, rows = (nodes.add("And", parts[i : i + 2], "masks.both") for i in (0, 2))
    return nodes.add("And", [columns, rows], "masks.in_box")
