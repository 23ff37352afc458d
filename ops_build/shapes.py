"""Output shapes from a signature's expressions, for whatever can be added, multiplied and compared: integers, a
compiler's symbols, or names of unknown sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ops_build.table import Expr, Op

#: A size as the caller has it; None where nothing is known of it.
Size = Any

Operators = Mapping[str, Callable[[Any, Any], Any]]

OPERATORS: Operators = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
    "ceildiv": lambda a, b: -(-a // b),
}


class ShapeError(ValueError):
    """Inputs that don't fit the signature; names the input, what was expected and what came."""


@dataclass(frozen=True, slots=True)
class Given:
    """An input that is there; its shape is None where nobody knows its rank."""

    shape: Sequence[Size] | None


@dataclass(frozen=True, slots=True)
class Bound:
    """What the inputs bind: sizes by name, and the dims of `...`."""

    sizes: Mapping[str, Size]
    ellipsis: tuple[Size, ...] | None


def evaluate(expr: Expr, sizes: Mapping[str, Size], operators: Operators = OPERATORS) -> Size:
    """The value of an expression; None where a size in it is unknown or is only a name and the expression more."""
    if isinstance(expr, int):
        return expr
    if isinstance(expr, str):
        return sizes.get(expr)
    left, right = (evaluate(operand, sizes, operators) for operand in expr[1:])
    if left is None or right is None or isinstance(left, str) or isinstance(right, str):
        return None
    if expr[0] in ("/", "%", "ceildiv") and isinstance(right, int) and right == 0:
        raise ShapeError("a size is divided by zero")
    return operators[expr[0]](left, right)


def bind(
    op: Op, inputs: Sequence[Given | None], integers: Mapping[str, int], operators: Operators = OPERATORS
) -> Bound:
    """Binds names from the inputs in the signature's order: None for an absent one, and at the end all tensors of a
    variadic one. `integers` are the integer attributes. Raises ShapeError."""
    sizes: dict[str, Size] = dict(integers)
    ellipsis: tuple[Size, ...] | None = None
    for index, given in enumerate(inputs):
        if given is None or given.shape is None:
            continue
        shape = given.shape
        tensor = op.inputs[min(index, len(op.inputs) - 1)]
        kinds = [dim["kind"] for dim in tensor.dims]
        extra = len(shape) - len(kinds)
        if extra != 0 if "ellipsis" not in kinds else extra < -1:
            raise ShapeError(f"input '{tensor.name}': expected rank {len(kinds)}, got shape {list(shape)}")
        place = 0
        for dim in tensor.dims:
            if dim["kind"] == "ellipsis":
                ellipsis = _merged_dims(tensor.name, ellipsis, tuple(shape[place : place + extra + 1]))
                place += extra + 1
                continue
            if dim["kind"] == "name":
                sizes[dim["name"]] = _merged(tensor.name, dim["name"], sizes.get(dim["name"]), shape[place])
            place += 1
    for index, tensor in enumerate(op.inputs):
        if index >= len(inputs) or inputs[index] is None:
            for dim in tensor.dims:
                if "default" in dim and sizes.get(dim["name"]) is None:
                    sizes[dim["name"]] = evaluate(dim["default"], sizes, operators)
    return Bound(sizes, ellipsis)


def _merged(tensor: str, name: str, bound: Size, size: Size) -> Size:
    """The more exact of two descriptions of one size."""
    if bound is None:
        return size
    if isinstance(bound, int) and isinstance(size, int) and bound != size:
        raise ShapeError(f"input '{tensor}': expected {name} = {bound}, got {size}")
    return size if isinstance(bound, str) and size is not None else bound


def _merged_dims(tensor: str, bound: tuple[Size, ...] | None, dims: tuple[Size, ...]) -> tuple[Size, ...]:
    if bound is None:
        return dims
    if len(bound) != len(dims):
        raise ShapeError(f"input '{tensor}': expected ... = {list(bound)}, got {list(dims)}")
    return tuple(_merged(tensor, "...", a, b) for a, b in zip(bound, dims, strict=True))


def output_shapes(op: Op, bound: Bound) -> list[tuple[Size, ...] | None]:
    """The outputs' shapes: None for a size that only the kernel knows, or for a shape of unknown rank."""
    for attribute in op.attributes:
        size = bound.sizes.get(attribute.name)
        if isinstance(size, int) and size < 0 and _is_size(op, attribute.name):
            raise ShapeError(f"'{attribute.name}' is a size: expected a number from 0, got {size}")
    shapes: list[tuple[Size, ...] | None] = []
    for output in op.outputs:
        dims: list[Size] = []
        known = True
        for dim in output.dims:
            if dim["kind"] == "ellipsis":
                known = known and bound.ellipsis is not None
                dims.extend(bound.ellipsis or ())
            else:
                dims.append(None if dim["kind"] == "bounded" else evaluate(dim["expr"], bound.sizes))
                if isinstance(dims[-1], int) and dims[-1] < 0:
                    raise ShapeError(f"output '{output.name}': a dim is {dims[-1]} for these inputs")
        shapes.append(tuple(dims) if known else None)
    return shapes


def _is_size(op: Op, name: str) -> bool:
    """Whether the name stands in some tensor's dims: other integer attributes may be negative."""

    def stands_in(expr: Expr) -> bool:
        return expr == name or (isinstance(expr, list) and any(stands_in(operand) for operand in expr[1:]))

    dims = [dim for tensor in op.inputs for dim in tensor.dims]
    dims += [dim for tensor in op.outputs for dim in tensor.dims]
    return any(stands_in(dim[key]) for dim in dims for key in ("name", "expr", "bound", "default") if key in dim)
