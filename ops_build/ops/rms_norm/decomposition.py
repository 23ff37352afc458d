"""RMSNorm in standard ONNX operators."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    """The squares are added in f64, because ONNX Runtime's sum in f32 drifts in long rows."""
    residual = "residual" in present
    add = """
            x_wide = Cast <to: int = 1> (x)
            residual_wide = Cast <to: int = 1> (residual)
            added = Add (x_wide, residual_wide)
            sum = CastLike (added, x)
    """
    return f"""
        <domain: "opgate", opset_import: ["": 18]>
        RMSNorm <epsilon: float = 0.00001> ({"x, weight, residual" if residual else "x, weight"}) => (y, sum) {{
            {add if residual else "sum = Identity (x)"}
            wide = Cast <to: int = 1> (sum)
            squares = Mul (wide, wide)
            last = Constant <value_ints: ints = [-1]> ()
            exact_squares = Cast <to: int = 11> (squares)
            exact_mean = ReduceMean (exact_squares, last)
            mean = Cast <to: int = 1> (exact_mean)
            least = Constant <value_float: float = @epsilon> ()
            held = Add (mean, least)
            root = Sqrt (held)
            normal = Div (wide, root)
            weight_wide = Cast <to: int = 1> (weight)
            weighted = Mul (normal, weight_wide)
            y = CastLike (weighted, x)
        }}
    """
