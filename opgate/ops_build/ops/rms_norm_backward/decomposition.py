"""RMSNormBackward in standard ONNX operators."""

from __future__ import annotations

from opgate.ops_build.ops.layer_norm_backward.decomposition import norm_backward


def decomposition(present: frozenset[str]) -> str:
    """See norm_backward."""
    return norm_backward("RMSNormBackward", present, centred=False)
