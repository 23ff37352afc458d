"""Which ops LiteRT can't have. It needs no LiteRT."""

from __future__ import annotations

from opgate.ops_build.op_table import Op

NO_STRINGS = "LiteRT's delegates can't have tensors of strings"


def why_left_out(op: Op) -> str:
    """Returns why LiteRT can't have an op, "" if it can."""
    return NO_STRINGS if "str" in op.tensor_types else ""
