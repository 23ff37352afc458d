"""RMSNorm in standard ONNX operators."""

from __future__ import annotations

from opgate.ops_build.ops.layer_norm.decomposition import ADD, DIVIDE, WEIGH


def decomposition(present: frozenset[str]) -> str:
    """Computed in f64, because ONNX Runtime's sum in f32 drifts in long rows."""
    inputs = ", ".join(["x", *(name for name in ("weight", "residual") if name in present)])
    return f"""
        <domain: "opgate", opset_import: ["": 18]>
        RMSNorm <epsilon: float = 0.00001> ({inputs}) => (y, sum) {{
            {ADD if "residual" in present else "sum = Identity (x)"}
            d = Cast <to: int = 11> (sum)
            last = Constant <value_ints: ints = [-1]> ()
            {DIVIDE}
            {WEIGH if "weight" in present else "weighted = Identity (normal)"}
            y = CastLike (weighted, x)
        }}
    """
