"""LeakyRelu in standard ONNX operators: the one of this name."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    return """
        <domain: "opgate", opset_import: ["": 18]>
        LeakyRelu <alpha: float = 0.01> (x) => (y) {
            y = LeakyRelu <alpha: float = @alpha> (x)
        }
    """
