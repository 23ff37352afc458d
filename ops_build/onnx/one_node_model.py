"""ONNX models of one node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from ops_build.case import Array, Case
from ops_build.onnx.nodes import element_type, node_attributes
from ops_build.table import Op

OPSET = 18
IR_VERSION = 10


@dataclass(frozen=True, slots=True)
class OneNodeModel:
    """`feeds` are the model's inputs by name."""

    model: onnx.ModelProto
    feeds: dict[str, Array]


class _Graph:
    """A graph under construction. bf16 tensors enter and leave as f32 through Cast nodes: runtimes' Python interfaces
    can't carry them."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.feeds: dict[str, Array] = {}

    def add_input(self, name: str, array: Array, dtype: str, static: bool) -> str:
        """Declares and feeds an input; returns the name that the node reads."""
        shape = list(array.shape) if static else [f"{name}_{axis}" for axis in range(array.ndim)]
        outside = "f32" if dtype == "bf16" else dtype
        self.feeds[name] = array.astype(np.float32) if dtype == "bf16" else array
        self.inputs.append(helper.make_tensor_value_info(name, element_type(outside), shape))
        if dtype != "bf16":
            return name
        self.nodes.append(helper.make_node("Cast", [name], [f"{name}_bf16"], to=TensorProto.BFLOAT16))
        return f"{name}_bf16"

    def add_output(self, name: str, written: str, dtype: str) -> None:
        """Declares output `name`, which the node writes as `written`."""
        if dtype == "bf16":
            self.nodes.append(helper.make_node("Cast", [written], [name], to=TensorProto.FLOAT))
        outside = "f32" if dtype == "bf16" else dtype
        self.outputs.append(helper.make_tensor_value_info(name, element_type(outside), None))


def one_node_model(op: Op, case: Case, types: Mapping[str, str], *, static: bool = True) -> OneNodeModel:
    """A model of one node of `op` for the case's inputs; absent optional inputs in the middle are "".

    With `static` the inputs' shapes are stated, otherwise only their ranks.
    """
    _check_names(op, case)
    graph = _Graph()
    node_inputs: list[str] = []
    for tensor in op.inputs:
        given = case.inputs.get(tensor.name)
        if given is None:
            node_inputs.append("")
            continue
        dtype = types.get(tensor.type, tensor.type)
        for index, value in enumerate(given if tensor.variadic else [given]):
            name = f"{tensor.name}_{index}" if tensor.variadic else tensor.name
            node_inputs.append(graph.add_input(name, np.asarray(value), dtype, static))
    while node_inputs and not node_inputs[-1]:
        node_inputs.pop()
    dtypes = [types.get(output.type, output.type) for output in op.outputs]
    names = [_output_name(op, output.name) for output in op.outputs]
    written = [f"{name}_bf16" if dtype == "bf16" else name for name, dtype in zip(names, dtypes, strict=True)]
    attributes = node_attributes(op, case.attributes)
    graph.nodes.append(helper.make_node(op.name, node_inputs, written, domain=op.domain, **attributes))
    for name, inside, dtype in zip(names, written, dtypes, strict=True):
        graph.add_output(name, inside, dtype)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(op.domain, op.since_version)]
    body = helper.make_graph(graph.nodes, op.name, graph.inputs, graph.outputs)
    model = helper.make_model(body, opset_imports=opsets, ir_version=IR_VERSION)
    return OneNodeModel(model, graph.feeds)


def _check_names(op: Op, case: Case) -> None:
    declared: dict[str, tuple[Mapping[str, Any], set[str]]] = {
        "input": (case.inputs, {tensor.name for tensor in op.inputs}),
        "attribute": (case.attributes, {attribute.name for attribute in op.attributes}),
    }
    for what, (given, known) in declared.items():
        for name in given:
            if name not in known:
                raise ValueError(f"the case gives {what} '{name}', {op.name} has: {', '.join(sorted(known)) or 'none'}")


def _output_name(op: Op, name: str) -> str:
    """An output may be called as an input is; in a graph the two need names of their own."""
    return f"{name}_out" if any(tensor.name == name for tensor in op.inputs) else name
