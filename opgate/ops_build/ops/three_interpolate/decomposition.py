"""ThreeInterpolate in standard ONNX operators."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    """Gathers [m, k, c] rows and adds them up, in f64. A row of zeros stands for missing neighbours."""
    return """
        <domain: "opgate", opset_import: ["": 18]>
        ThreeInterpolate (features, idx, weight) => (y) {
            wide = Cast <to: int = 11> (features)
            row_before = Constant <value_ints: ints = [1, 0, 0, 0]> ()
            framed = Pad (wide, row_before)
            one = Constant <value: tensor = int32 {1}> ()
            zero = Constant <value: tensor = int32 {0}> ()
            none = Constant <value: tensor = double {0.0}> ()
            next = Add (idx, one)
            places = Max (next, zero)
            rows = Gather <axis: int = 0> (framed, places)
            wide_weight = Cast <to: int = 11> (weight)
            missing = Less (idx, zero)
            used = Where (missing, none, wide_weight)
            last = Constant <value_ints: ints = [-1]> ()
            column = Unsqueeze (used, last)
            terms = Mul (rows, column)
            neighbours = Constant <value_ints: ints = [1]> ()
            sum = ReduceSum <keepdims: int = 0> (terms, neighbours)
            y = CastLike (sum, features)
        }
    """
