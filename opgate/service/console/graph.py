"""The graph of a model file, as the console draws it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import onnx

# Nodes and initializers of a picture that somebody can still read, and characters of the value of an attribute.
_MOST_NODES = 2000
_MOST_TEXT = 80
# Domains whose operators are ONNX Runtime's own.
_OF_ENGINE = frozenset(("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"))


def read_graph(path: Path) -> dict[str, Any]:
    """Returns the nodes of an ONNX file, and the names of its inputs and outputs. Tensors in other files are not read.

    Nodes beyond `_MOST_NODES` are only counted. Raises OSError, or google.protobuf.message.DecodeError.
    """
    graph = onnx.load(str(path), load_external_data=False).graph
    constants = {initializer.name for initializer in graph.initializer}
    return {
        "nodes": [
            {
                "id": number,
                "name": node.name,
                "op": node.op_type,
                "domain": node.domain,
                "custom": node.domain not in _OF_ENGINE,
                "inputs": [name for name in node.input if name and name not in constants],
                "constants": [name for name in node.input if name in constants],
                "outputs": [name for name in node.output if name],
                "attributes": {attribute.name: _text(attribute) for attribute in node.attribute},
            }
            for number, node in enumerate(graph.node[:_MOST_NODES])
        ],
        "inputs": [tensor.name for tensor in graph.input if tensor.name not in constants],
        "outputs": [tensor.name for tensor in graph.output],
        "left_out": max(0, len(graph.node) - _MOST_NODES),
    }


def custom_ops(path: Path) -> frozenset[tuple[str, str]]:
    """Returns domain and name of the ops of an ONNX file that are not the engine's own. Raises what `read_graph`
    does."""
    stat = path.stat()
    return _custom_ops(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=1024)
def _custom_ops(path: Path, changed_ns: int, size: int) -> frozenset[tuple[str, str]]:
    model = onnx.load(str(path), load_external_data=False)
    bodies = [function.node for function in model.functions]
    return frozenset(_custom(model.graph.node).union(*map(_custom, bodies)))


def _custom(nodes: Iterable[onnx.NodeProto]) -> set[tuple[str, str]]:
    """Returns the ops of nodes, also of those in their attributes."""
    found: set[tuple[str, str]] = set()
    for node in nodes:
        if node.domain not in _OF_ENGINE:
            found.add((node.domain, node.op_type))
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                found |= _custom(graph.node)
    return found


def _text(attribute: onnx.AttributeProto) -> str:
    if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
        return "a graph"
    if attribute.type == onnx.AttributeProto.TENSOR:
        kind = onnx.TensorProto.DataType.Name(attribute.t.data_type).lower()
        return f"a tensor of {kind}, shape {list(attribute.t.dims)}"
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    text = str(value)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."
