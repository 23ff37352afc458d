"""Rewrites the nodes of other projects' exports into opgate's ops.

Each module has the ops of a family as `REWRITES`. To add an op, add an entry there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import GraphProto, NodeProto, helper

from opgate.onnx_tools.foreign import attention, bev, graphcore, mmcv, points
from opgate.onnx_tools.foreign.node import Foreign, ForeignNode, Refused
from opgate.onnx_tools.rewrite_text import Names, instantiate
from opgate.onnx_tools.values import Values
from opgate.ops_build.onnx.nodes import bodies_of, graphs_of

REWRITES: tuple[Foreign, ...] = (
    *points.REWRITES,
    *mmcv.REWRITES,
    *attention.REWRITES,
    *bev.REWRITES,
    *graphcore.REWRITES,
)

#: The first opset whose operators the bodies use.
OPSET = 11

_BY_NAME = {name: rewrite for rewrite in REWRITES for name in rewrite.names}


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A foreign node and what became of it. `refusal` is empty if it was rewritten."""

    name: str
    node: str
    op: str
    note: str = ""
    refusal: str = ""


def rewrite_of(node: NodeProto) -> Foreign | None:
    """Returns the rewrite of a node, or None if it is no foreign node that is known."""
    domain = node.domain or ""
    if domain == "opgate":
        return None
    return _BY_NAME.get(f"{domain}::{node.op_type}") or _BY_NAME.get(f"*::{node.op_type}")


def rewrite(model: onnx.ModelProto, folder: Path | None = None) -> list[Rewritten]:
    """Rewrites the foreign nodes of a model, in place, and returns what became of each.

    `folder` has the files of weights that are not in the model. A node that is refused stays as it is.
    """
    done: list[Rewritten] = []
    refused: list[Rewritten] = []
    remaining = len(list(_foreign_nodes(model)))
    while remaining:
        # What a rewritten node gives is known to shape inference, so the nodes behind it are tried again.
        values, names = Values(model, folder), Names(model)
        refused = []
        rewritten = 0
        for graph, node in list(_foreign_nodes(model)):
            seen = values if graph is model.graph else values.inside(graph)
            result = _rewrite_node(model, graph, node, seen, names)
            (refused if result.refusal else done).append(result)
            rewritten += not result.refusal
        if not rewritten:
            break
        remaining -= rewritten
        import_opset(model)
    if done:
        _forget_types(model)
    in_functions = [node for function in model.functions for node in function.node if rewrite_of(node) is not None]
    return done + refused + [_in_function(node) for node in in_functions]


def _in_function(node: NodeProto) -> Rewritten:
    entry = rewrite_of(node)
    assert entry is not None
    reason = "it is in a function of the model: use onnx.inliner.inline_local_functions before the import"
    return Rewritten(f"{node.domain}::{node.op_type}", label_of(node), entry.becomes, refusal=reason)


def _forget_types(model: onnx.ModelProto) -> None:
    """Removes what the model states of tensors inside it, because an exporter guesses what a foreign node gives. Shape
    inference finds it again."""
    for body in bodies_of(model):
        del body.value_info[:]


def import_opset(model: onnx.ModelProto) -> None:
    """Adds opgate's operator set to those that a model imports."""
    if not any(opset.domain == "opgate" for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid("opgate", 1))


def opset_of(model: onnx.ModelProto) -> int:
    """Returns the version of ONNX's own operator set that a model imports, or 0."""
    return max((opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")), default=0)


def label_of(node: NodeProto) -> str:
    """Returns what a report calls a node: its name, or that of its first output."""
    return node.name or next(iter(node.output), "")


def _foreign_nodes(model: onnx.ModelProto) -> Iterator[tuple[GraphProto, NodeProto]]:
    # A graph is copied when one of its nodes is replaced, so the graphs in its nodes go first.
    for graph in reversed(list(graphs_of(model))):
        for node in list(graph.node):
            if rewrite_of(node) is not None:
                yield graph, node


def _rewrite_node(
    model: onnx.ModelProto, graph: GraphProto, node: NodeProto, values: Values, names: Names
) -> Rewritten:
    entry = rewrite_of(node)
    assert entry is not None
    name, label = f"{node.domain}::{node.op_type}", label_of(node)
    opset = opset_of(model)
    foreign = ForeignNode(node, entry, values, opset)
    try:
        if opset < OPSET:
            raise Refused(f"the model has opset {opset} of ONNX: expected {OPSET} or later")
        foreign.check()
        body = entry.body(foreign)
    except Refused as error:
        return Rewritten(name, label, entry.becomes, refusal=str(error))
    given = {key.removesuffix("?"): value for key, value in zip(entry.inputs, node.input, strict=False) if value}
    for output, tensor in zip(entry.outputs, node.output, strict=False):
        if tensor:
            given[output] = tensor
    nodes = instantiate(body, given, entry.outputs, names, opset, label or node.op_type)
    replace(graph, [node], nodes)
    return Rewritten(name, label, entry.becomes, note=entry.note)


def replace(graph: GraphProto, removed: Iterable[NodeProto], added: Iterable[NodeProto]) -> None:
    """Replaces nodes of a graph. The new ones stand where the last of the removed ones was."""
    gone = {tuple(node.output) for node in removed}
    places = [place for place, node in enumerate(graph.node) if tuple(node.output) in gone]
    nodes = [node for place, node in enumerate(graph.node) if place not in places]
    first = places[-1] - len(places) + 1
    nodes[first:first] = added
    copied = GraphProto()
    copied.node.extend(nodes)  # the nodes of the graph go when its list is emptied
    del graph.node[:]
    graph.node.extend(copied.node)
