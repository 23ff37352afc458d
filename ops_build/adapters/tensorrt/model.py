"""A model as TensorRT's ONNX parser wants it.

The parser makes a layer of a node whose op type is a plugin's name. It knows no input left out before another, gives a
layer exactly the outputs that the plugin has, and takes values that are read on the host only where the node says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx
from onnx import NodeProto, helper

from ops_build.onnx.decompose import load_to_rewrite
from ops_build.onnx.nodes import bodies_of, node_attributes, nodes_of
from ops_build.table import Op

GIVEN_INPUTS = "opgate_inputs"  # fields.h
SHAPE_INPUTS = "tensorrt_plugin_shape_input_indices"  # the parser's own


def for_tensorrt(model: onnx.ModelProto, ops: Iterable[Op]) -> onnx.ModelProto:
    """A copy of the model for TensorRT's parser and the plugin library that has these ops.

    Each of their nodes gets every output that its plugin has (optional ones, and the counts of sizes that only the
    kernel knows), loses the names of inputs left out, says which inputs it has and which are read on the host, and
    states its defaults. Functions that stand in for these ops go: the plugin takes their place. A node that has been
    rewritten before stays as it is.
    """
    by_name = {(op.domain, op.name): op for op in ops}
    made = onnx.ModelProto()
    made.CopyFrom(model)
    functions = [f for f in made.functions if (f.domain, f.name) not in by_name]
    del made.functions[:]
    made.functions.extend(functions)
    bodies = list(bodies_of(made))
    used = {name for body in bodies for node in body.node for name in (*node.input, *node.output)}
    for body in bodies:
        nodes = list(body.node)
        del body.node[:]
        for node in nodes:
            op = by_name.get((node.domain, node.op_type))
            if op and not any(attribute.name == GIVEN_INPUTS for attribute in node.attribute):
                body.node.extend(_flattened_host_inputs(node, op, used))
                _rewrite(node, op, used)
            body.node.append(node)
    return made


def rewrite_file(source: Path, target: Path, ops: Iterable[Op]) -> dict[str, int]:
    """`for_tensorrt` for a file; how many nodes of each op it has. Weights in files of their own stay there. Raises
    ValueError where there is nothing to rewrite or an op has no plugin, and OSError."""
    model = load_to_rewrite(source, target)
    known = {(op.domain, op.name): op for op in ops}
    found: dict[str, int] = {}
    for node in nodes_of(model):
        if op := known.get((node.domain, node.op_type)):
            if "cuda" not in op.devices:
                raise ValueError(
                    f"{source} has a node of {op.name}, which has no CUDA kernel in this build and so no plugin: "
                    "opgate ops says which have"
                )
            found[op.name] = found.get(op.name, 0) + 1
    if not found:
        domains = ", ".join(sorted({op.domain for op in known.values()}))
        raise ValueError(f"{source} has no node of the ops of {domains}: there is nothing to rewrite")
    onnx.save(for_tensorrt(model, known.values()), target)
    return found


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
