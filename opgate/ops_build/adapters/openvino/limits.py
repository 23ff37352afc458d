"""Which ops OpenVINO can't have. It needs no OpenVINO."""

from __future__ import annotations

from opgate.ops_build.op_table import Op

#: What the plugin for the CPU makes of other dtypes when it compiles a model.
MADE = {"f16": "f32", "bf16": "f32", "f64": "f32", "i64": "i32", "bool": "u8"}


def why_left_out(op: Op) -> str:
    """Returns why OpenVINO can't have an op, "" if it can."""
    if "str" in op.tensor_types:
        return "an operation in Python gets no strings from OpenVINO"
    for tensor in op.inputs:
        types = op.type_variables.get(tensor.type, (tensor.type,))
        for dtype in types:
            if dtype != "i64" and (made := MADE.get(dtype, dtype)) not in types:
                return f"the plugin for the CPU makes {made} of {dtype}, which input '{tensor.name}' can't be"
    return "" if op.inputs else "an operation of OpenVINO has an input"
