"""Makes the ONNX graphs of the model repository: preprocessing, network, postprocessing, and all three in one file."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import torch
from onnx import TensorProto
from torch import nn

from models.digit_detector.dataset import CLASSES, INPUT_SIZE
from models.digit_detector.network import STRIDES, ConvNormMish, DigitNetwork, Head, Residual, cell_centres
from models.graph_builder import DOMAIN, GraphBuilder, TensorSpec

ANCHORS = sum((INPUT_SIZE // stride) ** 2 for stride in STRIDES)
MAX_DETECTIONS = 100
NAMES = tuple(str(digit) for digit in range(CLASSES))

_DATA: TensorSpec = ("data", TensorProto.UINT8, ["total"])
_ENDS: TensorSpec = ("ends", TensorProto.INT32, ["n"])
_IMAGE: TensorSpec = ("image", TensorProto.FLOAT, ["n", 3, INPUT_SIZE, INPUT_SIZE])
_GEOMETRY: TensorSpec = ("geometry", TensorProto.FLOAT, ["n", 6])
_STATUS: TensorSpec = ("status", TensorProto.INT32, ["n"])
_HEAD: TensorSpec = ("head", TensorProto.FLOAT, ["n", 4 + CLASSES, ANCHORS])
_DETECTIONS: tuple[TensorSpec, ...] = (
    ("boxes", TensorProto.FLOAT, ["n", MAX_DETECTIONS, 4]),
    ("scores", TensorProto.FLOAT, ["n", MAX_DETECTIONS]),
    ("labels", TensorProto.INT32, ["n", MAX_DETECTIONS]),
    ("count", TensorProto.INT32, ["n"]),
)


def all_graphs(network: DigitNetwork) -> Mapping[str, onnx.ModelProto]:
    """Returns the models that have a graph, by their name in the repository."""
    return {
        "digit_preprocess": digit_preprocess(),
        "digit_network": digit_network(network),
        "digit_postprocess": digit_postprocess(),
        "digit_detector": digit_detector(network),
        "draw_detections": draw_detections(),
    }


def digit_preprocess() -> onnx.ModelProto:
    """data u8 (total,), ends i32 (n,) -> image f32 (n, 3, 320, 320), geometry f32 (n, 6), status i32 (n,)."""
    graph = GraphBuilder()
    _add_preprocess(graph)
    return graph.model("digit_preprocess", [_DATA, _ENDS], [_IMAGE, _GEOMETRY, _STATUS])


def digit_network(network: DigitNetwork) -> onnx.ModelProto:
    """image f32 (n, 3, 320, 320) -> head f32 (n, 14, 2000)."""
    graph = GraphBuilder()
    _add_network(graph, network)
    return graph.model("digit_network", [_IMAGE], [_HEAD])


def digit_postprocess() -> onnx.ModelProto:
    """head f32 (n, 14, 2000), geometry f32 (n, 6) -> boxes, scores, labels, count of 100 detections a picture."""
    graph = GraphBuilder()
    _add_postprocess(graph)
    return graph.model("digit_postprocess", [_HEAD, _GEOMETRY], _DETECTIONS)


def digit_detector(network: DigitNetwork) -> onnx.ModelProto:
    """data u8 (total,), ends i32 (n,) -> boxes, scores, labels, count, status: encoded pictures to detections."""
    graph = GraphBuilder()
    _add_preprocess(graph)
    _add_network(graph, network)
    _add_postprocess(graph)
    return graph.model("digit_detector", [_DATA, _ENDS], [*_DETECTIONS, _STATUS])


def draw_detections() -> onnx.ModelProto:
    """data u8 (1, size) and one row of detections -> picture u8 (m,): a JPEG of the picture with the boxes on it."""
    graph = GraphBuilder()
    axis = graph.constant("batch_axis", np.array([0], np.int64))
    rows = ("data", "boxes", "scores", "labels", "count")
    data, *detections = [graph.add("Squeeze", [row, axis], f"{row}_row") for row in rows]
    decoded = graph.add("DecodeImage", [data], "decoded", domain=DOMAIN)
    drawn = graph.add("DrawBoundingBoxes", [decoded, *detections], "drawn", domain=DOMAIN, names="\n".join(NAMES))
    graph.add("EncodeImage", [drawn], "picture", domain=DOMAIN)
    inputs: list[TensorSpec] = [
        ("data", TensorProto.UINT8, [1, "size"]),
        ("boxes", TensorProto.FLOAT, [1, "k", 4]),
        ("scores", TensorProto.FLOAT, [1, "k"]),
        ("labels", TensorProto.INT32, [1, "k"]),
        ("count", TensorProto.INT32, [1, 1]),
    ]
    return graph.model("draw_detections", inputs, [("picture", TensorProto.UINT8, ["m"])])


def _add_preprocess(graph: GraphBuilder) -> None:
    outputs = ["image", "geometry", "status"]
    graph.add("ImagePreprocess", ["data", "ends"], outputs, domain=DOMAIN, height=INPUT_SIZE, width=INPUT_SIZE)


def _add_postprocess(graph: GraphBuilder) -> None:
    outputs = [name for name, *_ in _DETECTIONS]
    graph.add("DetectionPostprocess", ["head", "geometry"], outputs, domain=DOMAIN, max_detections=MAX_DETECTIONS)


def _add_network(graph: GraphBuilder, network: DigitNetwork) -> None:
    """image -> head: the convolutions with their normalization folded in, then the decoding of the boxes."""
    x = "image"
    for name in ("stem", "down4", "stage4", "down8", "stage8", "down16", "stage16"):
        x = _add_stage(graph, name, x, network.get_submodule(name))
        if name == "stage8":
            map8 = x
    map16 = _add_stage(graph, "lateral", x, network.lateral)
    scales = graph.constant("upsampled.scales", np.array([1, 1, 2, 2], np.float32))
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    upsampled = graph.add("Resize", [map16, "", scales], "upsampled", **attributes)
    joined = graph.add("Concat", [map8, upsampled], "joined", axis=1)
    map8 = _add_stage(graph, "merge8", _add_stage(graph, "fuse", joined, network.fuse), network.merge8)
    maps = [
        _add_head(graph, f"heads.{level}", features, head)
        for level, (features, head) in enumerate(zip((map8, map16), network.heads, strict=True))
    ]
    distances = graph.add("Concat", [boxes for boxes, _ in maps], "log_distances", axis=2)
    logits = graph.add("Concat", [classes for _, classes in maps], "logits", axis=2)
    _add_decoding(graph, distances, logits)


def _add_decoding(graph: GraphBuilder, log_distances: str, logits: str) -> None:
    """Adds the decoding of boxes: the logarithms of the distances from the centre of a cell to the sides of a box, in
    strides, become the centre and the size of the box, in pixels."""
    sides = [INPUT_SIZE // stride for stride in STRIDES]
    centres = torch.cat([cell_centres(side, side, stride) for side, stride in zip(sides, STRIDES, strict=True)])
    strides = np.repeat(STRIDES, [side**2 for side in sides]).astype(np.float32)
    in_strides = graph.add("Exp", [log_distances], "distances_in_strides")
    distances = graph.add("Mul", [in_strides, graph.constant("strides", strides)], "distances")
    graph.add("Split", [distances], ["left_top", "right_bottom"], axis=1, num_outputs=2)
    size = graph.add("Add", ["left_top", "right_bottom"], "size")
    skew = graph.add("Sub", ["right_bottom", "left_top"], "skew")
    offset = graph.add("Mul", [skew, graph.constant("half", np.array(0.5, np.float32))], "offset")
    centre = graph.add("Add", [offset, graph.constant("cell_centres", centres.numpy().T[None])], "centre")
    probabilities = graph.add("Sigmoid", [logits], "probabilities")
    graph.add("Concat", [centre, size, probabilities], "head", axis=1)


def _add_head(graph: GraphBuilder, name: str, x: str, head: nn.Module) -> tuple[str, str]:
    """Adds the two branches of one head. Returns the names of their outputs, (n, 4, cells) and (n, 10, cells)."""
    assert isinstance(head, Head)
    flat = []
    for branch, last, channels in (("box", head.box_out, 4), ("label", head.label_out, CLASSES)):
        features = _add_stage(graph, f"{name}.{branch}", x, head.get_submodule(branch))
        grid = _add_convolution(graph, f"{name}.{branch}_out", features, last, last.weight, last.bias)
        shape = graph.constant(f"cells.{channels}", np.array([0, channels, -1], np.int64))
        flat.append(graph.add("Reshape", [grid, shape], f"{name}.{branch}_cells"))
    return flat[0], flat[1]


def _add_stage(graph: GraphBuilder, name: str, x: str, module: nn.Module) -> str:
    """Adds one part of the network. Returns the name of its output."""
    if isinstance(module, nn.Sequential):
        for index, part in enumerate(module):
            x = _add_stage(graph, f"{name}.{index}", x, part)
        return x
    if isinstance(module, Residual):
        inner = _add_stage(graph, f"{name}.reduce", x, module.reduce)
        return graph.add("Add", [x, _add_stage(graph, f"{name}.expand", inner, module.expand)], f"{name}.sum")
    assert isinstance(module, ConvNormMish)
    convolved = _add_convolution(graph, f"{name}.conv", x, module.conv, *_folded(module))
    return graph.add("Mish", [convolved], f"{name}.mish", domain=DOMAIN)


def _folded(module: ConvNormMish) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns weight and bias of the convolution with its batch normalization folded in."""
    norm = module.norm
    assert norm.running_mean is not None and norm.running_var is not None
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    return module.conv.weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale


def _add_convolution(
    graph: GraphBuilder, name: str, x: str, conv: nn.Conv2d, weight: torch.Tensor, bias: torch.Tensor | None
) -> str:
    assert bias is not None
    inputs = [
        x,
        graph.constant(f"{name}.weight", weight.detach().numpy()),
        graph.constant(f"{name}.bias", bias.detach().numpy()),
    ]
    pad = int(conv.padding[0])
    return graph.add(
        "Conv", inputs, name, kernel_shape=conv.kernel_size, strides=conv.stride, pads=(pad, pad, pad, pad)
    )
