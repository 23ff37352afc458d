"""Nodes written as text: the right side of a rewrite.

A body is a list of nodes in ONNX's textual syntax, such as `y = opgate.Mish (x)`. Its names are those of a rewrite, and
`instantiate` gives them the names of a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx
from onnx import NodeProto
from onnx.parser import ParseError, parse_function

from opgate.ops_build.onnx.nodes import bodies_of


class BodyError(ValueError):
    """The text of a body is no list of nodes. This is a fault of the rewrite, not of the model."""


class Names:
    """The names of a model's tensors. Gives new ones that are not among them."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._taken: set[str] = set()
        for body in bodies_of(model):
            for node in body.node:
                self._taken.update(node.input, node.output)
            if isinstance(body, onnx.GraphProto):
                self._taken.update(value.name for value in (*body.input, *body.output, *body.value_info))
                self._taken.update(tensor.name for tensor in body.initializer)
            else:
                self._taken.update(body.input, body.output)

    def new(self, stem: str) -> str:
        """Returns a name that no tensor has, which begins with `stem`."""
        name, count = stem, 0
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        return name


def parse_nodes(text: str, inputs: Sequence[str], outputs: Sequence[str], opset: int) -> list[NodeProto]:
    """Parses a body. `inputs` and `outputs` are the names that it takes from outside and gives. Raises BodyError."""
    head = f'<domain: "body", opset_import: ["": {opset}, "opgate": 1]> Body ({", ".join(inputs)})'
    try:
        function = parse_function(f"{head} => ({', '.join(outputs)}) {{ {text} }}")
    except ParseError as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else error
        raise BodyError(f"{reason} in: {text}") from error
    return list(function.node)


def instantiate(
    text: str, renamed: Mapping[str, str], outputs: Iterable[str], names: Names, opset: int, name: str
) -> list[NodeProto]:
    """Returns the nodes of a body with the names of a model.

    `renamed` maps names of the body to names of the model. All other tensors of the body get new names, which begin
    with `name`, and so do the nodes. Raises BodyError.
    """
    outputs = list(outputs)
    nodes = parse_nodes(text, [key for key in renamed if key not in outputs], outputs, opset)
    given = dict(renamed)
    for node in nodes:
        for output in node.output:
            if output and output not in given:
                given[output] = names.new(f"{name}_{output}")
    for node in nodes:
        for tensors in (node.input, node.output):
            replaced = [given.get(tensor, tensor) for tensor in tensors]
            del tensors[:]
            tensors.extend(replaced)
        node.name = names.new(f"{name}_{node.op_type}")
    return nodes


def unsqueeze(output: str, tensor: str, axes: Sequence[int], opset: int) -> str:
    """Returns the node that adds axes of size 1: its axes are an attribute before opset 13, and an input from then
    on."""
    return _with_axes("Unsqueeze", output, tensor, axes, opset)


def squeeze(output: str, tensor: str, axes: Sequence[int], opset: int) -> str:
    """Returns the node that removes axes of size 1, see `unsqueeze`."""
    return _with_axes("Squeeze", output, tensor, axes, opset)


def _with_axes(op_type: str, output: str, tensor: str, axes: Sequence[int], opset: int) -> str:
    if opset < 13:
        return f"{output} = {op_type} <axes = {integers_text(axes)}> ({tensor})"
    return f"{constant(f'{output}_axes', axes)} {output} = {op_type} ({tensor}, {output}_axes)"


def constant(output: str, values: Sequence[int]) -> str:
    """Returns the node of a constant of i64 with one axis."""
    return f"{output} = Constant <value = int64[{len(values)}] {{{', '.join(map(str, values))}}}> ()"


def integers_text(values: Sequence[int]) -> str:
    """Returns a list of integers as an attribute writes it."""
    return f"[{', '.join(map(str, values))}]"


def float_text(value: float) -> str:
    """Returns a float as an attribute writes it: with a point, because the parser takes a number without one for an
    integer."""
    text = repr(float(value))
    mantissa, exponent, power = text.partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}{exponent}{power}"
