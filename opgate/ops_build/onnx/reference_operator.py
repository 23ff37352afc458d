"""Wraps the NumPy reference of an op as an operator of `onnx.reference`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnx.reference.op_run import OpRun

from opgate.ops_build.case import Array
from opgate.ops_build.onnx.nodes import attribute_of_node
from opgate.ops_build.op_table import Op


def reference_operator(op: Op, reference: Callable[..., Any]) -> type[OpRun]:
    """Returns an operator that runs the reference, for `onnx.reference.ReferenceEvaluator(model, new_ops=[...])`."""

    def run(self: OpRun, *inputs: Array | None, **attributes: Any) -> Sequence[Array]:
        by_name: dict[str, Any] = {}
        for index, tensor in enumerate(op.inputs):
            by_name[tensor.name] = inputs[index:] if tensor.variadic else inputs[index] if index < len(inputs) else None
        values = {a.name: attribute_of_node(a, attributes.get(a.name)) for a in op.attributes}
        outputs = reference(**by_name, **values)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return type(op.name, (OpRun,), {"op_domain": op.domain, "_run": run})
