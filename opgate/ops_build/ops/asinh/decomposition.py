"""Asinh in standard ONNX operators."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    """sign(x) ln(a + sqrt(a^2 + 1)) with a = |x| in f64, or a series where a < 0.001. ONNX Runtime has
    no other Asinh than that of f32."""
    return """
        <domain: "opgate", opset_import: ["": 18]>
        Asinh (x) => (y) {
            wide = Cast <to: int = 11> (x)
            one = Constant <value: tensor = double one {1}> ()
            sixth = Constant <value: tensor = double sixth {-0.16666666666666666667}> ()
            fifth = Constant <value: tensor = double fifth {0.075}> ()
            limit = Constant <value: tensor = double limit {0.001}> ()
            a = Abs (wide)
            s = Mul (a, a)
            s_1 = Add (s, one)
            root = Sqrt (s_1)
            sum = Add (a, root)
            log = Log (sum)
            s_fifth = Mul (s, fifth)
            inner = Add (s_fifth, sixth)
            s_inner = Mul (s, inner)
            factor = Add (s_inner, one)
            series = Mul (a, factor)
            is_small = Less (a, limit)
            positive = Where (is_small, series, log)
            sign = Sign (wide)
            signed = Mul (sign, positive)
            y = CastLike (signed, x)
        }
    """
