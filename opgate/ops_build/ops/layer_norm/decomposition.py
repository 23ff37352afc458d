"""LayerNorm in standard ONNX operators, and the lines that the other norms share."""

from __future__ import annotations

#: The sum that the norm is taken of, if there is a residual.
ADD = """
            x_wide = Cast <to: int = 11> (x)
            residual_wide = Cast <to: int = 11> (residual)
            added = Add (x_wide, residual_wide)
            sum = CastLike (added, x)
"""
#: From the deviations d to their normal form d / root.
DIVIDE = """
            dd = Mul (d, d)
            variance = ReduceMean (dd, last)
            least_single = Constant <value_float: float = @epsilon> ()
            least = Cast <to: int = 11> (least_single)
            held = Add (variance, least)
            root = Sqrt (held)
            normal = Div (d, root)
"""
WEIGH = """
            weight_wide = Cast <to: int = 11> (weight)
            weighted = Mul (normal, weight_wide)
"""


def deviations(values: str) -> str:
    """Subtracts the mean of each row. It does it in two steps, because a mean is rounded."""
    return f"""
            mean = ReduceMean ({values}, last)
            near = Sub ({values}, mean)
            rest = ReduceMean (near, last)
            d = Sub (near, rest)
    """


def decomposition(present: frozenset[str]) -> str:
    """Computed in f64, because ONNX Runtime's sums in f32 drift in long rows."""
    inputs = ", ".join(["x", *(name for name in ("weight", "bias", "residual") if name in present)])
    shift = "bias_wide = Cast <to: int = 11> (bias)\n            shifted = Add (weighted, bias_wide)"
    return f"""
        <domain: "opgate", opset_import: ["": 18]>
        LayerNorm <epsilon: float = 0.00001> ({inputs}) => (y, sum) {{
            {ADD if "residual" in present else "sum = Identity (x)"}
            wide = Cast <to: int = 11> (sum)
            last = Constant <value_ints: ints = [-1]> ()
            {deviations("wide")}
            {DIVIDE}
            {WEIGH if "weight" in present else "weighted = Identity (normal)"}
            {shift if "bias" in present else "shifted = Identity (weighted)"}
            y = CastLike (shifted, x)
        }}
    """
