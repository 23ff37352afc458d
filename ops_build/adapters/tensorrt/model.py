"""A model as TensorRT's ONNX parser wants it.

The parser makes a layer of a node whose op type is a plugin's name. It knows no input left out before another, gives a
layer exactly the outputs that the plugin has, and takes values that are read on the host only where the node says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, helper

from ops_build.onnx_model import node_attributes
from ops_build.table import Op

GIVEN_INPUTS = "opgate_inputs"  # adapters/tensorrt/adapter.cpp
SHAPE_INPUTS = "tensorrt_plugin_shape_input_indices"  # the parser's own


def for_tensorrt(model: onnx.ModelProto, ops: Iterable[Op]) -> onnx.ModelProto:
    """A copy of the model for TensorRT's parser and the plugin library that has these ops.

    Each of their nodes gets every output that its plugin has (optional ones, and the counts of sizes that only the
    kernel knows), loses the names of inputs left out, says which inputs it has and which are read on the host, and
    states its defaults. Functions that stand in for these ops go: the plugin takes their place.
    """
    by_name = {(op.domain, op.name): op for op in ops}
    made = onnx.ModelProto()
    made.CopyFrom(model)
    functions = [f for f in made.functions if (f.domain, f.name) not in by_name]
    del made.functions[:]
    made.functions.extend(functions)
    used = {name for graph in _graphs(made.graph) for node in graph.node for name in (*node.input, *node.output)}
    for graph in _graphs(made.graph):
        nodes = list(graph.node)
        del graph.node[:]
        for node in nodes:
            if op := by_name.get((node.domain, node.op_type)):
                graph.node.extend(_flattened_host_inputs(node, op, used))
                _rewrite(node, op, used)
            graph.node.append(node)
    return made


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _flattened_host_inputs(node: NodeProto, op: Op, used: set[str]) -> Iterator[NodeProto]:
    """Nodes that make what is read on the host a list: the parser takes values of rank 1 only."""
    for index, name in enumerate(node.input):
        if not name or index >= len(op.inputs) or not op.inputs[index].const:
            continue
        shape, flat = _fresh(f"{name}_shape", used), _fresh(f"{name}_flat", used)
        yield helper.make_node("Constant", [], [shape], value_ints=[-1])
        yield helper.make_node("Reshape", [name, shape], [flat])
        node.input[index] = flat


def _rewrite(node: NodeProto, op: Op, used: set[str]) -> None:
    given = [index for index, name in enumerate(node.input) if name]
    host = [place for place, index in enumerate(given) if index < len(op.inputs) and op.inputs[index].const]
    inputs = [node.input[index] for index in given]
    _set(node, {GIVEN_INPUTS: [index for index in given if index < len(op.inputs)]})
    del node.input[:]
    node.input.extend(inputs)
    if host:
        _set(node, {SHAPE_INPUTS: host})
    stated = {attribute.name for attribute in node.attribute}
    defaults = {a.name: a.default for a in op.attributes if not a.required and a.name not in stated}
    _set(node, {name: value for name, value in node_attributes(op, defaults).items() if value != []})
    node.overload = ""
    names = [*node.output, *[""] * (len(op.outputs) - len(node.output))]
    sizes = [dim["name"] for output in op.outputs for dim in output.dims if dim["kind"] == "bounded"]
    del node.output[:]
    for output, name in zip(op.outputs, names, strict=True):
        node.output.append(name or _fresh(f"{node.op_type}_{output.name}", used))
    for size in dict.fromkeys(sizes):
        node.output.append(_fresh(f"{node.op_type}_{size}", used))


def _set(node: NodeProto, attributes: Mapping[str, object]) -> None:
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())


def _fresh(stem: str, used: set[str]) -> str:
    name, count = stem, 0
    while name in used:
        count += 1
        name = f"{stem}_{count}"
    used.add(name)
    return name
