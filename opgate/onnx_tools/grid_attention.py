"""Finds deformable attention that an export wrote with GridSample, as mmcv's function in plain PyTorch does.

The value is split into levels, GridSample reads each level at its places, the samples of all levels are put together,
multiplied by the weights and added up. The layouts between these steps differ from exporter to exporter, so they are
walked over. What is found is a guess, which the trial of a candidate proves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
from onnx import NodeProto

from opgate.onnx_tools.fusions import Candidate
from opgate.onnx_tools.patterns import scalar_of
from opgate.onnx_tools.rewrite_text import constant
from opgate.onnx_tools.values import Values

_LAYOUT = ("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten", "Identity")
_PARTS = ("Split", "Slice", "Gather")


def candidates(graph: onnx.GraphProto, values: Values) -> Iterator[Candidate]:
    """Yields the attentions of a graph."""
    for node in graph.node:
        if node.op_type == "ReduceSum" and (found := _attention(node, values)) is not None:
            yield found


def _attention(total: NodeProto, values: Values) -> Candidate | None:
    last = _next(_next(total, "Reshape", values), "Transpose", values)
    product = values.producers.get(total.input[0])
    if last is None or product is None or product.op_type != "Mul":
        return None
    for sampled, weighting in (tuple(product.input), tuple(product.input)[::-1]):
        samplers = _samplers(sampled, values)
        weights = _up(weighting, 5, values)
        if samplers is None or weights is None:
            continue
        value = _common([_value(node.input[0], values) for node in samplers])
        locations = _common([_locations(node.input[1], values) for node in samplers])
        extents = [_extent(node.input[0], values) for node in samplers]
        if value is None or locations is None or None in extents:
            continue
        inputs = {"value": value, "locations": locations, "weights": weights}
        body = _body([extent for extent in extents if extent is not None])
        return Candidate("MultiScaleDeformableAttention", (last,), inputs, ("y", last.output[0]), body)
    return None


def _body(extents: Sequence[tuple[int, int]]) -> str:
    starts = [0]
    for height, width in extents[:-1]:
        starts.append(starts[-1] + height * width)
    numbers = ", ".join(f"{height}, {width}" for height, width in extents)
    return (
        f"shapes = Constant <value = int64[{len(extents)},2] {{{numbers}}}> () {constant('starts', starts)} "
        "y = opgate.MultiScaleDeformableAttention (value, shapes, starts, locations, weights)"
    )


def _next(node: NodeProto | None, op_type: str, values: Values) -> NodeProto | None:
    """Returns the only consumer of a node's result, if it is of this type."""
    users = values.consumers.get(node.output[0], []) if node is not None else []
    return users[0] if len(users) == 1 and users[0].op_type == op_type else None


def _samplers(tensor: str, values: Values) -> list[NodeProto] | None:
    """Returns the GridSample nodes, level by level, whose results are put together to a tensor."""
    node = values.producers.get(tensor)
    while node is not None and node.op_type in _LAYOUT:
        node = values.producers.get(node.input[0])
    if node is None:
        return None
    if node.op_type == "Concat":
        levels = [_samplers(part, values) for part in node.input]
        flat = [level[0] for level in levels if level is not None and len(level) == 1]
        return flat if len(flat) == len(levels) else None
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    bilinear = attributes.get("mode", b"linear") in (b"linear", b"bilinear")
    zeros = attributes.get("padding_mode", b"zeros") == b"zeros"
    plain = node.op_type == "GridSample" and bilinear and zeros and not attributes.get("align_corners", 0)
    return [node] if plain else None


def _up(tensor: str, rank: int, values: Values) -> str | None:
    """Returns the first tensor with `rank` axes from which `tensor` comes by other layouts, one of them a Transpose."""
    node = values.producers.get(tensor)
    transposed = False
    while node is not None and node.op_type in _LAYOUT:
        tensor = node.input[0]
        transposed |= node.op_type == "Transpose"
        if transposed and len(values.shape(tensor) or ()) == rank:
            return tensor
        node = values.producers.get(tensor)
    return None


def _value(sampled: str, values: Values) -> str | None:
    """Returns the value of all levels from which the pictures that a GridSample reads are taken."""
    level = _up(sampled, 4, values)
    node = values.producers.get(level or "")
    return node.input[0] if node is not None and node.op_type in ("Split", "Slice") else level


def _locations(grid: str, values: Values) -> str | None:
    """Returns the places in [0, 1] of all levels, from which a grid is made as 2 x - 1."""
    passed: list[str] = []
    node = values.producers.get(grid)
    while node is not None:
        if node.op_type in ("Mul", "Sub"):
            numbers = [scalar_of(values, tensor) for tensor in node.input]
            if (numbers[1] != 1) if node.op_type == "Sub" else (2 not in numbers):
                return None
            passed.append(node.op_type)
            grid = node.input[1 if node.op_type == "Mul" and numbers[0] == 2 else 0]
        elif node.op_type in (*_LAYOUT, *_PARTS):
            grid = node.input[0]
        else:
            return None
        if passed == ["Sub", "Mul"] and len(values.shape(grid) or ()) == 6:
            return grid
        node = values.producers.get(grid)
    return None


def _common(tensors: Sequence[str | None]) -> str | None:
    """Returns the tensor that all levels share, or None."""
    return tensors[0] if len(set(tensors)) == 1 else None


def _extent(pictures: str, values: Values) -> tuple[int, int] | None:
    shape = values.shape(pictures)
    if shape is None or len(shape) != 4:
        return None
    height, width = shape[2:]
    return (height, width) if isinstance(height, int) and isinstance(width, int) else None
