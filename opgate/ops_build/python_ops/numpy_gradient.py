"""The op of a gradient that its author states in NumPy, for an op that has no formula."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from opgate.ops_build.op_functions import dims_text
from opgate.ops_build.op_gradients import may_be_float
from opgate.ops_build.op_table import Input, Op, Output
from opgate.ops_build.python_ops.gradient_op import FLOATS, attribute_text, named_by
from opgate.ops_build.python_ops.python_op import PythonOp, place_of
from opgate.ops_build.python_ops.traced import FormulaError


def numpy_gradient_signature(op: Op, python: PythonOp) -> str | None:
    """Returns the signature of the op that computes the gradient; None if the author states none, or no input has one.
    Raises FormulaError."""
    function = python.gradient_function
    differentiable = [tensor for tensor in op.inputs if not tensor.const and may_be_float(op, tensor.type)]
    if function is None or not differentiable:
        return None
    if any(tensor.variadic for tensor in op.inputs):
        raise FormulaError(f"{place_of(function)}: an input that is a list of tensors has no gradient")
    both: list[Input | Output] = [*op.outputs, *op.inputs]
    tensors = {tensor.name: tensor for tensor in both}
    named = sorted((tensors[name] for name in named_by(function, op)), key=lambda tensor: tensor.optional)
    of_outputs = [output for output in op.outputs if may_be_float(op, output.type)]
    inputs = [*(f"grad_{_stated(output, optional=False)}" for output in of_outputs), *map(_stated, named)]
    outputs = [f"grad_{_stated(replace(tensor, const=False))}" for tensor in differentiable]
    takes = inspect.signature(function).parameters
    attributes = ", ".join(attribute_text(each) for each in op.attributes if each.name in takes)
    text = f"{op.name}Backward({', '.join(inputs)}{'; ' * bool(attributes)}{attributes}) -> ({', '.join(outputs)})"
    used = {name: dtypes for name, dtypes in op.type_variables.items() if f": {name}[" in text}
    floats = {name: [dtype for dtype in dtypes if dtype in FLOATS] or dtypes for name, dtypes in used.items()}
    variables = ", ".join(f"{name}: {'|'.join(dtypes)}" for name, dtypes in floats.items())
    return f"<{variables}> {text}" if variables else text


def _stated(tensor: Input | Output, *, optional: bool | None = None) -> str:
    """Returns a tensor as a signature states it, where each name has its value already."""
    dims = [{"kind": "name", "name": d["name"]} if d["kind"] in ("name", "bounded") else d for d in tensor.dims]
    mark = "?" * (tensor.optional if optional is None else optional)
    const = "const " * (isinstance(tensor, Input) and tensor.const)
    return f"{tensor.name}{mark}: {const}{tensor.type}[{dims_text(dims)}]"


def numpy_gradient(op: Op, backward: Op, python: PythonOp) -> Callable[..., Any]:
    """Returns the author's function as one that takes the inputs of the backward op by position and its attributes by
    name, and returns the backward op's outputs. An input without a gradient has zeros."""
    function = python.gradient_function
    assert function is not None
    takes = inspect.signature(function).parameters
    places = [tensor.name for tensor in op.inputs]

    def compute(*inputs: Any, **attributes: Any) -> Any:
        values: dict[str, Any] = dict(zip((tensor.name for tensor in backward.inputs), inputs, strict=True))
        values |= attributes
        results = function(**{name: values[name] for name in takes})
        parts = results if isinstance(results, tuple) else (results,)
        if len(parts) != len(places):
            raise TypeError(f"expected {len(places)} gradients, one for each input, got {len(parts)}")
        by_name = dict(zip((f"grad_{name}" for name in places), parts, strict=True))
        return tuple(
            _zeros(output, backward, values) if by_name[output.name] is None else by_name[output.name]
            for output in backward.outputs
        )

    return compute


def _zeros(output: Output, backward: Op, values: Mapping[str, Any]) -> Any:
    """Returns the gradient of an input that has none, or that is absent."""
    sizes: dict[str, tuple[int, ...]] = {}
    for tensor in backward.inputs:
        shape = np.shape(values[tensor.name]) if values[tensor.name] is not None else ()
        for place, dim in enumerate(tensor.dims):
            after = len(tensor.dims) - place - 1
            if dim["kind"] == "ellipsis":
                sizes["..."] = shape[place : len(shape) - after]
            elif dim["kind"] == "name" and shape:
                at = place if "..." not in sizes else len(shape) - after - 1
                sizes[dim["name"]] = (shape[at],)
    keys = ["..." if dim["kind"] == "ellipsis" else str(dim["expr"]) for dim in output.dims]
    if not sizes.keys() >= set(keys):
        raise TypeError(f"{output.name}: expected an array, got None: its shape follows from no input of the gradient")
    return np.zeros([size for key in keys for size in sizes[key]], np.float32)
