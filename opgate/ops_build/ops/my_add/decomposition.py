"""MyAdd in standard ONNX operators."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    """Each operation is rounded to T: in f16 2 a may overflow where 2 a + b doesn't."""
    return """
        <domain: "opgate", opset_import: ["": 18]>
        MyAdd (a, b) => (y) {
            number = Constant <value_float: float = 2.0> ()
            two = CastLike (number, a)
            twice = Mul (two, a)
            y = Add (twice, b)
        }
    """
