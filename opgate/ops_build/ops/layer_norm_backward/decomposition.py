"""LayerNormBackward in standard ONNX operators, and what RMSNormBackward shares with it."""

from __future__ import annotations

from opgate.ops_build.ops.layer_norm.decomposition import DIVIDE

_MEAN = """
            mean = ReduceMean (wide, last)
            d = Sub (wide, mean)
"""
_CENTRE = """
            g_mean = ReduceMean (g, last)
            g_centred = Sub (g, g_mean)
"""
_WEIGH = """
            weight_wide = Cast <to: int = 11> (weight)
            g = Mul (upstream, weight_wide)
"""
_ADD = """
            grad_sum_wide = Cast <to: int = 11> (grad_sum)
            total = Add (grad_rows, grad_sum_wide)
"""
_BIAS = """
            upstream_rows = Reshape <allowzero: int = 1> (upstream, flat)
            bias_sum = ReduceSum <keepdims: int = 0> (upstream_rows, first)
            grad_bias = CastLike (bias_sum, sum)
"""


def norm_backward(name: str, present: frozenset[str], *, centred: bool) -> str:
    """The formulas of the op's README.md, in f64. A centred norm subtracts the mean of a row and has a bias."""
    inputs = ", ".join(["grad_y", "sum", *(name for name in ("weight", "grad_sum") if name in present)])
    outputs = ", ".join(["grad_x_and_residual", "grad_weight", *(["grad_bias"] if centred else [])])
    return f"""
        <domain: "opgate", opset_import: ["": 18]>
        {name} <epsilon: float = 0.00001> ({inputs}) => ({outputs}) {{
            wide = Cast <to: int = 11> (sum)
            upstream = Cast <to: int = 11> (grad_y)
            last = Constant <value_ints: ints = [-1]> ()
            first = Constant <value_ints: ints = [0]> ()
            {_MEAN if centred else "d = Identity (wide)"}
            {DIVIDE}
            {_WEIGH if "weight" in present else "g = Identity (upstream)"}
            {_CENTRE if centred else "g_centred = Identity (g)"}
            g_z = Mul (g, normal)
            slope = ReduceMean (g_z, last)
            z_slope = Mul (normal, slope)
            inner = Sub (g_centred, z_slope)
            grad_rows = Div (inner, root)
            {_ADD if "grad_sum" in present else "total = Identity (grad_rows)"}
            grad_x_and_residual = CastLike (total, sum)
            products = Mul (upstream, normal)
            c = Shape <start: int = -1> (sum)
            before = Shape <end: int = -1> (sum)
            count = ReduceProd (before)
            one = Constant <value_ints: ints = [1]> ()
            count_list = Reshape (count, one)
            flat = Concat <axis: int = 0> (count_list, c)
            rows = Reshape <allowzero: int = 1> (products, flat)
            weight_sum = ReduceSum <keepdims: int = 0> (rows, first)
            grad_weight = CastLike (weight_sum, sum)
            {_BIAS if centred else ""}
        }}
    """


def decomposition(present: frozenset[str]) -> str:
    """See norm_backward."""
    return norm_backward("LayerNormBackward", present, centred=True)
