"""Deformable attention: mmcv's and mmdeploy's nodes, the plugin of TensorRT, and the one of BEVFormer_tensorrt."""

from __future__ import annotations

from opgate.onnx_tools.foreign.node import Foreign, ForeignNode, Refused, cast
from opgate.onnx_tools.rewrite_text import constant

_OP = "opgate.MultiScaleDeformableAttention"


def _shapes(node: ForeignNode, index: int, *names: str) -> tuple[list[str], list[str]]:
    """Returns the nodes that give the integer inputs from `index` on one type, and the names of the results."""
    dtypes = {node.dtype(index + place) for place in range(len(names))}
    if len(dtypes) == 1 and dtypes <= {"i32", "i64"}:
        return [], list(names)
    return [cast(f"{name}_i64", name, "i64") for name in names], [f"{name}_i64" for name in names]


def _mmcv(node: ForeignNode) -> str:
    lines, shapes = _shapes(node, 1, "shapes", "starts")
    return " ".join([*lines, f"output = {_OP} (value, {', '.join(shapes)}, locations, weights)"])


def _split_heads(attended: str) -> str:
    """Returns the nodes that give [b, queries, heads * dims] the axes [b, queries, heads, dims] of `value`."""
    return (
        f"{constant('first', [2])} {constant('last', [4])} {constant('kept', [0, 0])} value_shape = Shape (value) "
        "heads = Slice (value_shape, first, last) output_shape = Concat <axis = 0> (kept, heads) "
        f"output = Reshape ({attended}, output_shape)"
    )


def _tensorrt(node: ForeignNode) -> str:
    """The plugin gives [b, queries, heads, dims], as its documentation says. A model that states three axes has
    them."""
    lines, shapes = _shapes(node, 1, "shapes", "starts")
    joined = node.output_rank(0) == 3
    output = "output" if joined else "attended"
    lines.append(f"{output} = {_OP} (value, {', '.join(shapes)}, locations, weights)")
    return " ".join(lines if joined else [*lines, _split_heads("attended")])


def _bevformer(node: ForeignNode) -> str:
    """(value, shapes, locations, weights) of the first version gives [b, queries, heads * dims]. (value, shapes,
    reference_points, offsets, weights) gives [b, queries, heads, dims]; its offsets are in pixels, sample i belongs to
    reference point i modulo their number, and the softmax of the weights is part of the node, except in versions where
    the model has it in front of the node."""
    if not node.has(4):
        lines, (shapes,) = _shapes(node, 1, "shapes")
        starts = _level_starts(shapes)
        return " ".join([*lines, starts, f"output = {_OP} (value, {shapes}, starts, a, b)"])
    levels, pairs, dtype = node.size(1, 0), node.size(2, -1), node.dtype(0)
    if levels is None or pairs is None or dtype is None:
        raise Refused("the number of levels, of reference points or the type of 'value' is not known before the run")
    if pairs % 2:
        raise Refused(f"input 2 (reference points): expected a last axis of pairs, got {pairs}")
    lines, (shapes,) = _shapes(node, 1, "shapes")
    weights = "c"
    if not _after_softmax(node):
        lines += [constant("flat", [0, 0, 0, -1]), "flat_weights = Reshape (c, flat)"]
        lines.append("weights = Softmax <axis = -1> (flat_weights)")
        weights = "weights"
    return " ".join(
        [
            *lines,
            _level_starts(shapes),
            constant("swapped", [1, 0]),
            f"widths_heights = Gather <axis = 1> ({shapes}, swapped)",
            cast("extents", "widths_heights", dtype),
            constant("extents_shape", [1, 1, 1, levels, 1, 1, 2]),
            "scale = Reshape (extents, extents_shape)",
            constant("offsets_shape", [0, 0, 0, levels, -1, pairs // 2, 2]),
            "offsets = Reshape (b, offsets_shape)",
            constant("points_shape", [0, 0, 1, 1, 1, pairs // 2, 2]),
            "points = Reshape (a, points_shape)",
            "relative = Div (offsets, scale) placed = Add (points, relative)",
            constant("locations_shape", [0, 0, 0, levels, -1, 2]),
            "locations = Reshape (placed, locations_shape)",
            constant("weights_shape", [0, 0, 0, levels, -1]),
            f"level_weights = Reshape ({weights}, weights_shape)",
            f"attended = {_OP} (value, {shapes}, starts, locations, level_weights)",
            _split_heads("attended"),
        ]
    )


def _level_starts(shapes: str) -> str:
    """Returns the nodes that compute the first key of each level: the sum of the areas of the levels before it."""
    return (
        f"rows = Constant <value = int64 {{0}}> () columns = Constant <value = int64 {{1}}> () "
        f"heights = Gather <axis = 1> ({shapes}, rows) widths = Gather <axis = 1> ({shapes}, columns) "
        "areas = Mul (heights, widths) starts = CumSum <exclusive = 1> (areas, rows)"
    )


def _after_softmax(node: ForeignNode) -> bool:
    """Returns whether the weights come from a Softmax, through nodes that only change their shape."""
    producer = node.values.producers.get(node.node.input[4])
    while producer is not None and producer.op_type in (
        "Reshape",
        "Identity",
        "Cast",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
    ):
        producer = node.values.producers.get(producer.input[0])
    return producer is not None and producer.op_type == "Softmax"


_INPUTS = ("value", "shapes", "starts", "locations", "weights")
REWRITES = (
    Foreign(
        names=("mmdeploy::MMCVMultiScaleDeformableAttention", "mmcv::MMCVMultiScaleDeformableAttention"),
        op="MultiScaleDeformableAttention",
        inputs=_INPUTS,
        outputs=("output",),
        body=_mmcv,
    ),
    Foreign(
        names=("*::MultiscaleDeformableAttnPlugin_TRT",),
        op="MultiScaleDeformableAttention",
        inputs=_INPUTS,
        outputs=("output",),
        body=_tensorrt,
    ),
    Foreign(
        names=("*::MultiScaleDeformableAttnTRT", "*::MultiScaleDeformableAttnTRT2"),
        op="MultiScaleDeformableAttention",
        inputs=("value", "shapes", "a", "b", "c?"),
        outputs=("output",),
        body=_bevformer,
    ),
)
