"""Holds a gradient that is stated in Python to differences of the reference of its op."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opgate.ops_build.case import Array, Case
from opgate.ops_build.op_folder import OpFolder, folder_of, run_reference
from opgate.ops_build.op_functions import functions_of
from opgate.ops_build.op_table import Op
from opgate.ops_build.python_ops.differences import check_directions
from opgate.ops_build.stated_gradient import StatedGradient


class References:
    """The references of the ops of a table as functions of f64 arrays, by the names of the ops in snake_case."""

    def __init__(self, ops: Iterable[Op], folders: Sequence[Path]) -> None:
        self._ops = {name: (op, returned) for op in ops for name, returned in functions_of(op)}
        self._folders = folders

    def __getattr__(self, name: str) -> Any:
        if name not in self._ops:
            raise AttributeError(f"the table has no op {name}")
        op, returned = self._ops[name]
        reference = folder_of(op, self._folders).reference

        def call(*tensors: Any, **attributes: Any) -> Any:
            inputs = {t.name: array for t, array in zip(op.inputs, tensors, strict=False) if array is not None}
            found = run_reference(op, reference, Case(name, inputs, attributes))
            outputs = [found[output.name] for output in returned.outputs]
            return outputs[0] if len(outputs) == 1 else tuple(outputs)

        return call


def check_stated_gradient(op: Op, folder: OpFolder, case: Case, references: References) -> None:
    """Raises ValueError if the gradient is no slope of the reference, for the inputs of a case in f64. All elements of
    an input are moved at once, each by a random step. A case whose outputs aren't finite shows nothing."""
    stated = StatedGradient(op)
    rng = np.random.default_rng(0)
    inputs = {name: _wide(np.asarray(array)) for name, array in case.inputs.items()}
    attributes = {each.name: case.attributes.get(each.name, each.default) for each in op.attributes}

    def outputs_of(arrays: Mapping[str, Array]) -> dict[str, Array]:
        return run_reference(op, folder.reference, Case(case.name, arrays, attributes))

    outputs = outputs_of(inputs)
    if not all(np.isfinite(array).all() for array in outputs.values() if array.dtype.kind == "f"):
        return
    of_outputs = {name: rng.standard_normal(array.shape) for name, array in outputs.items() if array.dtype.kind == "f"}
    tensors: dict[str, Any] = {t.name: inputs.get(t.name) for t in op.inputs}
    tensors |= outputs | {f"grad_{name}": array for name, array in of_outputs.items()}
    gradients = stated(references, tensors, attributes)
    for name, gradient in gradients.items():
        if name in inputs and gradient.shape != inputs[name].shape:
            shapes = f"expected {list(inputs[name].shape)}, got {list(gradient.shape)}"
            raise ValueError(f"the gradient of '{name}' has another shape: {shapes}")

    def function(*arrays: Any, **_: Any) -> tuple[Array, ...]:
        named = {tensor.name: array for tensor, array in zip(op.inputs, arrays, strict=True) if array is not None}
        found = outputs_of(named)
        return tuple(found[output.name] for output in op.outputs)

    given = {f"grad_{name}": gradient for name, gradient in gradients.items()}
    check_directions(op, function, tensors, attributes, given)


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.name in ("float16", "bfloat16", "float32") else array
