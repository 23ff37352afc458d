"""Joins pre-processing, network and post-processing in one graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from opgate.attach.model import settings
from opgate.attach.model.nodes import OLDEST_OPSET, OPS, Nodes
from opgate.attach.model.post import Answer, Answers
from opgate.attach.model.report import AttachError
from opgate.attach.model.takes import BATCH, Takes
from opgate.ops_build.case import Array
from opgate.ops_build.onnx.nodes import graphs_of

#: How the names of added nodes begin.
PRE, POST, READ, TURN, WINDOW = "pre/", "post/", "read/", "turn/", "window/"
#: How names of the network begin that a served model uses itself.
NETWORK = "network/"
#: The status of each row before its settings are looked at.
STATUS = f"{PRE}status"
_TYPES = {
    "TYPE_FP16": TensorProto.FLOAT16,
    "TYPE_FP32": TensorProto.FLOAT,
    "TYPE_FP64": TensorProto.DOUBLE,
    "TYPE_INT32": TensorProto.INT32,
    "TYPE_INT64": TensorProto.INT64,
    "TYPE_UINT8": TensorProto.UINT8,
    "TYPE_BOOL": TensorProto.BOOL,
    "TYPE_STRING": TensorProto.STRING,
}
#: The oldest format in which a constant needs no input of its name.
_IR_VERSION = 8
#: The version of the standard operators where a file has none of them.
_OPSET = 17


def prepared(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy whose constants are no inputs, whose standard operators are new enough, and whose tensors have no
    name that a served model uses. Raises AttachError."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if not any(opset.domain in ("", "ai.onnx") for opset in copy.opset_import):  # it has operators of others alone
        copy.opset_import.append(helper.make_opsetid("", _OPSET))
    if opset_of(copy) < OLDEST_OPSET:
        try:
            copy = onnx.version_converter.convert_version(copy, 13)
        except RuntimeError as error:
            raise AttachError(f"its standard operators are of version {opset_of(model)}, too old: {error}") from None
    copy.ir_version = max(copy.ir_version, _IR_VERSION)
    initializers = {tensor.name for tensor in copy.graph.initializer}
    for value in [value for value in copy.graph.input if value.name in initializers]:
        copy.graph.input.remove(value)
    rename(copy, free_name)
    return copy


def opset_of(model: onnx.ModelProto) -> int:
    """Returns the version of the standard operators."""
    return max((opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")), default=OLDEST_OPSET)


def free_name(name: str) -> str:
    """Returns the name itself, or another if a served model has a tensor of that name."""
    taken = (
        "data", "ends", "geometry", "status", "boxes", "scores", "labels", "count", "keypoints", "embedding", "classes",
        "start", "end", "samples", "pitch", "words", "windows", "since",
        "score", "value", "masks", "mask_geometry", "quads", "texts", *settings.NAMES,
    )  # fmt: skip
    return f"{NETWORK}{name}" if name in taken or name.startswith((PRE, POST, READ, TURN, WINDOW)) else name


def rename(model: onnx.ModelProto, new: Callable[[str], str]) -> None:
    """Gives all nodes and tensors a new name, in all graphs. `new` also gets the empty name, of what is left out."""
    for graph in graphs_of(model):
        for node in graph.node:
            node.name = new(node.name)
            for names in (node.input, node.output):
                for place, name in enumerate(names):
                    names[place] = new(name)
        for entries in (graph.input, graph.output, graph.value_info, graph.initializer):
            for entry in entries:
                entry.name = new(entry.name)


def add_status(nodes: Nodes, x: str) -> None:
    """Adds STATUS: 0 for each row of x, of requests that are good once they are read."""
    rows = nodes.slice(nodes.add("Shape", [x], "shape"), 0, 0, 1, "rows")
    zero = helper.make_tensor("zero", TensorProto.INT32, [1], [0])
    nodes.add("ConstantOfShape", [rows], "good", to=STATUS, value=zero)


def joined(network: onnx.ModelProto, pre: Nodes, post: Nodes, answers: Answers, takes: Takes) -> onnx.ModelProto:
    """Returns the whole graph, from what a request has to the answers and the status."""
    outputs = [*answers.outputs, Answer(answers.status, "TYPE_INT32", (1,), scalar=True)]
    defaults = [
        helper.make_tensor(name, _TYPES[setting.datatype], [1, 1], [setting.default])
        for name, setting in post.settings.items()
    ]
    graph = helper.make_graph(
        [*pre.nodes, *network.graph.node, *post.nodes],
        network.graph.name or "network",
        [
            *takes.inputs,
            *(
                helper.make_tensor_value_info(name, _TYPES[setting.datatype], [f"{name}s", 1])
                for name, setting in post.settings.items()
            ),
        ],
        [helper.make_tensor_value_info(each.name, _TYPES[each.datatype], _shape(each, BATCH)) for each in outputs],
        [*pre.constants.values(), *network.graph.initializer, *post.constants.values(), *defaults],
        value_info=pre.shapes,
        sparse_initializer=list(network.graph.sparse_initializer),
    )
    imports = [opset for opset in network.opset_import if opset.domain != OPS]
    model = helper.make_model(
        graph,
        opset_imports=[*imports, helper.make_opsetid(OPS, 1)],
        ir_version=network.ir_version,
        producer_name="opgate attach",
        functions=list(network.functions),
    )
    model.metadata_props.extend(network.metadata_props)
    return model


def _shape(answer: Answer, batch: str) -> list[int | str]:
    sizes = [] if answer.scalar else [f"{answer.name}_{i}" if size < 0 else size for i, size in enumerate(answer.dims)]
    return [batch, *sizes]


def network_in(model: onnx.ModelProto, original: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the network of a joined graph alone, with the inputs and outputs of `original`, the prepared network."""
    alone = onnx.ModelProto()
    alone.CopyFrom(model)
    kept = [node for node in model.graph.node if not node.name.startswith((PRE, POST))]
    del alone.graph.node[:], alone.graph.input[:], alone.graph.output[:]
    alone.graph.node.extend(kept)
    alone.graph.input.extend(original.graph.input)
    alone.graph.output.extend(original.graph.output)
    return alone


def difference(first: ort.InferenceSession, second: ort.InferenceSession, rows: Sequence[Array]) -> tuple[bool, float]:
    """Runs two models, each with one input, on rows one by one. Returns whether all outputs are equal bit by bit, and
    the largest difference as a part of the greatest magnitude."""
    sessions = (first, second)
    equal, largest = True, 0.0
    for row in rows:
        results = [opened.run(None, {opened.get_inputs()[0].name: row}) for opened in sessions]
        for one, other in zip(*results, strict=True):
            if one.tobytes() == other.tobytes():
                continue
            equal = False
            if one.shape != other.shape:
                return False, float("inf")
            scale = float(np.abs(one).max(initial=0)) or 1.0
            largest = max(largest, float(np.abs(one.astype(np.float64) - other).max(initial=0)) / scale)
    return equal, largest
