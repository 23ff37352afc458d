"""What the engines with Python functions have in common: which functions an op has, and how they are documented.

PyTorch and TensorFlow get a documented function for each op of a library, and for some ops a module or a layer.
"""

from __future__ import annotations

import inspect
import keyword
import reprlib
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from opgate.ops_build.op_table import Attribute, Input, Op, Output, snake_case
from opgate.ops_build.signature_walk import text_of

_PYTHON_TYPES: Mapping[str, Any] = {"int": int, "float": float, "bool": bool, "str": str, "choice": str}

#: What the attributes of functions that take NumPy's numbers too may be.
_NUMBERS: Mapping[str, tuple[type, ...]] = {
    "int": (int, np.integer),
    "float": (float, int, np.floating, np.integer),
    "bool": (bool, np.bool_),
    "str": (str,),
    "choice": (str,),
}

_INT64 = range(-(2**63), 2**63)

#: Writes values for messages, and cuts long ones.
SHORT = reprlib.Repr()
SHORT.maxlist = SHORT.maxtuple = 20
SHORT.maxstring = SHORT.maxother = 200

#: The optional inputs that are parameters of a module or weights of a layer.
PARAMETERS = ("weight", "bias")


def functions_of(op: Op) -> Iterator[tuple[str, Op]]:
    """Yields the functions that Python has for an op: the name of each, and the op with the outputs that it returns.

    The first one returns all outputs but those on request. If these are not the required outputs alone, <name>_required
    returns and computes only those. If the op has outputs on request, <name>_all returns all.
    """
    usual = tuple(output for output in op.outputs if not output.on_request)
    required = tuple(output for output in op.outputs if not output.optional)
    name = snake_case(op.name)
    yield name, op if len(usual) == len(op.outputs) else replace(op, outputs=usual)
    if len(required) < len(usual):
        yield f"{name}_required", replace(op, outputs=required)
    if len(usual) < len(op.outputs):
        yield f"{name}_all", op


def is_module(op: Op, reserved: Collection[str]) -> bool:
    """Returns whether the op can be a module: its first input is required, it has no other but optional ones with a
    parameter among them, it is no gradient, and no attribute or size has a name in `reserved` or a keyword's."""
    first, *others = op.inputs or (None,)
    if first is None or first.optional or op.name.endswith("Backward"):
        return False
    taken = {attribute.name for attribute in op.attributes}
    if any(map(keyword.iskeyword, taken)):
        return False
    if not others:
        return True
    parameters = parameters_of(op)
    named = all(dim["kind"] == "name" for tensor in parameters for dim in tensor.dims)
    return (
        bool(parameters) and named and all(t.optional for t in others) and taken.isdisjoint({*sizes_of(op), *reserved})
    )


def parameters_of(op: Op) -> list[Input]:
    """Returns the inputs that are parameters of the op's module."""
    return [tensor for tensor in op.inputs[1:] if tensor.optional and tensor.name in PARAMETERS]


def sizes_of(op: Op) -> list[str]:
    """Returns the names of the sizes of the parameters."""
    return list(dict.fromkeys(dim["name"] for tensor in parameters_of(op) for dim in tensor.dims))


def signature_of(op: Op, tensor_type: Any) -> inspect.Signature | None:
    """Returns the signature of a function whose tensors are of `tensor_type`, or None (as a builtin function has) if a
    name is a keyword of Python."""
    if any(keyword.iskeyword(name) for name in [*(t.name for t in op.inputs), *(a.name for a in op.attributes)]):
        return None
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(
            tensor.name,
            kind,
            default=None if tensor.optional else inspect.Parameter.empty,
            annotation=types.GenericAlias(list, (tensor_type,))
            if tensor.variadic
            else tensor_type | None
            if tensor.optional
            else tensor_type,
        )
        for tensor in op.inputs
    ]
    count = len(op.outputs)
    returned = tensor_type if count == 1 else types.GenericAlias(tuple, (tensor_type,) * count)
    return inspect.Signature([*parameters, *map(keyword_of, op.attributes)], return_annotation=returned)


def keyword_of(attribute: Attribute) -> inspect.Parameter:
    """Returns the parameter of a function for an attribute."""
    element = _PYTHON_TYPES[attribute.kind]
    return inspect.Parameter(
        attribute.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if attribute.required else attribute.default,
        annotation=types.GenericAlias(list, (element,)) if attribute.list else element,
    )


def check_arguments(op: Op, arguments: Mapping[str, Any]) -> None:
    """Raises TypeError if the arguments by name, without the inputs, are not the attributes of an op."""
    label = f"{op.domain}::{op.name}"
    attributes = {attribute.name: attribute for attribute in op.attributes}
    for name, value in arguments.items():
        declared = attributes.get(name)
        if declared is None:
            if any(name == tensor.name for tensor in op.inputs):
                raise TypeError(f"{label}: input '{name}' is given twice")
            known = ", ".join([*(tensor.name for tensor in op.inputs), *attributes])
            raise TypeError(f"{label} has no argument '{name}': expected {known}")
        if not _fits(declared, value):
            raise TypeError(f"{label}: attribute '{name}': expected {_kind(declared)}, got {SHORT.repr(value)}")
        if declared.kind == "int" and not all(int(n) in _INT64 for n in (value if declared.list else [value])):
            raise ValueError(f"{label}: attribute '{name}': expected integers of 64 bits, got {SHORT.repr(value)}")
    for name, declared in attributes.items():
        if declared.required and name not in arguments:
            raise TypeError(f"{label}: attribute '{name}' is required: expected {_kind(declared)}")


def plain(value: Any) -> Any:
    """Returns the value of an attribute without types of NumPy."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(element) for element in value]
    return value.item() if isinstance(value, np.generic) else value


def _fits(declared: Attribute, value: Any) -> bool:
    expected = _NUMBERS[declared.kind]
    if declared.list and not isinstance(value, (list, tuple, np.ndarray)):
        return False
    return all(
        isinstance(element, expected) and not (isinstance(element, bool) and bool not in expected)
        for element in (value if declared.list else [value])
    )


def _kind(attribute: Attribute) -> str:
    kind = " or ".join(attribute.choices) or attribute.kind
    return f"a list of {kind}" if attribute.list else kind


def documentation(op: Op, notes: Sequence[str]) -> str:
    """Returns the docstring of a function of an op, with the engine's `notes` as its last lines."""
    lines = [op.doc, "", op.signature, "", "Inputs:"]
    lines += [f"    {tensor.name}: {_tensor(op, tensor)}" for tensor in op.inputs]
    if op.attributes:
        lines += ["", "Attributes:", *(f"    {a.name}: {_attribute(a)}" for a in op.attributes)]
    lines += ["", "Returns:", *(f"    {output.name}: {_tensor(op, output)}" for output in op.outputs)]
    return "\n".join([*lines, "", *notes])


def _tensor(op: Op, tensor: Input | Output) -> str:
    text = f"{' or '.join(op.type_variables.get(tensor.type, (tensor.type,)))} [{dims_text(tensor.dims)}]"
    if isinstance(tensor, Output):
        return text
    notes = (("optional", "may be left out"), ("variadic", "a list of one or more"), ("const", "on the CPU"))
    return ", ".join([text, *(note for name, note in notes if getattr(tensor, name))])


def _attribute(attribute: Attribute) -> str:
    text = " or ".join(map(repr, attribute.choices)) or attribute.kind
    if attribute.list:
        text = f"{attribute.length if attribute.length is not None else 'any number of'} {text}"
    return f"{text}, required" if attribute.required else f"{text}, default {attribute.default!r}"


def dims_text(dims: Sequence[Mapping[str, Any]]) -> str:
    """Returns the dims of a tensor as a signature writes them."""
    texts = []
    for dim in dims:
        if dim["kind"] == "ellipsis":
            texts.append("...")
        elif dim["kind"] == "any":
            texts.append("*")
        elif dim["kind"] == "name":
            texts.append(dim["name"] + (f" = {text_of(dim['default'])}" if "default" in dim else ""))
        elif dim["kind"] == "bounded":
            texts.append(f"{dim['name']} <= {text_of(dim['bound'])}")
        else:
            texts.append(text_of(dim["expr"]))
    return ", ".join(texts)
