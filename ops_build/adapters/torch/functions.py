"""Creates a documented Python function, and for some ops a module, for each op of a library."""

from __future__ import annotations

import inspect
import keyword
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from opgate.ops_build.adapters.torch.registration import OpLibrary, overload
from opgate.ops_build.table import Attribute, Input, Op, Output, snake_case
from opgate.ops_build.walk import text_of

_PYTHON_TYPES: Mapping[str, Any] = {"int": int, "float": float, "bool": bool, "str": str, "choice": str}


def public_names(library: OpLibrary) -> dict[str, Any]:
    """Returns the functions and modules of a library by name.

    A function has the op's name in snake_case. A module has the op's name; only some ops have one."""
    names: dict[str, Any] = {}
    differentiable = {op.name.removesuffix("Backward") for op in library.ops if op.name.endswith("Backward")}
    for op in library.ops:
        names[snake_case(op.name)] = function(op, differentiable=op.name in differentiable)
        if is_module(op):
            names[op.name] = module(op)
    return names


def function(op: Op, *, differentiable: bool) -> Callable[..., Any]:
    """Returns a function that calls the op, with a signature and a docstring."""
    registered = overload(op)

    def call(*tensors: Any, **arguments: Any) -> Any:
        return registered(*tensors, **arguments)

    call.__name__ = call.__qualname__ = snake_case(op.name)
    call.__module__ = "opgate.torch"
    call.__doc__ = _documentation(op, differentiable)
    call.__signature__ = _signature(op)  # type: ignore[attr-defined]
    return call


def is_module(op: Op) -> bool:
    """Returns whether the op can be a module: it has exactly one input, which is required, and is no gradient."""
    return len(op.inputs) == 1 and not op.inputs[0].optional and not op.name.endswith("Backward")


def module(op: Op) -> type:
    """Returns the op as a subclass of torch.nn.Module. The op's attributes are the arguments of the constructor."""
    registered = overload(op)
    settings = inspect.Signature([_keyword(attribute) for attribute in op.attributes])

    def __init__(self: Any, **attributes: Any) -> None:
        torch.nn.Module.__init__(self)
        bound = settings.bind(**attributes)  # raises a TypeError that names the missing or unknown attribute
        bound.apply_defaults()
        self.attributes = dict(bound.arguments)

    def forward(self: Any, tensor: Any) -> Any:
        return registered(tensor, **self.attributes)

    def extra_repr(self: Any) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.attributes.items())

    members = {
        "__init__": __init__,
        "__module__": "opgate.torch",
        "__doc__": f"{op.doc}\n\nopgate.torch.{snake_case(op.name)} as a module.",
        "__signature__": settings,
        "forward": forward,
        "extra_repr": extra_repr,
    }
    return type(op.name, (torch.nn.Module,), members)


def _signature(op: Op) -> inspect.Signature | None:
    """Returns the signature, or None (as a builtin function has) if a name is a keyword of Python."""
    if any(keyword.iskeyword(name) for name in [*(t.name for t in op.inputs), *(a.name for a in op.attributes)]):
        return None
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(
            tensor.name,
            kind,
            default=None if tensor.optional else inspect.Parameter.empty,
            annotation=types.GenericAlias(list, (torch.Tensor,))
            if tensor.variadic
            else torch.Tensor | None
            if tensor.optional
            else torch.Tensor,
        )
        for tensor in op.inputs
    ]
    count = len(op.outputs)
    returned = torch.Tensor if count == 1 else types.GenericAlias(tuple, (torch.Tensor,) * count)
    return inspect.Signature([*parameters, *map(_keyword, op.attributes)], return_annotation=returned)


def _keyword(attribute: Attribute) -> inspect.Parameter:
    element = _PYTHON_TYPES[attribute.kind]
    return inspect.Parameter(
        attribute.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if attribute.required else attribute.default,
        annotation=types.GenericAlias(list, (element,)) if attribute.list else element,
    )


def _documentation(op: Op, differentiable: bool) -> str:
    lines = [op.doc, "", op.signature, "", "Inputs:"]
    lines += [f"    {tensor.name}: {_tensor(op, tensor)}" for tensor in op.inputs]
    if op.attributes:
        lines += ["", "Attributes:", *(f"    {a.name}: {_attribute(a)}" for a in op.attributes)]
    lines += ["", "Returns:", *(f"    {output.name}: {_tensor(op, output)}" for output in op.outputs)]
    gradient = "Has a gradient." if differentiable else "Has no gradient: asking for one raises NotImplementedError."
    lines += ["", gradient, "Raises ValueError where the inputs don't fit the signature."]
    return "\n".join(lines)


def _tensor(op: Op, tensor: Input | Output) -> str:
    text = f"{' or '.join(op.type_variables.get(tensor.type, (tensor.type,)))} [{_dims(tensor.dims)}]"
    if isinstance(tensor, Output):
        return text
    notes = (("optional", "may be left out"), ("variadic", "a list of one or more"), ("const", "on the CPU"))
    return ", ".join([text, *(note for name, note in notes if getattr(tensor, name))])


def _attribute(attribute: Attribute) -> str:
    text = " or ".join(map(repr, attribute.choices)) or attribute.kind
    if attribute.list:
        text = f"{attribute.length if attribute.length is not None else 'any number of'} {text}"
    return f"{text}, required" if attribute.required else f"{text}, default {attribute.default!r}"


def _dims(dims: Sequence[Mapping[str, Any]]) -> str:
    texts = []
    for dim in dims:
        if dim["kind"] == "ellipsis":
            texts.append("...")
        elif dim["kind"] == "name":
            texts.append(dim["name"] + (f" = {text_of(dim['default'])}" if "default" in dim else ""))
        elif dim["kind"] == "bounded":
            texts.append(f"{dim['name']} <= {text_of(dim['bound'])}")
        else:
            texts.append(text_of(dim["expr"]))
    return ", ".join(texts)
