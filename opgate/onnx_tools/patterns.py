"""Finds patterns of standard operators in a graph.

A pattern is a body in ONNX's textual syntax (see `bodies`) with one output. It matches nodes of the same operators that
are connected in the same way. The operands of Add and Mul may be in either order. A Constant of the pattern matches a
constant of one element with that value. Attributes that the pattern states must be the same. Inputs that `scalars`
names match only constants of one element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import NodeProto

from opgate.onnx_tools.rewrite_text import parse_nodes
from opgate.onnx_tools.values import Values
from opgate.ops_build.case import Array

COMMUTATIVE = ("Add", "Mul")
#: The first opset that has every operator of the patterns, so that the parser takes their text.
_OPSET = 18


@dataclass(frozen=True, slots=True)
class Match:
    """Nodes that match. `tensors` maps names of the pattern to names of the graph."""

    nodes: tuple[NodeProto, ...]
    tensors: Mapping[str, str]


@dataclass(frozen=True)
class Pattern:
    """`inputs` and `scalars` are the names that come from outside; `output` is the name of the result."""

    text: str
    inputs: tuple[str, ...]
    scalars: tuple[str, ...] = ()
    output: str = "y"
    _producers: Mapping[str, NodeProto] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        nodes = parse_nodes(self.text, (*self.inputs, *self.scalars), [self.output], _OPSET)
        object.__setattr__(self, "_producers", {output: node for node in nodes for output in node.output})

    def matches(self, graph: onnx.GraphProto, values: Values) -> Iterator[Match]:
        """Yields the matches in the order of the graph. Matches may share nodes. Results in the middle of a match are
        used nowhere else."""
        last = self._producers[self.output].op_type
        for node in graph.node:
            if node.op_type == last and node.domain in ("", "ai.onnx"):
                for tensors in self._tensors(self.output, node.output[0], {}, values):
                    match = self._match(tensors, values)
                    if match is not None:
                        yield match
                        break

    def _match(self, tensors: Mapping[str, str], values: Values) -> Match | None:
        inner = [name for name, node in self._producers.items() if node.op_type != "Constant"]
        nodes = {tensors[name]: values.producers[tensors[name]] for name in inner}
        for name in inner:
            tensor = tensors[name]
            if name == self.output:
                continue
            if tensor in values.outputs or any(node.output[0] not in nodes for node in values.consumers[tensor]):
                return None
        return Match(tuple(nodes.values()), tensors)

    def _tensors(self, name: str, tensor: str, bound: Mapping[str, str], values: Values) -> Iterator[Mapping[str, str]]:
        """Yields what the names of the pattern are called in the graph if `name` is called `tensor`."""
        if name in bound:
            if bound[name] == tensor:
                yield bound
            return
        producer = self._producers.get(name)
        if producer is None:
            if name not in self.scalars or scalar_of(values, tensor) is not None:
                yield {**bound, name: tensor}
            return
        if producer.op_type == "Constant":
            value = onnx.helper.get_attribute_value(producer.attribute[0])
            found = scalar_of(values, tensor)
            if found is not None and np.isclose(found, value, rtol=1e-3):
                yield {**bound, name: tensor}
            return
        node = values.producers.get(tensor)
        if node is None or not _same_operator(producer, node):
            return
        orders = [list(node.input)[: len(producer.input)]]
        if producer.op_type in COMMUTATIVE:
            orders.append(orders[0][::-1])
        for order in orders:
            yield from self._operands(list(zip(producer.input, order, strict=True)), {**bound, name: tensor}, values)

    def _operands(
        self, pairs: list[tuple[str, str]], bound: Mapping[str, str], values: Values
    ) -> Iterator[Mapping[str, str]]:
        if not pairs:
            yield bound
            return
        (name, tensor), *others = pairs
        for tensors in self._tensors(name, tensor, bound, values):
            yield from self._operands(others, tensors, values)


def scalar_of(values: Values, tensor: str) -> float | None:
    """Returns the value of a constant of one element, or None if the tensor is something else."""
    if any(size != 1 for size in values.shape(tensor) or ()):
        return None  # large weights are not read
    value: Array | None = values.constant(tensor)
    if value is None or value.size != 1 or value.dtype.kind not in "fiu":
        return None
    return float(value.reshape(()))


def _same_operator(pattern: NodeProto, node: NodeProto) -> bool:
    if node.op_type != pattern.op_type or node.domain not in ("", "ai.onnx") or len(node.input) < len(pattern.input):
        return False
    found = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    stated = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in pattern.attribute}
    return all(found.get(name) == value for name, value in stated.items())
