"""Nodes of the ops in ONNX models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import onnx
from onnx import TensorProto

from ops_build.dtypes import DTYPES
from ops_build.table import Attribute, Op


def element_type(dtype: str) -> int:
    """A dtype as TensorProto numbers it."""
    number: int = TensorProto.DataType.Value(DTYPES[dtype].onnx)
    return number


def node_attributes(op: Op, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as a node carries them: a list of strings is one string, an element a line; a bool is 0 or 1."""
    declared = {attribute.name: attribute for attribute in op.attributes}
    return {name: _to_node(declared[name], value) for name, value in attributes.items()}


def _to_node(attribute: Attribute, value: Any) -> Any:
    if attribute.kind == "str" and attribute.list:
        return "\n".join(value)
    convert = {"bool": int, "float": float}.get(attribute.kind)
    if convert is None:
        return value
    return [convert(v) for v in value] if attribute.list else convert(value)


def attribute_of_node(attribute: Attribute, value: Any) -> Any:
    """The value of a node's attribute as the op's reference takes it; None stands for the default."""
    if value is None:
        return attribute.default
    if attribute.kind == "str" and attribute.list:
        return value.split("\n") if value else []
    if attribute.kind == "bool":
        return [bool(v) for v in value] if attribute.list else bool(value)
    return value


def bodies_of(model: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """All that holds nodes: the graph, the functions, and the graphs within nodes."""
    bodies: list[onnx.GraphProto | onnx.FunctionProto] = [model.graph, *model.functions]
    while bodies:
        body = bodies.pop()
        for node in body.node:
            for attribute in node.attribute:
                bodies.extend([attribute.g] if attribute.HasField("g") else attribute.graphs)
        yield body


def nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes of all bodies."""
    for body in bodies_of(model):
        yield from body.node
