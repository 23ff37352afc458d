"""LayerNorm in standard ONNX operators."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    """Computed in f64, because ONNX Runtime's sums in f32 drift in long rows. The mean is subtracted in two steps,
    because it is rounded."""
    inputs = ", ".join(["x", *(name for name in ("weight", "bias", "residual") if name in present)])
    add = """
            x_wide = Cast <to: int = 11> (x)
            residual_wide = Cast <to: int = 11> (residual)
            added = Add (x_wide, residual_wide)
            sum = CastLike (added, x)
    """
    weigh = "weight_wide = Cast <to: int = 11> (weight)\n            weighted = Mul (normal, weight_wide)"
    shift = "bias_wide = Cast <to: int = 11> (bias)\n            shifted = Add (weighted, bias_wide)"
    return f"""
        <domain: "opgate", opset_import: ["": 18]>
        LayerNorm <epsilon: float = 0.00001> ({inputs}) => (y, sum) {{
            {add if "residual" in present else "sum = Identity (x)"}
            wide = Cast <to: int = 11> (sum)
            last = Constant <value_ints: ints = [-1]> ()
            mean = ReduceMean (wide, last)
            near = Sub (wide, mean)
            rest = ReduceMean (near, last)
            d = Sub (near, rest)
            dd = Mul (d, d)
            variance = ReduceMean (dd, last)
            least_single = Constant <value_float: float = @epsilon> ()
            least = Cast <to: int = 11> (least_single)
            held = Add (variance, least)
            root = Sqrt (held)
            normal = Div (d, root)
            {weigh if "weight" in present else "weighted = Identity (normal)"}
            {shift if "bias" in present else "shifted = Identity (weighted)"}
            y = CastLike (shifted, x)
        }}
    """
