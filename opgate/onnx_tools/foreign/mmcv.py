"""The nodes of mmcv and mmdeploy: rotated boxes, deformable convolution, soft NMS, corner pooling and sampling at
places."""

from __future__ import annotations

from opgate.onnx_tools.foreign.node import Foreign, ForeignNode, Refused, cast
from opgate.onnx_tools.rewrite_text import constant, float_text

#: Below every score, so that NMSRotated drops no box for its score.
_NO_THRESHOLD = -3.4e38


def _nms_rotated(node: ForeignNode) -> str:
    """mmcv's node takes boxes [n, 5] and scores [n] and gives the kept rows, the best first. mmdeploy's takes boxes [b,
    n, 5] and scores [b, classes, n] and gives rows (picture, class, box) in the order of pictures and classes, in a
    class the best first."""
    rank, boxes = node.rank(0), node.size(0, -2)
    if rank not in (2, 3):
        raise Refused(f"input 0 (boxes): expected 2 or 3 axes, got {'an unknown number' if rank is None else rank}")
    if boxes is None:
        raise Refused("the number of boxes is not known before the run, and NMSRotated's outputs need a size")
    iou = float_text(node.number("iou_threshold"))
    if rank == 2:
        return _kept_rows(iou, node.number("score_threshold", _NO_THRESHOLD), boxes)
    classes = node.size(1, 1)
    if classes is None:
        raise Refused("the number of classes is not known before the run, and NMSRotated's outputs need a size")
    settings = f"iou_threshold = {iou}, score_threshold = {float_text(node.number('score_threshold'))}"
    return " ".join(
        [
            "detections, kept, labels, count, indices = opgate.NMSRotated "
            f"<{settings}, max_detections = {boxes * classes}> (boxes, scores)",
            # Which place of a picture's detections is of which class. NonZero lists them in the order of mmdeploy.
            constant("apart", [0, 1, -1]),
            "label_rows = Reshape (labels, apart)",
            f"classes = Constant <value = int32[1,{classes},1] {{{', '.join(map(str, range(classes)))}}}> ()",
            "of_class = Equal (label_rows, classes) found = NonZero (of_class)",
            constant("picture_and_place", [0, 2]),
            constant("picture_and_class", [0, 1]),
            "places = Gather <axis = 0> (found, picture_and_place) place_rows = Transpose <perm = [1, 0]> (places)",
            "kept_boxes = GatherND (indices, place_rows)",
            cast("box_numbers", "kept_boxes", "i64"),
            constant("column", [-1, 1]),
            "box_column = Reshape (box_numbers, column) heads = Gather <axis = 0> (found, picture_and_class)",
            "head_columns = Transpose <perm = [1, 0]> (heads)",
            "selected = Concat <axis = 1> (head_columns, box_column)",
        ]
    )


def _kept_rows(iou: str, score_threshold: float, boxes: int) -> str:
    settings = f"iou_threshold = {iou}, score_threshold = {float_text(score_threshold)}, max_detections = {boxes}"
    return " ".join(
        [
            constant("one_picture", [1, -1, 5]),
            constant("one_class", [1, 1, -1]),
            "picture = Reshape (boxes, one_picture) class = Reshape (scores, one_class)",
            f"detections, kept, labels, count, indices = opgate.NMSRotated <{settings}> (picture, class)",
            constant("flat", [-1]),
            constant("first", [0]),
            "rows = Reshape (indices, flat)",
            cast("end", "count", "i64"),
            "kept_rows = Slice (rows, first, end)",
            cast("selected", "kept_rows", "i64"),
        ]
    )


def _roi_align_rotated(node: ForeignNode) -> str:
    settings = ", ".join(
        [
            f"output_height = {node.integer('output_height')}, output_width = {node.integer('output_width')}",
            f"spatial_scale = {float_text(node.number('spatial_scale', 1.0))}",
            f"sampling_ratio = {node.integer('sampling_ratio', 0)}",
            f"aligned = {int(bool(node.integer('aligned', 1)))}, clockwise = {int(bool(node.integer('clockwise', 0)))}",
        ]
    )
    return f"output = opgate.RoiAlignRotated <{settings}> (input, rois)"


def _deform_conv(node: ForeignNode) -> str:
    """DeformConv2d reads the numbers of groups from the shapes. Where they are known they are compared."""
    has_mask = "mask" in node.rewrite.inputs
    weight = 3 if has_mask else 2
    groups = node.integer("groups", 1)
    channels, filter_channels = node.size(0, 1), node.size(weight, 1)
    if channels is not None and filter_channels is not None and channels != groups * filter_channels:
        raise Refused(f"attribute 'groups' is {groups}, and the filters have {filter_channels} of {channels} channels")
    offsets, height, width = node.size(1, 1), node.size(weight, 2), node.size(weight, 3)
    deform_groups = node.integer("deform_groups", node.integer("deformable_groups", 1))
    if offsets is not None and height and width and offsets != 2 * deform_groups * height * width:
        raise Refused(f"attribute 'deform_groups' is {deform_groups}, and {offsets} offsets don't fit it")
    pairs = {name: node.integers(name, 2, [1, 1]) for name in ("stride", "dilation")}
    pairs["pad"] = _padding(node)
    settings = ", ".join(
        f"{name}_{axis} = {value}" for name, pair in pairs.items() for axis, value in zip("hw", pair, strict=True)
    )
    inputs = "input, weight, offset"
    if has_mask:
        inputs += f", {'bias' if node.has(4) else ''}, mask"
    return f"output = opgate.DeformConv2d <{settings}> ({inputs})"


def _padding(node: ForeignNode) -> list[int]:
    """Returns the padding of rows and columns. The node without a mask has four numbers, in an order that differs
    between projects unless they are equal."""
    try:
        return node.integers("padding", 2, [0, 0])
    except Refused as error:
        try:
            padding = node.integers("padding", 4)
        except Refused:
            raise error from None
        if len(set(padding)) > 1:
            raise Refused(f"attribute 'padding': expected four equal numbers, got {padding}") from None
        return padding[:2]


def _soft_nms(node: ForeignNode) -> str:
    """With offset 1 a box covers its last pixel: its sides are x2 - x1 + 1. Boxes whose second corner is one further
    have these sides without it."""
    methods = ("naive", "linear", "gaussian")
    method, offset = node.integer("method", 1), node.integer("offset", 0)
    if method not in range(3):
        raise Refused(f"attribute 'method': expected 0, 1 or 2, got {method}")
    if offset not in (0, 1):
        raise Refused(f"attribute 'offset': expected 0 or 1, got {offset}")
    names = {"iou_threshold": 0.3, "sigma": 0.5, "min_score": 0.001}
    settings = ", ".join(f"{name} = {float_text(node.number(name, default))}" for name, default in names.items())
    call = f'opgate.SoftNMS <{settings}, method = "{methods[method]}">'
    if not offset:
        return f"detections, indices = {call} (boxes, scores)"
    return " ".join(
        [
            "corner = Constant <value = float[4] {0.0, 0.0, 1.0, 1.0}> () whole = Add (boxes, corner)",
            f"moved, indices = {call} (whole, scores)",
            "corner_and_score = Constant <value = float[5] {0.0, 0.0, 1.0, 1.0, 0.0}> ()",
            "detections = Sub (moved, corner_and_score)",
        ]
    )


def _corner_pool(node: ForeignNode) -> str:
    modes = ("top", "bottom", "left", "right")
    mode = node.integer("mode")
    if mode not in range(4):
        raise Refused(f"attribute 'mode': expected 0 to 3, got {mode}")
    return f'y = opgate.CornerPool <mode = "{modes[mode]}"> (x)'


def _grid_sampler(node: ForeignNode) -> str:
    """The numbers are those of PyTorch's grid_sampler."""
    if node.opset < 16:
        raise Refused(f"the model has opset {node.opset} of ONNX, and GridSample came with opset 16")
    modes = ("bilinear", "nearest", "bicubic") if node.opset < 20 else ("linear", "nearest", "cubic")
    paddings = ("zeros", "border", "reflection")
    mode, padding = node.integer("interpolation_mode", 0), node.integer("padding_mode", 0)
    for name, number in (("interpolation_mode", mode), ("padding_mode", padding)):
        if number not in range(3):
            raise Refused(f"attribute '{name}': expected 0, 1 or 2, got {number}")
    corners = int(bool(node.integer("align_corners", 0)))
    settings = f'mode = "{modes[mode]}", padding_mode = "{paddings[padding]}", align_corners = {corners}'
    return f"output = GridSample <{settings}> (input, grid)"


def _names(*types: str) -> tuple[str, ...]:
    return tuple(f"{domain}::{op_type}" for domain in ("mmdeploy", "mmcv") for op_type in types)


_CONVOLUTION = ("stride", "padding", "dilation", "groups", "deform_groups", "deformable_groups")
REWRITES = (
    Foreign(
        names=_names("NMSRotated"),
        op="NMSRotated",
        inputs=("boxes", "scores"),
        outputs=("selected",),
        attributes=("iou_threshold", "score_threshold"),
        body=_nms_rotated,
        note="of boxes with equal scores the first one goes first; mmcv states no order",
    ),
    Foreign(
        names=_names("MMCVRoIAlignRotated", "RoIAlignRotated"),
        op="RoiAlignRotated",
        inputs=("input", "rois"),
        outputs=("output",),
        attributes=("output_height", "output_width", "spatial_scale", "sampling_ratio", "aligned", "clockwise"),
        body=_roi_align_rotated,
    ),
    Foreign(
        names=(
            *_names("MMCVModulatedDeformConv2d"),
            "*::ModulatedDeformableConv2dTRT",
            "*::ModulatedDeformableConv2dTRT2",
        ),
        op="DeformConv2d",
        inputs=("input", "offset", "mask", "weight", "bias?"),
        outputs=("output",),
        attributes=_CONVOLUTION,
        body=_deform_conv,
    ),
    Foreign(
        names=_names("MMCVDeformConv2d"),
        op="DeformConv2d",
        inputs=("input", "offset", "weight"),
        outputs=("output",),
        attributes=_CONVOLUTION,
        body=_deform_conv,
    ),
    Foreign(
        names=_names("SoftNonMaxSuppression", "SoftNMS"),
        op="SoftNMS",
        inputs=("boxes", "scores"),
        outputs=("detections", "indices"),
        attributes=("iou_threshold", "sigma", "min_score", "method", "offset"),
        body=_soft_nms,
    ),
    Foreign(
        names=_names("MMCVCornerPool", "CornerPool"),
        op="CornerPool",
        inputs=("x",),
        outputs=("y",),
        attributes=("mode",),
        body=_corner_pool,
    ),
    Foreign(
        names=_names("grid_sampler"),
        op="ai.onnx::GridSample",
        inputs=("input", "grid"),
        outputs=("output",),
        attributes=("interpolation_mode", "padding_mode", "align_corners"),
        body=_grid_sampler,
    ),
)
