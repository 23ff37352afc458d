"""Which ops PyTorch can't have. It needs no PyTorch."""

from __future__ import annotations

from opgate.ops_build.op_table import Op


def why_left_out(op: Op) -> str:
    """Returns why PyTorch can't have an op, "" if it can."""
    if "str" in op.tensor_types:
        return "it takes or gives strings, and torch has no tensors of strings"
    return "" if op.inputs else "it has no inputs, and torch finds a kernel by their device"
