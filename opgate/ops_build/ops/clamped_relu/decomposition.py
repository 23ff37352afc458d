"""ClampedRelu in standard ONNX operators."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    """Comparisons, because ONNX Runtime's Max and Min of NaN and a number differ from type to type."""
    return """
        <domain: "opgate", opset_import: ["": 18]>
        ClampedRelu <ceiling: float = 6.0> (x) => (y) {
            zero_number = Constant <value_float: float = 0.0> ()
            most_number = Constant <value_float: float = @ceiling> ()
            zero = CastLike (zero_number, x)
            most = CastLike (most_number, x)
            negative = Less (x, zero)
            positive = Where (negative, zero, x)
            above = Greater (positive, most)
            y = Where (above, most, positive)
        }
    """
