"""Paints masks into a picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from opgate.attach.nodes import Nodes
from opgate.ops_build.ops.draw_bounding_boxes.reference import table

_FLOAT, _INT64, _BOOL, _UINT8 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.UINT8
_AXES = ("x", "y")


def painted(nodes: Nodes, picture: str, labels: str, count: str, outputs: Sequence[str]) -> str:
    """Adds a picture with the masks of the first `count` boxes in half of the colours of their `labels`, the first on
    top. Returns its name.

    `picture` is u8 [h, w, 3], `outputs` are masks u8 [k, mh, mw], their place f32 [6], and boxes f32 [k, 4] that cut
    them. As in the run lengths of /predict, the masks are interpolated between their cells, and count above one half.
    The rows of the picture are painted one after the other, so that no mask of its size is made.
    """
    one = nodes.constant("one", [1], np.int32)
    used = nodes.cast(nodes.add("Max", [count, one], "at_least_one"), _INT64, "used")
    masks, boxes, kinds = (
        nodes.add("Slice", [each, nodes.ints("start", [0]), used], "first") for each in (outputs[0], outputs[2], labels)
    )
    masks = nodes.cast(masks, _FLOAT, "masks")
    palette = nodes.constant("palette", table("palette") / 2)
    place = nodes.add("Mod", [kinds, nodes.constant("colours", len(table("palette")), np.int32)], "colour")
    colours = nodes.add("Gather", [palette, place], "half_colours")
    columns, rows = (_places(nodes, picture, masks, outputs[1], boxes, axis) for axis in (0, 1))
    body = _row(masks, colours, columns, nodes.opset)
    inside = nodes.add("Transpose", [rows[3]], "rows.inside", perm=[1, 0])
    return nodes.add("Scan", [picture, *rows[:3], inside], "painted", body=body, num_scan_inputs=5)


def _places(nodes: Nodes, picture: str, masks: str, geometry: str, boxes: str, axis: int) -> tuple[str, str, str, str]:
    """Adds for each pixel along an axis the cell before its centre and that behind it, i64 [size], the share of the
    latter, f32 [size], and whether it lies in each box, bool [k, size]."""
    name = _AXES[axis]
    sizes = nodes.add("Shape", [picture], f"{name}.sizes"), nodes.add("Shape", [masks], f"{name}.cells")
    place = nodes.constant(f"{name}.place", 1 - axis, np.int64), nodes.constant(f"{name}.side", 2 - axis, np.int64)
    size, cells = (nodes.add("Gather", pair, f"{name}.size") for pair in zip(sizes, place, strict=True))
    bounds = nodes.constant("zero", 0, np.int64), nodes.constant("step", 1, np.int64)
    pixels = nodes.cast(nodes.add("Range", [bounds[0], size, bounds[1]], f"{name}.range"), _FLOAT, f"{name}.pixels")
    half = nodes.constant("half", 0.5)
    scale, origin = (nodes.slice(geometry, 0, axis + i, axis + i + 1, f"{name}.geometry") for i in (0, 2))
    scaled = nodes.add("Div", [nodes.add("Add", [pixels, half], f"{name}.centres"), scale], f"{name}.scaled")
    moved = nodes.add("Sub", [nodes.add("Add", [scaled, origin], f"{name}.moved"), half], f"{name}.at")
    last = nodes.add("Sub", [cells, bounds[1]], f"{name}.last")
    held = nodes.add("Max", [moved, nodes.constant("nothing", 0.0)], f"{name}.from_first")
    held = nodes.add("Min", [held, nodes.cast(last, _FLOAT, f"{name}.last.f32")], f"{name}.to_last")
    floor = nodes.add("Floor", [held], f"{name}.floor")
    before = nodes.cast(floor, _INT64, f"{name}.before")
    after = nodes.add("Min", [nodes.add("Add", [before, bounds[1]], f"{name}.next"), last], f"{name}.after")
    low, high = (nodes.slice(boxes, 1, axis + i, axis + i + 1, f"{name}.box") for i in (0, 2))
    not_before = nodes.add("Not", [nodes.add("Less", [pixels, low], f"{name}.less")], f"{name}.not_before")
    within = nodes.add("And", [not_before, nodes.add("Less", [pixels, high], f"{name}.less")], f"{name}.inside")
    return before, after, nodes.add("Sub", [held, floor], f"{name}.share"), within


def _row(masks: str, colours: str, columns: tuple[str, str, str, str], opset: int) -> onnx.GraphProto:
    """Returns the graph that paints one row of a picture."""
    nodes = Nodes(opset, "row/")

    def between(x: str, before: str, after: str, share: str, name: str) -> str:
        one, other = (nodes.add("Gather", [x, places], f"{name}.cells", axis=1) for places in (before, after))
        step = nodes.add("Mul", [nodes.add("Sub", [other, one], f"{name}.change"), share], f"{name}.step")
        return nodes.add("Add", [one, step], f"{name}.value")

    values = between(between(masks, "before", "after", "share", "rows"), *columns[:3], "columns")
    above = nodes.add("Greater", [values, nodes.constant("level", 127.5)], "above")
    in_box = nodes.add("And", [columns[3], nodes.reshape("inside", [-1, 1], "in_rows")], "in_box")
    ones = nodes.cast(nodes.add("And", [above, in_box], "covered"), _FLOAT, "ones")
    best = nodes.add("ArgMax", [ones], "best", axis=0, keepdims=0)
    anything = nodes.cast(nodes.reduce("ReduceMax", ones, 0, "most", keepdims=False), _BOOL, "anything")
    half = nodes.add("Mul", [nodes.cast("pixels", _FLOAT, "wide"), nodes.constant("half", 0.5)], "half_as_bright")
    mixed = nodes.add("Add", [half, nodes.add("Gather", [colours, best], "colour")], "mixed")
    covered = nodes.reshape(anything, [-1, 1], "painted")
    nodes.add("Where", [covered, nodes.cast(mixed, _UINT8, "mixed.bytes"), "pixels"], "row", to="row/out")
    inputs: list[tuple[str, TensorProto.DataType, list[str | int | None]]] = [
        ("pixels", _UINT8, ["w", 3]),
        *(("before", _INT64, []), ("after", _INT64, []), ("share", _FLOAT, [])),
        ("inside", _BOOL, ["k"]),
    ]
    return helper.make_graph(
        nodes.nodes,
        "row",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info("row/out", _UINT8, ["w", 3])],
        list(nodes.constants.values()),
    )
