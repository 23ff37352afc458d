"""The models that draw boxes, polygons and texts on the picture that they were found in, or a map of classes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import onnx
from onnx import TensorProto, helper

from opgate.attach.model.folder import DRAW, LIBRARY, MADE, PICTURE
from opgate.attach.model.nodes import OPS, Nodes, Setting
from opgate.attach.model.post import Answers
from opgate.attach.model.report import AttachError
from opgate.attach.pictures.painting import painted

#: By the name of an input of the model that draws: its type and dims in a config, and its type and shape in a graph.
Rows = Mapping[str, tuple[str, str, int, Sequence[int | str]]]
#: The outputs that belong to boxes and to polygons, in the order in which DrawBoundingBoxes and DrawPolygons take them.
_BOXES = ("boxes", "scores", "labels", "count")
_POLYGONS = ("quads", "scores", "labels", "texts", "count")
_TYPES = {"TYPE_FP32": TensorProto.FLOAT, "TYPE_INT32": TensorProto.INT32, "TYPE_UINT8": TensorProto.UINT8}
_OPSET, _IR_VERSION = 17, 8


def models(
    name: str, answers: Answers, labels: Sequence[str] | None, settings: Mapping[str, Setting]
) -> Mapping[str, tuple[onnx.ModelProto | None, str]]:
    """Returns the models beside a model `name` by their own names: their graph, None for an ensemble, and their config.
    `settings` are inputs of the model that a request may leave out.

    Raises AttachError for answers with neither boxes, polygons nor a map of classes."""
    names = {answer.name for answer in answers.outputs}
    if "boxes" in names:
        rows = _rows(answers, [*_BOXES, *answers.masks[:2]])
        graph, taken = _boxes(labels or (), rows, answers.masks), ["data", *rows]
    elif "quads" in names:
        rows = _rows(answers, _POLYGONS)
        graph, taken = _polygons(labels or (), rows), ["data", *rows]
    elif "classes" in names:
        rows = _rows(answers, ["classes"])
        graph, taken = _map(rows), list(rows)
    else:
        raise AttachError("--draw: the network gives neither boxes, polygons nor a map of classes")
    return {
        f"{name}{DRAW}": (graph, _draw_config(f"{name}{DRAW}", rows, taken)),
        f"{name}{PICTURE}": (None, _ensemble_config(name, list(rows), taken, settings)),
    }


def _rows(answers: Answers, names: Sequence[str]) -> Rows:
    """Returns the inputs of the model that draws for those of the outputs that are there."""
    outputs = {answer.name: answer for answer in answers.outputs}
    rows = dict[str, tuple[str, str, int, Sequence[int | str]]]()
    for name in names:
        if name in outputs:
            datatype, dims = outputs[name].datatype, (1, *outputs[name].dims)
            shape = [f"{name}_{i}" if size == -1 else size for i, size in enumerate(dims)]
            rows[name] = (datatype, ", ".join(map(str, dims)), _TYPES[datatype], shape)
    return rows


def _map(rows: Rows) -> onnx.ModelProto:
    """classes u8 [1, height, width] -> picture u8 [m]: a grey PNG whose pixels are the numbers of the classes."""
    nodes = Nodes(_OPSET, "draw/")
    _, height, width = rows["classes"][3]
    grey = nodes.reshape("classes", [int(height), int(width), 1], "map")
    nodes.add_op("EncodeImage", [grey], ["picture"], "encode", format="png")
    return _graph(nodes, rows, [])


def _polygons(labels: Sequence[str], rows: Rows) -> onnx.ModelProto:
    """data u8 [1, size] and one row of polygons -> picture u8 [m]: a JPEG of the picture with the polygons on it, and
    their labels or texts."""
    nodes = Nodes(_OPSET, "draw/")
    row = {each: nodes.add("Squeeze", [each, nodes.ints("batch", [0])], each) for each in ("data", *rows)}
    nodes.add_op("DecodeImage", [row["data"]], ["decoded"], "decode")
    attributes = {"names": "\n".join(labels)} if labels else {}
    taken = ["decoded", *(row.get(each, "") for each in _POLYGONS)]
    nodes.add_op("DrawPolygons", taken, ["drawn"], "polygons_drawn", **attributes)
    nodes.add_op("EncodeImage", ["drawn"], ["picture"], "encode")
    return _graph(nodes, rows, [helper.make_tensor_value_info("data", TensorProto.UINT8, [1, "size"])])


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
