"""Removes what a rewrite leaves behind: nodes, constants and operator sets that nothing needs any more."""

from __future__ import annotations

import onnx

from opgate.ops_build.onnx.nodes import bodies_of, nodes_of


def used_names(model: onnx.ModelProto) -> set[str]:
    """Returns the names of all tensors that a node reads or that are results of a graph."""
    used = {name for node in nodes_of(model) for name in node.input}
    for body in bodies_of(model):
        used.update(value if isinstance(value, str) else value.name for value in body.output)
    return used


def remove_unused(model: onnx.ModelProto, before: set[str]) -> None:
    """Removes the nodes and constants of the main graph that nothing uses. `before` are the names that were used before
    the rewrites: what nobody used then stays."""
    graph = model.graph
    while True:
        used = used_names(model)
        dead = [
            node
            for node in graph.node
            if not any(output in used for output in node.output) and any(output in before for output in node.output)
        ]
        if not dead:
            break
        for node in dead:
            graph.node.remove(node)
    kept = [tensor for tensor in graph.initializer if tensor.name in used or tensor.name not in before]
    inputs = {value.name for value in graph.input}
    kept += [t for t in graph.initializer if t.name in inputs and t.name in before and t.name not in used]
    replaced = onnx.GraphProto()
    replaced.initializer.extend(kept)
    del graph.initializer[:]
    graph.initializer.extend(replaced.initializer)
    made = {output for node in graph.node for output in node.output}
    infos = onnx.GraphProto()
    infos.value_info.extend(info for info in graph.value_info if info.name in made)
    del graph.value_info[:]
    graph.value_info.extend(infos.value_info)
    domains = (
        {node.domain for node in nodes_of(model)} | {function.domain for function in model.functions} | {"", "ai.onnx"}
    )
    opsets = onnx.ModelProto()
    opsets.opset_import.extend(opset for opset in model.opset_import if opset.domain in domains)
    del model.opset_import[:]
    model.opset_import.extend(opsets.opset_import)
