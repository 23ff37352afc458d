"""Swish in standard ONNX operators."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    """x / (1 + exp(-alpha x)). ONNX Runtime's Sigmoid is an approximation."""
    return """
        <domain: "opgate", opset_import: ["": 18]>
        Swish <alpha: float = 1.0> (x) => (y) {
            number = Constant <value_float: float = @alpha> ()
            one_number = Constant <value_float: float = 1.0> ()
            factor = CastLike (number, x)
            one = CastLike (one_number, x)
            z = Mul (factor, x)
            opposite = Neg (z)
            e = Exp (opposite)
            sum = Add (one, e)
            y = Div (x, sum)
        }
    """
