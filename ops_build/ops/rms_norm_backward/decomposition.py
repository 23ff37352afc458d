"""RMSNormBackward in standard ONNX operators."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    """The formulas of README.md, in f64."""
    inputs = ", ".join(["grad_y", "sum", *(name for name in ("weight", "grad_sum") if name in present)])
    weigh = "weight_wide = Cast <to: int = 11> (weight)\n            g = Mul (upstream, weight_wide)"
    add = "grad_sum_wide = Cast <to: int = 11> (grad_sum)\n            total = Add (grad_rows, grad_sum_wide)"
    return f"""
        <domain: "opgate", opset_import: ["": 18]>
        RMSNormBackward <epsilon: float = 0.00001> ({inputs})
            => (grad_x_and_residual, grad_weight) {{
            wide = Cast <to: int = 11> (sum)
            upstream = Cast <to: int = 11> (grad_y)
            last = Constant <value_ints: ints = [-1]> ()
            first = Constant <value_ints: ints = [0]> ()
            d = Identity (wide)
            dd = Mul (d, d)
            variance = ReduceMean (dd, last)
            least_single = Constant <value_float: float = @epsilon> ()
            least = Cast <to: int = 11> (least_single)
            held = Add (variance, least)
            root = Sqrt (held)
            z = Div (d, root)
            {weigh if "weight" in present else "g = Identity (upstream)"}
            g_centred = Identity (g)
            g_z = Mul (g, z)
            slope = ReduceMean (g_z, last)
            z_slope = Mul (z, slope)
            inner = Sub (g_centred, z_slope)
            grad_rows = Div (inner, root)
            {add if "grad_sum" in present else "total = Identity (grad_rows)"}
            grad_x_and_residual = CastLike (total, sum)
            products = Mul (upstream, z)
            c = Shape <start: int = -1> (sum)
            before = Shape <end: int = -1> (sum)
            count = ReduceProd (before)
            one = Constant <value_ints: ints = [1]> ()
            count_list = Reshape (count, one)
            flat = Concat <axis: int = 0> (count_list, c)
            rows = Reshape <allowzero: int = 1> (products, flat)
            rows_g = Reshape <allowzero: int = 1> (upstream, flat)
            weight_sum = ReduceSum <keepdims: int = 0> (rows, first)
            grad_weight = CastLike (weight_sum, sum)
        }}
    """
