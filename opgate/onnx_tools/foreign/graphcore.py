"""Graphcore's example of a custom op."""

from __future__ import annotations

from opgate.onnx_tools.foreign.node import Foreign, ForeignNode
from opgate.onnx_tools.rewrite_text import float_text


def _leaky_relu(node: ForeignNode) -> str:
    return f"y = opgate.LeakyRelu <alpha = {float_text(node.number('alpha', 0.01))}> (x)"


REWRITES = (
    Foreign(
        names=("ai.graphcore::LeakyRelu",),
        op="LeakyRelu",
        inputs=("x",),
        outputs=("y",),
        attributes=("alpha",),
        body=_leaky_relu,
    ),
)
