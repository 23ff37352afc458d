"""SwishBackward in standard ONNX operators."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    """s + z s (1 - s) with s = 1 / (1 + exp(-z)) and 1 - s = 1 / (1 + exp(z)). ONNX Runtime's Sigmoid is an
    approximation."""
    return """
        <domain: "opgate", opset_import: ["": 18]>
        SwishBackward <alpha: float = 1.0> (grad_y, x) => (grad_x) {
            number = Constant <value_float: float = @alpha> ()
            one_number = Constant <value_float: float = 1.0> ()
            factor = CastLike (number, x)
            one = CastLike (one_number, x)
            z = Mul (factor, x)
            opposite = Neg (z)
            e = Exp (opposite)
            inverse = Exp (z)
            e_1 = Add (one, e)
            inverse_1 = Add (one, inverse)
            s = Div (one, e_1)
            complement = Div (one, inverse_1)
            z_s = Mul (z, s)
            second = Mul (z_s, complement)
            slope = Add (s, second)
            grad_x = Mul (grad_y, slope)
        }
    """
