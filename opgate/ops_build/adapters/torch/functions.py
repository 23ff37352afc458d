"""Creates a documented Python function, and for some ops a module, for each op of a library."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.jit import _builtins

from opgate.ops_build.adapters.torch.names import namespace_of, overload
from opgate.ops_build.adapters.torch.registration import OpLibrary
from opgate.ops_build.op_functions import (
    documentation,
    functions_of,
    is_module,
    keyword_of,
    parameters_of,
    signature_of,
    sizes_of,
)
from opgate.ops_build.op_table import Op, snake_case
from opgate.ops_build.stated_gradient import differentiable


def public_names(library: OpLibrary) -> dict[str, Any]:
    """Returns the functions and modules of a library by name.

    A function has the op's name in snake_case. One that returns only the required outputs ends with _required, and one
    that returns those on request too with _all. A module has the op's name; only some ops have one."""
    names: dict[str, Any] = {}
    with_gradient = differentiable(library.ops)
    for op in library.ops:
        for name, returned in functions_of(op):
            names[name] = function(returned, name, differentiable=op.name in with_gradient)
        if is_module(op, _PLACES):
            names[op.name] = module(op)
    return names


def function(op: Op, name: str, *, differentiable: bool) -> Callable[..., Any]:
    """Returns what calls the function `name` of the op, with a signature and a docstring. `op` has the outputs that it
    returns."""
    registered = overload(op, name)

    def call(*tensors: Any, **arguments: Any) -> Any:
        return registered(*tensors, **arguments)

    call.__name__ = call.__qualname__ = name
    call.__module__ = "opgate.torch"
    call.__doc__ = documentation(op, _notes(differentiable))
    call.__signature__ = signature_of(op, torch.Tensor)  # type: ignore[attr-defined]
    # torch.jit.script compiles no function with *tensors. It calls the op where a script calls this function.
    _builtins._register_builtin(call, f"{namespace_of(op.domain)}::{name}")
    return call


#: The optional inputs that are parameters of a module, and the values with which they begin.
_PARAMETERS: Mapping[str, Callable[..., torch.Tensor]] = {"weight": torch.ones, "bias": torch.zeros}
#: What the constructor of a module with parameters takes beside sizes and attributes.
_PLACES = ("device", "dtype")


def module(op: Op) -> type:
    """Returns the op as a subclass of torch.nn.Module. Its forward takes the first input and returns the required
    outputs. The optional inputs `weight` and `bias` are parameters, which begin with 1 and 0; the other optional inputs
    stay absent. The constructor takes the sizes of the parameters, the op's attributes by name, and for parameters
    `device` and `dtype` as torch's own modules do.

    An object has the value of an attribute `k` as `k_`, and all values as `attributes`.
    """
    parameters, sizes = parameters_of(op), sizes_of(op)
    given = [keyword_of(attribute) for attribute in op.attributes]
    settings = inspect.Signature(
        [inspect.Parameter(size, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=int) for size in sizes]
        + given
        + [inspect.Parameter(place, inspect.Parameter.KEYWORD_ONLY, default=None) for place in _PLACES if parameters]
    )
    floats = {attribute.name for attribute in op.attributes if attribute.kind == "float"}

    def __init__(self: Any, *given_sizes: int, **arguments: Any) -> None:
        torch.nn.Module.__init__(self)
        bound = settings.bind(*given_sizes, **arguments)  # raises a TypeError that names a missing or unknown argument
        bound.apply_defaults()
        values = bound.arguments
        for attribute in op.attributes:
            value = values[attribute.name]
            listed = list(value) if isinstance(value, (list, tuple)) else value
            # torch.jit.script makes no float of an int.
            setattr(self, f"{attribute.name}_", _floats(listed) if attribute.name in floats else listed)
        for tensor in parameters:
            shape = [values[dim["name"]] for dim in tensor.dims]
            made = _PARAMETERS[tensor.name](shape, device=values["device"], dtype=values["dtype"])
            setattr(self, tensor.name, torch.nn.Parameter(made))

    def attributes(self: Any) -> dict[str, Any]:
        return {attribute.name: getattr(self, f"{attribute.name}_") for attribute in op.attributes}

    def extra_repr(self: Any) -> str:
        shapes = [f"{tensor.name}={list(getattr(self, tensor.name).shape)}" for tensor in parameters]
        return ", ".join([*shapes, *(f"{name}={value!r}" for name, value in self.attributes.items())])

    functions = dict(functions_of(op))
    name = snake_case(op.name)
    if parameters and f"{name}_required" in functions:
        name += "_required"
    members = {
        "__init__": __init__,
        "__module__": "opgate.torch",
        "__doc__": f"{op.doc}\n\nopgate.torch.{name} as a module.",
        "__signature__": settings,
        # torch.jit.script reads the types of the fields, and compiles no property.
        "__annotations__": {f"{parameter.name}_": parameter.annotation for parameter in given},
        "__jit_unused_properties__": ["attributes"],
        "attributes": property(attributes),
        "forward": _forward(functions[name], name),
        "extra_repr": extra_repr,
    }
    return type(op.name, (torch.nn.Module,), members)


def _floats(value: Any) -> Any:
    return [float(element) for element in value] if isinstance(value, list) else float(value)


def _forward(op: Op, name: str) -> Callable[..., Any]:
    """Returns the function `forward` of a module, which calls the function `name` of the op. It is made from source,
    because torch.jit.script reads its source."""
    variadic, several = op.inputs[0].variadic, len(op.outputs) > 1
    given = "list[Tensor]" if variadic else "Tensor"
    returned = f"tuple[{', '.join(['Tensor'] * len(op.outputs))}]" if several else "Tensor"
    arguments = "".join(f", {tensor.name}=self.{tensor.name}" for tensor in parameters_of(op))
    arguments += "".join(f", {attribute.name}=self.{attribute.name}_" for attribute in op.attributes)
    called = f"torch.ops.{namespace_of(op.domain)}.{name}"
    source = f"def forward(self, tensor: {given}) -> {returned}:\n    return {called}(tensor{arguments})\n"
    file = f"<opgate.torch {op.domain}::{op.name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"torch": torch, "Tensor": torch.Tensor}
    exec(compile(source, file, "exec"), names)
    forward: Callable[..., Any] = names["forward"]
    return forward


def _notes(differentiable: bool) -> list[str]:
    gradient = "Has a gradient." if differentiable else "Has no gradient: asking for one raises NotImplementedError."
    return [gradient, "Raises ValueError where the inputs don't fit the signature."]
