"""What a model tells about its tensors before it runs: constants, types, shapes, producers and consumers."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from opgate.ops_build.case import Array
from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.onnx.nodes import graphs_of

#: A shape: numbers, names, and None for unknown sizes.
Shape = Sequence[int | str | None]

_DTYPES = {TensorProto.DataType.Value(dtype.onnx): name for name, dtype in DTYPES.items()}


class Values:
    """The tensors of a model's graph and of the graphs in its nodes.

    `folder` holds the files of weights that are not in the model. Shapes come from onnx's shape inference, as far as it
    gets: an op that onnx doesn't know has outputs without a shape.
    """

    def __init__(self, model: onnx.ModelProto, folder: Path | None = None) -> None:
        self._folder = folder
        inferred = _inferred(model)
        graph = inferred.graph
        self._types = {value.name: value.type for value in (*graph.value_info, *graph.output, *graph.input)}
        # A caller may replace an initializer that is an input too, from IR version 4 on.
        replaceable = {value.name for value in graph.input} if model.ir_version >= 4 else set()
        self._tensors = {tensor.name: tensor for tensor in graph.initializer if tensor.name not in replaceable}
        # Two branches may give a name to different tensors. `inside` knows those of one branch.
        made: dict[str, list[NodeProto]] = {}
        self.consumers: dict[str, list[NodeProto]] = {}
        for body in graphs_of(model):
            for node in body.node:
                for output in node.output:
                    made.setdefault(output, []).append(node)
                for name in node.input:
                    self.consumers.setdefault(name, []).append(node)
        self.producers = {name: nodes[0] for name, nodes in made.items() if len(nodes) == 1}
        self.outputs = {value.name for value in graph.output}

    def inside(self, graph: onnx.GraphProto) -> Values:
        """Returns these tensors as the nodes of a graph in a node see them: with the constants of their own graph."""
        inner = copy(self)
        inner.producers = self.producers | {output: node for node in graph.node for output in node.output}
        inner._tensors = self._tensors | {tensor.name: tensor for tensor in graph.initializer}
        return inner

    def constant(self, name: str) -> Array | None:
        """Returns the value of a constant of the model, or None if the tensor is none."""
        if (tensor := self._tensors.get(name)) is not None:
            return self._array(tensor)
        producer = self.producers.get(name)
        if producer is None or producer.domain not in ("", "ai.onnx"):
            return None
        if producer.op_type == "Identity":
            return self.constant(producer.input[0])
        if producer.op_type != "Constant" or len(producer.attribute) != 1:
            return None
        attribute = producer.attribute[0]
        if attribute.name == "sparse_value":
            return None
        value = onnx.helper.get_attribute_value(attribute)
        return self._array(value) if isinstance(value, TensorProto) else _listed(attribute.name, value)

    def _array(self, tensor: TensorProto) -> Array:
        if uses_external_data(tensor):
            loaded = TensorProto()
            loaded.CopyFrom(tensor)
            load_external_data_for_tensor(loaded, str(self._folder or "."))
            tensor = loaded
        return numpy_helper.to_array(tensor)

    def shape(self, name: str) -> Shape | None:
        """Returns the shape of a tensor, or None if its rank is not known."""
        if (tensor := self._tensors.get(name)) is not None:
            return list(tensor.dims)
        known = self._types.get(name)
        if known is None or not known.tensor_type.HasField("shape"):
            value = self.constant(name)
            return None if value is None else list(value.shape)
        return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in known.tensor_type.shape.dim]

    def dtype(self, name: str) -> str | None:
        """Returns the dtype of a tensor, such as "f32", or None if it is not known."""
        if (tensor := self._tensors.get(name)) is not None:
            return _DTYPES.get(tensor.data_type)
        known = self._types.get(name)
        return None if known is None else _DTYPES.get(known.tensor_type.elem_type)


def _listed(kind: str, value: object) -> Array:
    dtype = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
    return np.array(value, dtype=dtype.get(kind, object))


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with what onnx's shape inference finds. A contradiction leaves the model as it is.

    A negative size, which Paddle's exporter writes, is an open dim, as it is for ONNX Runtime.
    """
    model = with_open_dims(model)
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return model


def with_open_dims(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a model in which an open dim has no size: the model itself, or a copy if one has a negative size."""
    graph = model.graph
    if not any(dim.dim_value < 0 for value in (*graph.input, *graph.output, *graph.value_info) for dim in _dims(value)):
        return model
    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    graph = opened.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in _dims(value):
            if dim.dim_value < 0:
                dim.Clear()
    return opened


def _dims(value: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    dims: Sequence[onnx.TensorShapeProto.Dimension] = value.type.tensor_type.shape.dim
    return dims
