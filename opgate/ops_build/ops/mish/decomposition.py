"""Mish in standard ONNX operators: the one of this name."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    """Held above -700, because the formula is NaN at -inf. ONNX's Mish takes bf16 from opset 22 on only."""
    return """
        <domain: "opgate", opset_import: ["": 18]>
        Mish (x) => (y) {
            number = Constant <value_float: float = -700.0> ()
            least = CastLike (number, x)
            held = Max (x, least)
            y = Mish (held)
        }
    """
