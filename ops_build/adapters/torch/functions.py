"""Creates a documented Python function, and for some ops a module, for each op of a library."""

from __future__ import annotations

import inspect
import keyword
import linecache
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.jit import _builtins

from opgate.ops_build.adapters.torch.names import functions_of, namespace_of, overload
from opgate.ops_build.adapters.torch.registration import OpLibrary
from opgate.ops_build.table import Attribute, Input, Op, Output, snake_case
from opgate.ops_build.walk import text_of

_PYTHON_TYPES: Mapping[str, Any] = {"int": int, "float": float, "bool": bool, "str": str, "choice": str}


def public_names(library: OpLibrary) -> dict[str, Any]:
    """Returns the functions and modules of a library by name.

    A function has the op's name in snake_case. One that returns only the required outputs ends with _required, and one
    that returns those on request too with _all. A module has the op's name; only some ops have one."""
    names: dict[str, Any] = {}
    differentiable = {op.name.removesuffix("Backward") for op in library.ops if op.name.endswith("Backward")}
    for op in library.ops:
        for name, returned in functions_of(op):
            names[name] = function(returned, name, differentiable=op.name in differentiable)
        if is_module(op):
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
    call.__doc__ = _documentation(op, differentiable)
    call.__signature__ = _signature(op)  # type: ignore[attr-defined]
    # torch.jit.script compiles no function with *tensors. It calls the op where a script calls this function.
    _builtins._register_builtin(call, f"{namespace_of(op.domain)}::{name}")
    return call


#: The optional inputs that are parameters of a module, and the values with which they begin.
_PARAMETERS: Mapping[str, Callable[..., torch.Tensor]] = {"weight": torch.ones, "bias": torch.zeros}
#: What the constructor of a module with parameters takes beside sizes and attributes.
_PLACES = ("device", "dtype")


def is_module(op: Op) -> bool:
    """Returns whether the op can be a module: its first input is required, it has no other but optional ones with a
    parameter among them, it is no gradient, and none of its attributes has a name that the constructor can't take."""
    first, *others = op.inputs or (None,)
    if first is None or first.optional or op.name.endswith("Backward"):
        return False
    taken = {attribute.name for attribute in op.attributes}
    if any(map(keyword.iskeyword, taken)):
        return False
    if not others:
        return True
    parameters = _parameters(op)
    named = all(dim["kind"] == "name" for tensor in parameters for dim in tensor.dims)
    return bool(parameters) and named and all(t.optional for t in others) and taken.isdisjoint({*_sizes(op), *_PLACES})


def _parameters(op: Op) -> list[Input]:
    """Returns the inputs that are parameters of the op's module."""
    return [tensor for tensor in op.inputs[1:] if tensor.optional and tensor.name in _PARAMETERS]


def _sizes(op: Op) -> list[str]:
    """Returns the names of the sizes of the parameters."""
    return list(dict.fromkeys(dim["name"] for tensor in _parameters(op) for dim in tensor.dims))


def module(op: Op) -> type:
    """Returns the op as a subclass of torch.nn.Module. Its forward takes the first input and returns the required
    outputs. The optional inputs `weight` and `bias` are parameters, which begin with 1 and 0; the other optional inputs
    stay absent. The constructor takes the sizes of the parameters, the op's attributes by name, and for parameters
    `device` and `dtype` as torch's own modules do.

    An object has the value of an attribute `k` as `k_`, and all values as `attributes`.
    """
    parameters, sizes = _parameters(op), _sizes(op)
    given = [_keyword(attribute) for attribute in op.attributes]
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
    arguments = "".join(f", {tensor.name}=self.{tensor.name}" for tensor in _parameters(op))
    arguments += "".join(f", {attribute.name}=self.{attribute.name}_" for attribute in op.attributes)
    called = f"torch.ops.{namespace_of(op.domain)}.{name}"
    source = f"def forward(self, tensor: {given}) -> {returned}:\n    return {called}(tensor{arguments})\n"
    file = f"<opgate.torch {op.domain}::{op.name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"torch": torch, "Tensor": torch.Tensor}
    exec(compile(source, file, "exec"), names)
    forward: Callable[..., Any] = names["forward"]
    return forward


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
        elif dim["kind"] == "any":
            texts.append("*")
        elif dim["kind"] == "name":
            texts.append(dim["name"] + (f" = {text_of(dim['default'])}" if "default" in dim else ""))
        elif dim["kind"] == "bounded":
            texts.append(f"{dim['name']} <= {text_of(dim['bound'])}")
        else:
            texts.append(text_of(dim["expr"]))
    return ", ".join(texts)
