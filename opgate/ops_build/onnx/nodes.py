"""Reads and writes the nodes of ops in ONNX models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx
from onnx import TensorProto

from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.op_table import Attribute, Op


def element_type(dtype: str) -> int:
    """Returns the number of a dtype in TensorProto."""
    number: int = TensorProto.DataType.Value(DTYPES[dtype].onnx)
    return number


def node_attributes(op: Op, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Converts attributes to the form in a node.

    There a list of strings is one string with one element per line, and a bool is 0 or 1. Raises ValueError for a list
    of strings that this form can't express.
    """
    declared = {attribute.name: attribute for attribute in op.attributes}
    try:
        return {name: _to_node(declared[name], value) for name, value in attributes.items()}
    except ValueError as error:
        raise ValueError(f"{op.domain}::{op.name}: {error}") from None


def _to_node(attribute: Attribute, value: Any) -> Any:
    if attribute.kind == "str" and attribute.list:
        attribute.check(value)
        if list(value) == [""]:
            raise ValueError(
                f"attribute '{attribute.name}': expected another list than [''], because a node can't tell it from an "
                "empty list"
            )
        return "\n".join(value)
    convert = {"bool": int, "float": float}.get(attribute.kind)
    if convert is None:
        return value
    return [convert(v) for v in value] if attribute.list else convert(value)


def attribute_of_node(attribute: Attribute, value: Any) -> Any:
    """Converts the value of a node's attribute to the form that the op's reference gets. None becomes the default."""
    if value is None:
        return attribute.default
    if attribute.kind == "str" and attribute.list:
        return value.split("\n") if value else []
    if attribute.kind == "bool":
        return [bool(v) for v in value] if attribute.list else bool(value)
    return value


#: The ops of these domains come with ONNX Runtime.
OF_ONNX_RUNTIME = frozenset((
    "", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft",
    "com.microsoft.nchwc", "com.ms.internal.nhwc", "org.pytorch.aten",
))  # fmt: skip


def is_standard(node: onnx.NodeProto) -> bool:
    """Returns whether a node is an operator that ONNX defines. Ops that schema.register has added are not."""
    return node.domain in ("", "ai.onnx", "ai.onnx.ml") and onnx.defs.has(
        node.op_type, "" if node.domain == "ai.onnx" else node.domain
    )


def bodies_of(model: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """Yields everything that contains nodes: the graph, the functions, and the graphs in attributes of nodes."""
    return _with_inner([model.graph, *model.functions])


def graphs_of(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Yields the graph and the graphs in attributes of its nodes. They share their names, as those in functions
    don't."""
    return (body for body in _with_inner([model.graph]) if isinstance(body, onnx.GraphProto))


def _with_inner(
    bodies: list[onnx.GraphProto | onnx.FunctionProto],
) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    while bodies:
        body = bodies.pop()
        for node in body.node:
            for attribute in node.attribute:
                bodies.extend([attribute.g] if attribute.HasField("g") else attribute.graphs)
        yield body


def nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yields all nodes of a model, also those in functions and in attributes."""
    for body in bodies_of(model):
        yield from body.node


def op_counts(model: onnx.ModelProto, ops: Iterable[Op]) -> list[str]:
    """Returns a line of a report for each op that a model has: its name and the number of its nodes."""
    known = {(op.domain, op.name) for op in ops}
    counts = Counter(f"{n.domain}::{n.op_type}" for n in nodes_of(model) if (n.domain, n.op_type) in known)
    return [f"{name}: {count} node{'s' if count > 1 else ''}" for name, count in counts.items()]
