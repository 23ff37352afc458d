"""RMSNorm in standard ONNX operators."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    """Computed in f64, because ONNX Runtime's sum in f32 drifts in long rows."""
    residual, weight = "residual" in present, "weight" in present
    inputs = ", ".join(["x", *(["weight"] if weight else []), *(["residual"] if residual else [])])
    weigh = "weight_wide = Cast <to: int = 11> (weight)\n            weighted = Mul (normal, weight_wide)"
    add = """
            x_wide = Cast <to: int = 11> (x)
            residual_wide = Cast <to: int = 11> (residual)
            added = Add (x_wide, residual_wide)
            sum = CastLike (added, x)
    """
    return f"""
        <domain: "opgate", opset_import: ["": 18]>
        RMSNorm <epsilon: float = 0.00001> ({inputs}) => (y, sum) {{
            {add if residual else "sum = Identity (x)"}
            wide = Cast <to: int = 11> (sum)
            squares = Mul (wide, wide)
            last = Constant <value_ints: ints = [-1]> ()
            mean = ReduceMean (squares, last)
            least_single = Constant <value_float: float = @epsilon> ()
            least = Cast <to: int = 11> (least_single)
            held = Add (mean, least)
            root = Sqrt (held)
            normal = Div (wide, root)
            {weigh if weight else "weighted = Identity (normal)"}
            y = CastLike (weighted, x)
        }}
    """
