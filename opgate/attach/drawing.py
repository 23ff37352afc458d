"""The models that draw the boxes of a detector on the picture that it got."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import onnx
from onnx import TensorProto, helper

from opgate.attach.folder import LIBRARY
from opgate.attach.nodes import OPS, Nodes

#: What is added to the name of a detector for the model that draws, and for the ensemble of both.
DRAW, PICTURE = "_draw", "_picture"
_ROWS: Mapping[str, tuple[str, str, int, Sequence[int | str]]] = {
    "boxes": ("TYPE_FP32", "1, -1, 4", TensorProto.FLOAT, [1, "k", 4]),
    "scores": ("TYPE_FP32", "1, -1", TensorProto.FLOAT, [1, "k"]),
    "labels": ("TYPE_INT32", "1, -1", TensorProto.INT32, [1, "k"]),
    "count": ("TYPE_INT32", "1, 1", TensorProto.INT32, [1, 1]),
}
_OPSET, _IR_VERSION = 17, 8


def models(name: str, labels: Sequence[str] | None) -> Mapping[str, tuple[onnx.ModelProto | None, str]]:
    """Returns the models beside a detector `name` by their own names: their graph, None for an ensemble, and their
    config."""
    return {
        f"{name}{DRAW}": (_draw(labels or ()), _draw_config(f"{name}{DRAW}")),
        f"{name}{PICTURE}": (None, _ensemble_config(name)),
    }


def _draw(labels: Sequence[str]) -> onnx.ModelProto:
    """data u8 [1, size] and one row of detections -> picture u8 [m]: a JPEG of the picture with the boxes on it."""
    nodes = Nodes(_OPSET, "draw/")
    rows = [nodes.add("Squeeze", [each, nodes.ints("batch", [0])], each) for each in ("data", *_ROWS)]
    nodes.add_op("DecodeImage", rows[:1], ["decoded"], "decode")
    attributes = {"names": "\n".join(labels)} if labels else {}
    nodes.add_op("DrawBoundingBoxes", ["decoded", *rows[1:]], ["drawn"], "boxes_drawn", **attributes)
    nodes.add_op("EncodeImage", ["drawn"], ["picture"], "encode")
    graph = helper.make_graph(
        nodes.nodes,
        "draw",
        [
            helper.make_tensor_value_info("data", TensorProto.UINT8, [1, "size"]),
            *(helper.make_tensor_value_info(each, dtype, shape) for each, (_, _, dtype, shape) in _ROWS.items()),
        ],
        [helper.make_tensor_value_info("picture", TensorProto.UINT8, ["m"])],
        list(nodes.constants.values()),
    )
    imports = [helper.make_opsetid("", _OPSET), helper.make_opsetid(OPS, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION, producer_name="opgate attach")


def _draw_config(name: str) -> str:
    lines = [
        "# Written by `opgate attach`: one picture and its detections, to the picture with boxes.",
        f"name: {json.dumps(name, ensure_ascii=False)}",
        'backend: "onnxruntime"',
        "max_batch_size: 0",
        'input { name: "data" data_type: TYPE_UINT8 dims: [ 1, -1 ] }',
        *(f'input {{ name: "{each}" data_type: {kind} dims: [ {dims} ] }}' for each, (kind, dims, *_) in _ROWS.items()),
        'output { name: "picture" data_type: TYPE_UINT8 dims: [ -1 ] }',
        f'model_operations {{ op_library_filename: "{LIBRARY}" }}',
    ]
    return "\n".join(lines) + "\n"


def _ensemble_config(name: str) -> str:
    def maps(kind: str, names: Sequence[str]) -> str:
        return " ".join(f'{kind}_map {{ key: "{each}" value: "{each}" }}' for each in names)

    first, second, own = (json.dumps(each, ensure_ascii=False) for each in (name, f"{name}{DRAW}", f"{name}{PICTURE}"))
    rows = list(_ROWS)
    return (
        "# Written by `opgate attach`: a picture to the same picture with its detections, as a JPEG.\n"
        f'name: {own}\nplatform: "ensemble"\nmax_batch_size: 0\n'
        'input { name: "data" data_type: TYPE_UINT8 dims: [ 1, -1 ] }\n'
        'output { name: "picture" data_type: TYPE_UINT8 dims: [ -1 ] }\n'
        "ensemble_scheduling {\n"
        f"  step {{ model_name: {first} model_version: -1 {maps('input', ['data'])} {maps('output', rows)} }}\n"
        f"  step {{ model_name: {second} model_version: -1 {maps('input', ['data', *rows])} "
        f"{maps('output', ['picture'])} }}\n}}\n"
    )
