"""What torch knows of an op without running it: the outputs' shapes and dtypes, evaluated from the signature, with
torch's symbols for sizes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ops_build.shapes import OPERATORS, Bound, Given, ShapeError, bind, evaluate
from ops_build.table import Expr, Input, Op

DTYPES: Mapping[str, torch.dtype] = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

#: Python's min and max would decide between two symbols, and bind the trace to the sizes at hand.
SYMBOLIC_OPERATORS = {**OPERATORS, "min": torch.sym_min, "max": torch.sym_max}


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call: `tensors` in the signature's order, those of a variadic input at the end."""

    tensors: Sequence[torch.Tensor | None]
    attributes: Mapping[str, Any]


def call_of(op: Op, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Call:
    """Arguments as torch passes them: it leaves out those that equal their default."""
    tensors: list[torch.Tensor | None] = []
    for index, tensor in enumerate(op.inputs):
        given: Any = arguments[index] if index < len(arguments) else keywords.get(tensor.name)
        if tensor.variadic:
            tensors.extend(given)
        else:
            tensors.append(given)
    given = {a.name: keywords.get(a.name) for a in op.attributes}
    return Call(tensors, {a.name: a.default if given[a.name] is None else given[a.name] for a in op.attributes})


def fake_kernel(op: Op) -> Callable[..., Any]:
    """The op on tensors that have no data. It raises ValueError where the kernel would."""

    def fake(*arguments: Any, **keywords: Any) -> Any:
        call = call_of(op, arguments, keywords)
        try:
            device = _device(op, call)
            types = _types(op, call)
            shapes = _shapes(op, _bind(op, call))
        except (ShapeError, ZeroDivisionError) as error:
            raise ValueError(f"{op.domain}::{op.name}: {error}") from error
        made = [
            torch.empty(shape, dtype=types.get(output.type) or DTYPES[output.type], device=device)
            for output, shape in zip(op.outputs, shapes, strict=True)
        ]
        return made[0] if len(made) == 1 else tuple(made)

    return fake


def _input_at(op: Op, index: int) -> Input:
    return op.inputs[min(index, len(op.inputs) - 1)]


def _device(op: Op, call: Call) -> torch.device:
    """Where the call runs: where its first input that is no host memory lies, and all others must."""
    device = None
    for index, tensor in enumerate(call.tensors):
        declared = _input_at(op, index)
        if tensor is None or declared.const:
            continue
        device = device or tensor.device
        if tensor.device != device:
            raise ShapeError(
                f"input '{declared.name}': expected a tensor on {device}, as the others, got one on {tensor.device}"
            )
    return device or torch.device("cpu")


def _types(op: Op, call: Call) -> dict[str, torch.dtype]:
    """What the type variables stand for."""
    types: dict[str, torch.dtype] = {}
    for index, tensor in enumerate(call.tensors):
        if tensor is None:
            continue
        declared = _input_at(op, index)
        allowed = op.type_variables.get(declared.type, (declared.type,))
        found = _NAMES.get(tensor.dtype, str(tensor.dtype))
        if found not in allowed:
            raise ShapeError(f"input '{declared.name}': expected {'|'.join(allowed)}, got {found}")
        if declared.type in op.type_variables and types.setdefault(declared.type, tensor.dtype) != tensor.dtype:
            raise ShapeError(
                f"input '{declared.name}': expected {declared.type} = {_NAMES[types[declared.type]]}, got {found}"
            )
    return types


def _bind(op: Op, call: Call) -> Bound:
    """Binds the sizes and tells torch what the kernel will check of them."""
    integers = {a.name: call.attributes[a.name] for a in op.attributes if a.kind == "int" and not a.list}
    given = [None if tensor is None else Given(tensor.shape) for tensor in call.tensors]
    bound = bind(op, given, integers, SYMBOLIC_OPERATORS)
    for index, tensor in enumerate(call.tensors):
        if tensor is not None:
            _check_dims(op, _input_at(op, index), tensor, bound)
    return bound


def _check_dims(op: Op, declared: Input, tensor: torch.Tensor, bound: Bound) -> None:
    expected: list[Any] = []
    for dim in declared.dims:
        if dim["kind"] == "ellipsis":
            expected.extend(bound.ellipsis or ())
        else:
            expr = dim["name"] if dim["kind"] == "name" else dim["expr"]
            expected.append(evaluate(expr, bound.sizes, SYMBOLIC_OPERATORS))
    for axis, (size, wanted) in enumerate(zip(tensor.shape, expected, strict=True)):
        if wanted is not None:
            where = (
                f"{op.domain}::{op.name}: input '{declared.name}': expected size {wanted} at axis {axis}, got {size}"
            )
            _check(size == wanted, where)


def _check(holds: Any, message: str) -> None:
    if holds is False:
        raise ValueError(message)
    if holds is not True:
        torch._check(holds, lambda: message)


def _shapes(op: Op, bound: Bound) -> list[tuple[Any, ...]]:
    """The outputs' shapes. A size that the kernel binds, or that an input's data says, becomes a symbol of its own, the
    same wherever it stands."""
    sizes = dict(bound.sizes)
    unknown: dict[str, Any] = {}
    shapes = []
    for output in op.outputs:
        for dim in output.dims:
            if dim["kind"] == "bounded":
                sizes[dim["name"]] = _new_size(evaluate(dim["bound"], sizes, SYMBOLIC_OPERATORS))
    for output in op.outputs:
        shape: list[Any] = []
        for dim in output.dims:
            if dim["kind"] == "ellipsis":
                shape.extend(bound.ellipsis or ())
            else:
                shape.append(_size(dim["name"] if dim["kind"] == "bounded" else dim["expr"], sizes, unknown))
        shapes.append(tuple(shape))
    return shapes


def _size(expr: Expr, sizes: Mapping[str, Any], unknown: dict[str, Any]) -> Any:
    size = evaluate(expr, sizes, SYMBOLIC_OPERATORS)
    if size is None:
        key = json.dumps(expr)
        if key not in unknown:
            unknown[key] = _new_size(None)
        return unknown[key]
    if isinstance(expr, list):
        _check(size >= 0, f"size {size} of an output is negative")
    return size


def _new_size(bound: Any) -> Any:
    if isinstance(bound, int):
        return torch.library.get_ctx().new_dynamic_size(min=0, max=bound) if bound else 0
    size = torch.library.get_ctx().new_dynamic_size()
    if bound is not None:
        torch._check(size <= bound)
    return size
