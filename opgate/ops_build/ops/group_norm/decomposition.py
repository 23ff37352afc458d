"""GroupNorm in standard ONNX operators."""

from __future__ import annotations

from opgate.ops_build.ops.layer_norm.decomposition import ADD, DIVIDE, deviations


def decomposition(present: frozenset[str]) -> str:
    """Computed in f64, because ONNX Runtime's sums in f32 drift in long rows."""
    inputs = ", ".join(["x", *(name for name in ("weight", "bias", "residual") if name in present)])
    weigh = """
            weight_double = Cast <to: int = 11> (weight)
            weight_wide = Reshape <allowzero: int = 1> (weight_double, channel_shape)
            weighted = Mul (normal_rows, weight_wide)
    """
    shift = """
            bias_double = Cast <to: int = 11> (bias)
            bias_wide = Reshape <allowzero: int = 1> (bias_double, channel_shape)
            shifted = Add (weighted, bias_wide)
    """
    return f"""
        <domain: "opgate", opset_import: ["": 18]>
        GroupNorm <groups: int, epsilon: float = 0.00001> ({inputs}) => (y, sum) {{
            {ADD if "residual" in present else "sum = Identity (x)"}
            wide = Cast <to: int = 11> (sum)
            group_number = Constant <value_int: int = @groups> ()
            rank_1 = Constant <value_ints: ints = [1]> ()
            group_list = Reshape (group_number, rank_1)
            n = Shape <start: int = 0, end: int = 1> (x)
            inner = Shape <start: int = 1> (x)
            inner_size = ReduceProd (inner)
            length = Div (inner_size, group_list)
            grouped_shape = Concat <axis: int = 0> (n, group_list, length)
            grouped = Reshape <allowzero: int = 1> (wide, grouped_shape)
            whole = Shape (x)
            last = Constant <value_ints: ints = [-1]> ()
            {deviations("grouped")}
            {DIVIDE}
            c = Shape <start: int = 1, end: int = 2> (x)
            rank = Size (whole)
            two = Constant <value_ints: ints = [2]> ()
            rank_list = Reshape (rank, rank_1)
            behind = Sub (rank_list, two)
            ones = ConstantOfShape <value: tensor = int64[1] ones {{1}}> (behind)
            channel_shape = Concat <axis: int = 0> (c, ones)
            normal_rows = Reshape <allowzero: int = 1> (normal, whole)
            {weigh if "weight" in present else "weighted = Identity (normal_rows)"}
            {shift if "bias" in present else "shifted = Identity (weighted)"}
            y = CastLike (shifted, x)
        }}
    """
