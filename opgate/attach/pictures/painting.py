"""Paints masks into a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from opgate.attach.model.nodes import Nodes
from opgate.ops_build.ops.draw_bounding_boxes.reference import table

_FLOAT, _INT64, _BOOL, _UINT8 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.UINT8


@dataclass(frozen=True, slots=True)
class _Axis:
    """For each pixel along an axis of a picture: the cell of the masks before its centre, the cell behind it, the
    nearest of both, i64 [size], the share of that behind, f32 [size], and whether it lies in each box, bool [k, size].
    """

    before: str
    after: str
    nearest: str
    share: str
    inside: str


def painted(nodes: Nodes, picture: str, labels: str, count: str, outputs: Sequence[str]) -> str:
    """Adds a picture with the masks of the first `count` boxes in half of the colours of their `labels`. Returns its
    name.

    `picture` is u8 [h, w, 3], `outputs` are masks u8 [k, mh, mw], their place f32 [6], and boxes f32 [k, 4] that cut
    them. As in the run lengths of /predict, masks are interpolated between their cells, and count above one half. Where
    they overlap, a pixel has the colour of the likeliest mask of the nearest cell. The rows of the picture are painted
    one after the other, so that no mask of its size is made.
    """
    one = nodes.constant("one", [1], np.int32)
    used = nodes.cast(nodes.add("Max", [count, one], "at_least_one"), _INT64, "used")
    masks, boxes, kinds = (
        nodes.add("Slice", [each, nodes.ints("start", [0]), used], "first") for each in (outputs[0], outputs[2], labels)
    )
    masks = nodes.cast(masks, _FLOAT, "masks")
    likeliest = nodes.add("ArgMax", [masks], "likeliest", axis=0, keepdims=0)
    probable = nodes.reduce("ReduceMax", masks, 0, "probable", keepdims=False)
    palette = nodes.constant("palette", table("palette") / 2)
    place = nodes.add("Mod", [kinds, nodes.constant("colours", len(table("palette")), np.int32)], "colour")
    colours = nodes.add("Gather", [palette, place], "half_colours")
    columns, rows = (_axis(nodes, picture, probable, outputs[1], boxes, axis) for axis in (0, 1))
    body = _row(probable, likeliest, colours, columns, nodes.opset)
    inside = nodes.add("Transpose", [rows.inside], "rows.inside", perm=[1, 0])
    scanned = [picture, rows.before, rows.after, rows.nearest, rows.share, inside]
    return nodes.add("Scan", scanned, "painted", body=body, num_scan_inputs=len(scanned))


def _axis(nodes: Nodes, picture: str, probable: str, geometry: str, boxes: str, axis: int) -> _Axis:
    """Adds where the pixels along an axis lie, 0 for x and 1 for y, in cells of `probable` [mh, mw] and in boxes."""
    name = "xy"[axis]
    place, zero, one = (nodes.constant(f"{name}.{value}", value, np.int64) for value in (1 - axis, 0, 1))
    size, cells = (
        nodes.add("Gather", [nodes.add("Shape", [x], f"{name}.sizes"), place], f"{name}.size")
        for x in (picture, probable)
    )
    pixels = nodes.cast(nodes.add("Range", [zero, size, one], f"{name}.range"), _FLOAT, f"{name}.pixels")
    half = nodes.constant("half", 0.5)
    scale, origin = (nodes.slice(geometry, 0, axis + i, axis + i + 1, f"{name}.geometry") for i in (0, 2))
    scaled = nodes.add("Div", [nodes.add("Add", [pixels, half], f"{name}.centres"), scale], f"{name}.scaled")
    moved = nodes.add("Sub", [nodes.add("Add", [scaled, origin], f"{name}.moved"), half], f"{name}.at")
    last = nodes.add("Sub", [cells, one], f"{name}.last")
    held = nodes.add("Max", [moved, nodes.constant("nothing", 0.0)], f"{name}.from_first")
    held = nodes.add("Min", [held, nodes.cast(last, _FLOAT, f"{name}.last.f32")], f"{name}.to_last")
    floor = nodes.add("Floor", [held], f"{name}.floor")
    before = nodes.cast(floor, _INT64, f"{name}.before")
    after = nodes.add("Min", [nodes.add("Add", [before, one], f"{name}.next"), last], f"{name}.after")
    share = nodes.add("Sub", [held, floor], f"{name}.share")
    nearest = nodes.add("Where", [nodes.add("Greater", [share, half], f"{name}.far"), after, before], f"{name}.nearest")
    low, high = (nodes.slice(boxes, 1, axis + i, axis + i + 1, f"{name}.box") for i in (0, 2))
    not_before = nodes.add("Not", [nodes.add("Less", [pixels, low], f"{name}.less")], f"{name}.not_before")
    inside = nodes.add("And", [not_before, nodes.add("Less", [pixels, high], f"{name}.less")], f"{name}.inside")
    return _Axis(before, after, nearest, share, inside)


def _row(probable: str, likeliest: str, colours: str, columns: _Axis, opset: int) -> onnx.GraphProto:
    """Returns the graph that paints one row of a picture."""
    nodes = Nodes(opset, "row/")

    def between(x: str, before: str, after: str, share: str, name: str) -> str:
        one, other = (nodes.add("Gather", [x, place], f"{name}.cells") for place in (before, after))
        step = nodes.add("Mul", [nodes.add("Sub", [other, one], f"{name}.change"), share], f"{name}.step")
        return nodes.add("Add", [one, step], f"{name}.value")

    cells = between(probable, "before", "after", "share", "rows")
    values = between(cells, columns.before, columns.after, columns.share, "columns")
    above = nodes.add("Greater", [values, nodes.constant("level", 127.5)], "above")
    mask = nodes.add("Gather", [nodes.add("Gather", [likeliest, "nearest"], "masks"), columns.nearest], "mask")
    column = nodes.add("GatherElements", [columns.inside, nodes.reshape(mask, [1, -1], "as_row")], "in_columns", axis=0)
    inside = nodes.add(
        "And", [nodes.reshape(column, [-1], "in_column"), nodes.add("Gather", ["inside", mask], "in_row")], "in_box"
    )
    covered = nodes.reshape(nodes.add("And", [above, inside], "covered"), [-1, 1], "painted")
    half = nodes.add("Mul", [nodes.cast("pixels", _FLOAT, "wide"), nodes.constant("half", 0.5)], "half_as_bright")
    mixed = nodes.add("Add", [half, nodes.add("Gather", [colours, mask], "colour")], "mixed")
    nodes.add("Where", [covered, nodes.cast(mixed, _UINT8, "mixed.bytes"), "pixels"], "row", to="row/out")
    inputs: list[tuple[str, TensorProto.DataType, list[str | int | None]]] = [
        ("pixels", _UINT8, ["w", 3]),
        *((name, _INT64, []) for name in ("before", "after", "nearest")),
        ("share", _FLOAT, []),
        ("inside", _BOOL, ["k"]),
    ]
    return helper.make_graph(
        nodes.nodes,
        "row",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info("row/out", _UINT8, ["w", 3])],
        list(nodes.constants.values()),
    )
