"""The rules for the names of a backward op. The gradient of an op X is the op XBackward, if the table has one.

An input of XBackward is called grad_<output> and gets the gradient of that output of X, or it is called like an input
or output of X and gets that tensor. An attribute gets the value of the attribute of X with the same name. An output is
called grad_<input> and is the gradient of that input. It is called grad_<input>_and_<input> if two inputs have the same
gradient.
"""

from __future__ import annotations

from collections.abc import Collection

from opgate.ops_build.op_table import Op

_FLOATS = frozenset({"f16", "bf16", "f32", "f64"})


def may_be_float(op: Op, type_name: str) -> bool:
    """Returns whether a tensor of this type may be of a float dtype."""
    return not _FLOATS.isdisjoint(op.type_variables.get(type_name, (type_name,)))


def check_convention(op: Op, backward: Op) -> None:
    """Raises ValueError if the backward op of an op doesn't follow the rules."""
    inputs = {tensor.name for tensor in op.inputs}
    outputs = {tensor.name for tensor in op.outputs}
    known = {f"grad_{name}" for name in outputs} | inputs | outputs
    for tensor in backward.inputs:
        if tensor.name not in known:
            raise ValueError(
                f"{backward.name}: input '{tensor.name}' is neither an input or output of {op.name} nor grad_<output>"
            )
    for output in backward.outputs:
        if not output.name.startswith("grad_") or not inputs.issuperset(inputs_of(output.name, inputs)):
            raise ValueError(f"{backward.name}: output '{output.name}' is not grad_<input> of {op.name}")
    attributes = {attribute.name for attribute in op.attributes}
    for attribute in backward.attributes:
        if attribute.required and attribute.name not in attributes:
            raise ValueError(f"{backward.name}: attribute '{attribute.name}' is required and {op.name} has none such")


def inputs_of(gradient: str, inputs: Collection[str]) -> list[str]:
    """Returns the inputs whose gradient an output of a backward op is: [x] for grad_x, [x, residual] for
    grad_x_and_residual."""
    name = gradient.removeprefix("grad_")
    return [name] if name in inputs or name == gradient else name.split("_and_")
