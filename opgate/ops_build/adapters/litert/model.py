"""Creates LiteRT models that consist of one custom node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from flatbuffers import flexbuffers

from opgate.ops_build.adapters.tensorflow.names import type_of
from opgate.ops_build.case import Array, Case
from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.op_table import Op

#: The version of the format that LiteRT reads.
SCHEMA_VERSION = 3
IDENTIFIER = b"TFL3"


@dataclass(frozen=True, slots=True)
class OneNodeModel:
    """A model, and `feeds`, the values of its inputs in their order."""

    model: bytes
    feeds: list[Array]


class _Graph:
    """A graph under construction."""

    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self.buffers: list[Any] = [schema.BufferT()]  # the first one is empty
        self.inputs: list[int] = []
        self.feeds: list[Array] = []

    def add_tensor(self, name: str, dtype: str, shape: tuple[int, ...] | None) -> int:
        """Adds a tensor without a value, and returns its number. A shape of None is not known."""
        tensor = schema.TensorT()
        tensor.name, tensor.type = name, getattr(schema.TensorType, DTYPES[dtype].litert)
        tensor.buffer, tensor.shape = 0, list(shape or ())
        tensor.hasRank = shape is not None
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def add_input(self, name: str, array: Array, dtype: str, *, constant: bool) -> int:
        """Adds an input of the model, or a constant. Returns its number among the tensors."""
        number = self.add_tensor(name, dtype, array.shape)
        if not constant:
            self.inputs.append(number)
            self.feeds.append(array)
            return number
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        self.buffers.append(buffer)
        self.tensors[number].buffer = len(self.buffers) - 1
        return number


def one_node_model(op: Op, case: Case, types: Mapping[str, str], *, constants: bool = False) -> OneNodeModel:
    """Returns a model with one node of `op` that has the inputs and attributes of `case`.

    An absent optional input is tensor -1. If `constants` is set, all inputs but the first are constants of the model.
    """
    graph = _Graph()
    node = schema.OperatorT()
    node.inputs, node.opcodeIndex = [], 0
    for tensor in op.inputs:
        value = case.inputs.get(tensor.name)
        dtype = types.get(tensor.type, tensor.type)
        if value is None:
            node.inputs.append(-1)
            continue
        for one in value if tensor.variadic else [value]:
            constant = constants and bool(node.inputs)
            node.inputs.append(graph.add_input(tensor.name, np.asarray(one), dtype, constant=constant))
    node.outputs = [graph.add_tensor(out.name, types.get(out.type, out.type), None) for out in op.outputs]
    node.customOptions = np.frombuffer(flexbuffers.Dumps(_plain(case.attributes)), np.uint8)
    subgraph = schema.SubGraphT()
    subgraph.tensors, subgraph.operators = graph.tensors, [node]
    subgraph.inputs, subgraph.outputs = graph.inputs, node.outputs
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.CUSTOM
    code.customCode, code.version = type_of(op), 1
    model = schema.ModelT()
    model.version, model.operatorCodes = SCHEMA_VERSION, [code]
    model.subgraphs, model.buffers = [subgraph], graph.buffers
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=IDENTIFIER)
    return OneNodeModel(bytes(builder.Output()), graph.feeds)


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values as Python's own types, which FlexBuffers take."""
    return {
        name: value.tolist() if isinstance(value, (np.generic, np.ndarray)) else _list(value)
        for name, value in attributes.items()
    }


def _list(value: Any) -> Any:
    return [_list(element) for element in value] if isinstance(value, (list, tuple)) else value
