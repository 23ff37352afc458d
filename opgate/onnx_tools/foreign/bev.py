"""Bird's-eye views: the bev_pool_v2 of BEVDet, mmdeploy and BEVFormer_tensorrt."""

from __future__ import annotations

from opgate.onnx_tools.foreign.node import Foreign, ForeignNode, Refused, cast
from opgate.onnx_tools.rewrite_text import squeeze, unsqueeze

_RANKS = ("ranks_depth", "ranks_feat", "ranks_bev", "interval_starts", "interval_lengths")


def _bev_pool_v2(node: ForeignNode) -> str:
    """The node has depth [cams, d, h, w], feat [cams, h, w, c] and one layer of cells: its result is [1, height, width,
    c]. The op has an axis for pictures in front, and one for layers."""
    for index, name in enumerate(("depth", "feat")):
        rank = node.rank(index)
        if rank not in (None, 4):
            raise Refused(
                f"input {index} ({name}): expected 4 axes, got {rank}, and what the node gives then is not known"
            )
    if node.integer("output_z", 1) != 1:
        raise Refused(f"attribute 'output_z': expected 1, got {node.integer('output_z')}")
    height, width = (_extent(node, name) for name in ("height", "width"))
    lines = [unsqueeze("depths", "depth", [0], node.opset), unsqueeze("feats", "feat", [0], node.opset)]
    ranks = []
    for index, name in enumerate(_RANKS, start=2):
        is_i32 = node.dtype(index) == "i32"
        ranks.append(name if is_i32 else f"{name}_i32")
        lines += [] if is_i32 else [cast(f"{name}_i32", name, "i32")]
    inputs = ", ".join(["depths", "feats", *ranks])
    lines.append(f"cells = opgate.BevPoolV2 <out_height = {height}, out_width = {width}> ({inputs})")
    return " ".join([*lines, squeeze("bev", "cells", [1], node.opset)])


def _extent(node: ForeignNode, side: str) -> int:
    """Returns out_height or out_width. Some exports call them output_height and output_width."""
    try:
        return node.integer(f"out_{side}")
    except Refused as error:
        try:
            return node.integer(f"output_{side}")
        except Refused:
            raise error from None


REWRITES = (
    Foreign(
        names=("mmdeploy::bev_pool_v2", "bev::bev_pool_v2", "*::BEVPoolV2TRT", "*::BEVPoolV2TRT2"),
        op="BevPoolV2",
        inputs=("depth", "feat", *_RANKS),
        outputs=("bev",),
        attributes=("out_height", "out_width", "output_height", "output_width", "output_z"),
        body=_bev_pool_v2,
    ),
)
