"""Creates ONNX models that consist of one node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from opgate.ops_build.case import Array, Case
from opgate.ops_build.onnx.nodes import element_type, node_attributes
from opgate.ops_build.op_table import Op

OPSET = 18
IR_VERSION = 8  # that of ONNX 1.13, which brought the opset


@dataclass(frozen=True, slots=True)
class OneNodeModel:
    """A model and `feeds`, the values of its inputs by name."""

    model: onnx.ModelProto
    feeds: dict[str, Array]


class _Graph:
    """A graph under construction. bf16 tensors enter and leave it as f32, through Cast nodes, because the Python
    interfaces of runtimes don't support bf16."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.between: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.feeds: dict[str, Array] = {}

    def add_input(self, name: str, array: Array, dtype: str, *, static: bool, constant: bool) -> str:
        """Declares an input of the graph and sets its feed, or adds a constant. Returns the name of the tensor that the
        node reads."""
        shape = list(array.shape) if static else [f"{name}_{axis}" for axis in range(array.ndim)]
        graph_dtype = "f32" if dtype == "bf16" else dtype
        value = array.astype(np.float32) if dtype == "bf16" else array
        if constant:
            self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name))
        else:
            self.feeds[name] = value
            self.inputs.append(helper.make_tensor_value_info(name, element_type(graph_dtype), shape))
        if dtype != "bf16":
            return name
        self.nodes.append(helper.make_node("Cast", [name], [f"{name}_bf16"], to=TensorProto.BFLOAT16))
        return f"{name}_bf16"

    def add_output(self, name: str, written: str, dtype: str) -> None:
        """Declares the output `name` of the graph. The node writes the tensor `written`."""
        if dtype == "bf16":
            self.nodes.append(helper.make_node("Cast", [written], [name], to=TensorProto.FLOAT))
            # ONNX Runtime before 1.24 finds no type where it asks for no shapes, see registration.cpp.
            self.between.append(helper.make_tensor_value_info(written, TensorProto.BFLOAT16, None))
        graph_dtype = "f32" if dtype == "bf16" else dtype
        self.outputs.append(helper.make_tensor_value_info(name, element_type(graph_dtype), None))


def one_node_model(
    op: Op, case: Case, types: Mapping[str, str], *, static: bool = True, constants: bool = False
) -> OneNodeModel:
    """Returns a model with one node of `op` that has the inputs and attributes of `case`.

    An absent optional input in the middle is "". If `static` is set, the model states the shapes of its inputs,
    otherwise only their ranks. If `constants` is set, all inputs but the first are constants of the model.
    """
    _check_names(op, case)
    graph = _Graph()
    node_inputs: list[str] = []
    for tensor in op.inputs:
        case_input = case.inputs.get(tensor.name)
        if case_input is None:
            node_inputs.append("")
            continue
        dtype = types.get(tensor.type, tensor.type)
        for index, value in enumerate(case_input if tensor.variadic else [case_input]):
            name = f"{tensor.name}_{index}" if tensor.variadic else tensor.name
            constant = constants and bool(node_inputs)
            node_inputs.append(graph.add_input(name, np.asarray(value), dtype, static=static, constant=constant))
    while node_inputs and not node_inputs[-1]:
        node_inputs.pop()
    dtypes = [types.get(output.type, output.type) for output in op.outputs]
    names = [_output_name(op, output.name) for output in op.outputs]
    written = [f"{name}_bf16" if dtype == "bf16" else name for name, dtype in zip(names, dtypes, strict=True)]
    attributes = node_attributes(op, case.attributes)
    graph.nodes.append(helper.make_node(op.name, node_inputs, written, domain=op.domain, **attributes))
    for name, written_name, dtype in zip(names, written, dtypes, strict=True):
        graph.add_output(name, written_name, dtype)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(op.domain, op.since_version)]
    body = helper.make_graph(
        graph.nodes, op.name, graph.inputs, graph.outputs, graph.constants, value_info=graph.between
    )
    model = helper.make_model(body, opset_imports=opsets, ir_version=IR_VERSION)
    return OneNodeModel(model, graph.feeds)


def _check_names(op: Op, case: Case) -> None:
    declared: dict[str, tuple[Mapping[str, Any], set[str]]] = {
        "input": (case.inputs, {tensor.name for tensor in op.inputs}),
        "attribute": (case.attributes, {attribute.name for attribute in op.attributes}),
    }
    for kind, (values, known) in declared.items():
        for name in values:
            if name not in known:
                raise ValueError(f"the case gives {kind} '{name}', {op.name} has: {', '.join(sorted(known)) or 'none'}")


def _output_name(op: Op, name: str) -> str:
    """Returns the name of an output in the graph. An output and an input of an op may have the same name, but not in a
    graph."""
    return f"{name}_out" if any(tensor.name == name for tensor in op.inputs) else name
