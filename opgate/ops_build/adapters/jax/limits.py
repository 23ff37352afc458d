"""Which ops JAX can't have. It needs no JAX."""

from __future__ import annotations

from opgate.ops_build.op_table import Op


def why_left_out(op: Op) -> str:
    """Returns why JAX can't have an op, "" if it can."""
    if "str" in op.tensor_types:
        return "JAX has no strings"
    for output in op.outputs:
        for dim in output.dims:
            if dim["kind"] == "bounded":
                return f"only its kernel finds the size {dim['name']}, and JAX must know all sizes before a run"
    return ""
