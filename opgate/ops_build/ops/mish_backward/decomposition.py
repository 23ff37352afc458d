"""MishBackward in standard ONNX operators."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    """With p = exp(min(x, 0)) and q = exp(min(-x, 0)), so that exp(x) = p / q, and D = p^2 + 2 p q + 2 q^2 the slope is
    p ((p + 2 q) D + 4 x (p + q) q^2) / D^2: the kernel's formula, in which nothing overflows in any type."""
    return """
        <domain: "opgate", opset_import: ["": 18]>
        MishBackward (grad_y, x) => (grad_x) {
            zero_number = Constant <value_float: float = 0.0> ()
            four_number = Constant <value_float: float = 4.0> ()
            bound_number = Constant <value_float: float = 700.0> ()
            zero = CastLike (zero_number, x)
            four = CastLike (four_number, x)
            bound = CastLike (bound_number, x)
            least = Neg (bound)
            finite = Clip (x, least, bound)
            opposite = Neg (finite)
            negative = Min (finite, zero)
            positive = Min (opposite, zero)
            p = Exp (negative)
            q = Exp (positive)
            p_q = Add (p, q)
            p_2q = Add (p_q, q)
            pp_2pq = Mul (p, p_2q)
            qq = Mul (q, q)
            pp_2pq_qq = Add (pp_2pq, qq)
            d = Add (pp_2pq_qq, qq)
            dd = Mul (d, d)
            first = Mul (p_2q, d)
            x_4 = Mul (four, finite)
            p_q_qq = Mul (p_q, qq)
            second = Mul (x_4, p_q_qq)
            both = Add (first, second)
            numerator = Mul (p, both)
            slope = Div (numerator, dd)
            grad_x = Mul (grad_y, slope)
        }
    """
