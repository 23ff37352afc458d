"""The models that draw the boxes of a detector on the picture that it got, or the map of classes of a segmenter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import onnx
from onnx import TensorProto, helper

from opgate.attach.folder import LIBRARY, MADE
from opgate.attach.nodes import OPS, Nodes, Setting
from opgate.attach.painting import painted
from opgate.attach.post import Answers
from opgate.attach.report import AttachError

#: What is added to the name of a model for the model that draws, and for the ensemble of both.
DRAW, PICTURE = "_draw", "_picture"
#: By the name of an input of the model that draws: its type and dims in a config, and its type and shape in a graph.
Rows = Mapping[str, tuple[str, str, int, Sequence[int | str]]]
_BOXES: Rows = {
    "boxes": ("TYPE_FP32", "1, -1, 4", TensorProto.FLOAT, [1, "k", 4]),
    "scores": ("TYPE_FP32", "1, -1", TensorProto.FLOAT, [1, "k"]),
    "labels": ("TYPE_INT32", "1, -1", TensorProto.INT32, [1, "k"]),
    "count": ("TYPE_INT32", "1, 1", TensorProto.INT32, [1, 1]),
}
_OPSET, _IR_VERSION = 17, 8


def models(
    name: str, answers: Answers, labels: Sequence[str] | None, settings: Mapping[str, Setting]
) -> Mapping[str, tuple[onnx.ModelProto | None, str]]:
    """Returns the models beside a model `name` by their own names: their graph, None for an ensemble, and their config.
    `settings` are inputs of the model that a request may leave out.

    Raises AttachError for answers with neither boxes nor a map of classes."""
    names = {answer.name for answer in answers.outputs}
    if _BOXES.keys() <= names:
        rows = {**_BOXES, **_masks(answers)}
        graph, taken = _boxes(labels or (), rows, answers.masks), ["data", *rows]
    elif "classes" in names:
        (height, width) = next(answer.dims for answer in answers.outputs if answer.name == "classes")
        rows = {"classes": ("TYPE_UINT8", f"1, {height}, {width}", TensorProto.UINT8, [1, height, width])}
        graph, taken = _map(rows, height, width), list(rows)
    else:
        raise AttachError("--draw: the network gives neither boxes nor a map of classes")
    return {
        f"{name}{DRAW}": (graph, _draw_config(f"{name}{DRAW}", rows, taken)),
        f"{name}{PICTURE}": (None, _ensemble_config(name, list(rows), taken, settings)),
    }


def _map(rows: Rows, height: int, width: int) -> onnx.ModelProto:
    """classes u8 [1, height, width] -> picture u8 [m]: a grey PNG whose pixels are the numbers of the classes."""
    nodes = Nodes(_OPSET, "draw/")
    nodes.add_op(
        "EncodeImage", [nodes.reshape("classes", [height, width, 1], "map")], ["picture"], "encode", format="png"
    )
    return _graph(nodes, rows, [])


def _masks(answers: Answers) -> Rows:
    """Returns the inputs of the model that draws for masks and how they lie in the picture, none without masks."""
    dims = {answer.name: answer.dims for answer in answers.outputs if answer.name in answers.masks[:2]}
    types = {3: ("TYPE_UINT8", TensorProto.UINT8), 1: ("TYPE_FP32", TensorProto.FLOAT)}
    return {
        name: (types[len(shape)][0], ", ".join(map(str, (1, *shape))), types[len(shape)][1], [1, *shape])
        for name, shape in dims.items()
    }


def _boxes(labels: Sequence[str], rows: Rows, masks: Sequence[str]) -> onnx.ModelProto:
    """data u8 [1, size] and one row of detections -> picture u8 [m]: a JPEG of the picture with the boxes on it, and
    the masks."""
    nodes = Nodes(_OPSET, "draw/")
    row = {each: nodes.add("Squeeze", [each, nodes.ints("batch", [0])], each) for each in ("data", *rows)}
    nodes.add_op("DecodeImage", [row["data"]], ["decoded"], "decode")
    picture = "decoded"
    if masks:
        picture = painted(nodes, picture, row["labels"], row["count"], [row[each] for each in masks])
    attributes = {"names": "\n".join(labels)} if labels else {}
    taken = [picture, *(row[each] for each in _BOXES)]
    nodes.add_op("DrawBoundingBoxes", taken, ["drawn"], "boxes_drawn", **attributes)
    nodes.add_op("EncodeImage", ["drawn"], ["picture"], "encode")
    return _graph(nodes, rows, [helper.make_tensor_value_info("data", TensorProto.UINT8, [1, "size"])])


def _graph(nodes: Nodes, rows: Rows, data: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
    stated = [helper.make_tensor_value_info(each, dtype, shape) for each, (_, _, dtype, shape) in rows.items()]
    picture = helper.make_tensor_value_info("picture", TensorProto.UINT8, ["m"])
    graph = helper.make_graph(nodes.nodes, "draw", [*data, *stated], [picture], list(nodes.constants.values()))
    imports = [helper.make_opsetid("", _OPSET), helper.make_opsetid(OPS, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION, producer_name="opgate attach")


def _draw_config(name: str, rows: Rows, taken: Sequence[str]) -> str:
    data = ['input { name: "data" data_type: TYPE_UINT8 dims: [ 1, -1 ] }'] if "data" in taken else []
    lines = [
        f"{MADE}: one answer, and the picture that it is of, to a picture.",
        f"name: {json.dumps(name, ensure_ascii=False)}",
        'backend: "onnxruntime"',
        "max_batch_size: 0",
        *data,
        *(f'input {{ name: "{each}" data_type: {kind} dims: [ {dims} ] }}' for each, (kind, dims, *_) in rows.items()),
        'output { name: "picture" data_type: TYPE_UINT8 dims: [ -1 ] }',
        f'model_operations {{ op_library_filename: "{LIBRARY}" }}',
    ]
    return "\n".join(lines) + "\n"


def _ensemble_config(name: str, rows: Sequence[str], taken: Sequence[str], settings: Mapping[str, Setting]) -> str:
    def maps(kind: str, names: Sequence[str]) -> str:
        return " ".join(f'{kind}_map {{ key: "{each}" value: "{each}" }}' for each in names)

    more = "".join(
        f'input {{ name: "{each}" data_type: {setting.datatype} dims: [ 1, 1 ] optional: true }}\n'
        for each, setting in settings.items()
    )
    first, second, own = (json.dumps(each, ensure_ascii=False) for each in (name, f"{name}{DRAW}", f"{name}{PICTURE}"))
    return (
        f"{MADE}: a picture to a picture of what was found in it.\n"
        f'name: {own}\nplatform: "ensemble"\nmax_batch_size: 0\n'
        'input { name: "data" data_type: TYPE_UINT8 dims: [ 1, -1 ] }\n'
        f"{more}"
        'output { name: "picture" data_type: TYPE_UINT8 dims: [ -1 ] }\n'
        "ensemble_scheduling {\n"
        f"  step {{ model_name: {first} model_version: -1 {maps('input', ['data', *settings])} "
        f"{maps('output', rows)} }}\n"
        f"  step {{ model_name: {second} model_version: -1 {maps('input', taken)} "
        f"{maps('output', ['picture'])} }}\n}}\n"
    )
