"""Applies a signature to inputs before the run: binds the named sizes, checks the inputs and computes the output dims.

This is signature/walk.h in Python, for onnx's shape inference and for torch's symbols, which C++ can't reach. As in
C++, the walk is written once, and an algebra says what a size is: a number, a name or a symbol. The cases in
tests/ops_build/walk_cases.txt run against both languages, so that a signature means the same in each.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.op_table import Expr, Input, Op, Output

#: A size, in the type that the algebra uses. None is an unknown size.
Size = Any

_INT64 = range(-(2**63), 2**63)


class SignatureMismatch(ValueError):
    """The inputs contradict the signature. The message names the input, what was expected and what came."""


class Sizes(Protocol):
    """An algebra of sizes. None is an unknown size in every algebra; the methods get sizes that are not None."""

    def number(self, size: Size) -> int | None:
        """Returns the size as an int, or None if it is not a number."""

    def equal(self, a: Size, b: Size, message: Callable[[], str]) -> tuple[Size] | None:
        """Takes two sizes that must be equal and returns the one that is known better, in a tuple.

        Returns None if they can't be equal. If only a later run can tell, `message` gives the text of that error.
        """

    def apply(self, operation: str, a: Size, b: Size) -> Size:
        """Returns `a operation b`, where at least one of the two is not a number."""

    def text(self, size: Size) -> str:
        """Returns the size as messages show it: "3", "rows"."""


OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
    "ceildiv": lambda a, b: -(-a // b),
}
DIVISIONS = ("/", "%", "ceildiv")


@dataclass(frozen=True, slots=True)
class KnownInput:
    """The known facts about an input that is present. None means unknown.

    `dtype` is the name of a dtype, or another text for a type that no signature can state. `dims` is None if not even
    the rank is known. `value` is the value of an integer scalar in host memory.
    """

    dtype: str | None
    dims: Sequence[Size] | None
    value: Size = None


class Walk:
    """Applies the signature of an op to the inputs of one call or node.

    It is long, because every rule of the grammar needs the names that the others have bound.
    """

    def __init__(self, op: Op, sizes: Sizes) -> None:
        self.op = op
        self._sizes = sizes
        self._attributes = {a.name for a in op.attributes if a.kind == "int" and not a.list}
        self._kernel_sizes = {
            dim["name"]: dim["bound"] for output in op.outputs for dim in output.dims if dim["kind"] == "bounded"
        }
        self._bound: dict[str, Size] = {}
        self._has_source: set[str] = set()  # names that a present input or a default gives a value
        self._ellipsis: tuple[Size, ...] | None = None
        self._types: dict[str, str] = {}

    def bind(self, inputs: Sequence[KnownInput | None], integers: Mapping[str, int | None]) -> None:
        """Checks the inputs as far as they are known and binds every name.

        `inputs` are in the signature's order, with None for an absent input. The tensors of a variadic input are at
        the end. `integers` are the integer attributes. Raises SignatureMismatch.
        """
        self._check_presence(inputs)
        present = [(self._input_at(i), known) for i, known in enumerate(inputs) if known is not None]
        for tensor, known in present:
            self._bind_type(tensor, known)
        self._bind_integers(inputs, integers)
        for tensor, known in present:
            self._bind_dims(tensor, known)
        self._bind_defaults(inputs)
        for tensor, known in present:
            self._check_expressions(tensor, known)

    @property
    def known_sizes(self) -> dict[str, int]:
        """The sizes that are numbers, by name."""
        numbers = {name: self._number(size) for name, size in self._bound.items()}
        return {name: number for name, number in numbers.items() if number is not None}

    @property
    def kernel_sizes(self) -> Sequence[str]:
        """The names of the sizes that only the kernel knows, such as v of `v<=n`."""
        return tuple(self._kernel_sizes)

    def bound_of(self, name: str) -> Size:
        """Returns the upper bound of a size that only the kernel knows. Raises SignatureMismatch if it is negative."""
        bound = self._evaluate_in("size", name, self._kernel_sizes[name])
        if self._is_negative(bound):
            expr = text_of(self._kernel_sizes[name])
            raise SignatureMismatch(f"size '{name}': its bound {expr} is {bound} for these inputs")
        return bound

    def set_kernel_size(self, name: str, size: Size) -> None:
        """Sets a size that only the kernel knows."""
        self._bound[name] = size

    def type_of(self, tensor: Input | Output) -> str | None:
        """Returns the dtype of a tensor, or None if the inputs don't determine it."""
        return self._types.get(tensor.type) if tensor.type in self.op.type_variables else tensor.type

    def output_dims(
        self, output: Output, unknown: Callable[[Expr], Size] = lambda expr: None
    ) -> tuple[Size, ...] | None:
        """Returns the dims of an output, or None if its rank is unknown.

        For an unknown dim, the result has the value of `unknown(expression)`. Raises SignatureMismatch if a dim is
        negative, or if no memory can hold the output.
        """
        dims: list[Size] = []
        for dim in output.dims:
            if dim["kind"] == "ellipsis":
                if self._ellipsis is None:
                    return None
                dims.extend(self._ellipsis)
                continue
            expr = dim["name"] if dim["kind"] == "bounded" else dim["expr"]
            size = self._evaluate_in("output", output.name, expr)
            if self._is_negative(size):
                raise SignatureMismatch(f"output '{output.name}': dim {text_of(expr)} is {size} for these inputs")
            dims.append(unknown(expr) if size is None else size)
        self._check_bytes(f"output '{output.name}'", self.type_of(output), dims)
        return tuple(dims)

    def evaluate(self, expr: Expr) -> Size:
        """Returns the value of an expression, or None if it is unknown. Raises SignatureMismatch."""
        if isinstance(expr, int):
            return expr
        if isinstance(expr, str):
            if expr not in self._has_source and self._is_dim(expr):
                raise SignatureMismatch(f"size '{expr}' is not known without the input that has it")
            return self._bound.get(expr)
        operation, a, b = expr[0], self.evaluate(expr[1]), self.evaluate(expr[2])
        numbers = self._number(a), self._number(b)
        if operation in DIVISIONS and numbers[1] == 0:
            raise SignatureMismatch("a size is divided by zero")
        if a is None or b is None:
            return None
        if numbers[0] is None or numbers[1] is None:
            return self._sizes.apply(operation, a, b)
        result = OPERATIONS[operation](numbers[0], numbers[1])
        if result not in _INT64:
            raise SignatureMismatch("a size overflows 64 bits")
        return result

    def _evaluate_in(self, kind: str, name: str, expr: Expr) -> Size:
        """Evaluates an expression. An error names the input, output or size that it concerns."""
        try:
            return self.evaluate(expr)
        except SignatureMismatch as error:
            raise SignatureMismatch(f"{kind} '{name}': {error}") from None

    def _check_bytes(self, name: str, dtype: str | None, dims: Sequence[Size]) -> None:
        """Raises SignatureMismatch if no memory can hold a tensor. A dim of 0 counts as 1: so kernels may multiply some
        of the dims of a tensor without elements. Sizes that aren't numbers are not checked."""
        numbers = [self._number(size) for size in dims]
        known = [number for number in numbers if number is not None]
        itemsize = DTYPES[dtype].numpy.itemsize if dtype is not None and dtype in DTYPES and dtype != "str" else 1
        if len(known) == len(numbers) and itemsize * prod(number or 1 for number in known) not in _INT64:
            what = "a tensor of shape " if dtype is None else dtype
            empty = ", with dims of 0 taken as 1" if 0 in known else ""
            raise SignatureMismatch(
                f"{name}: expected fewer than 2^63 bytes{empty}, got {what}{self._text_of_dims(dims)}"
            )

    def _number(self, size: Size) -> int | None:
        return None if size is None else self._sizes.number(size)

    def _is_negative(self, size: Size) -> bool:
        return (self._number(size) or 0) < 0

    def _is_dim(self, name: str) -> bool:
        """Returns whether only dims of inputs can bind a name."""
        scalars = {tensor.name for tensor in self.op.inputs if tensor.const and not tensor.dims}
        named = any(dim.get("name") == name for tensor in self.op.inputs for dim in tensor.dims)
        return name not in self._attributes and name not in self._kernel_sizes and (named or name not in scalars)

    def _input_at(self, index: int) -> Input:
        return self.op.inputs[min(index, len(self.op.inputs) - 1)]  # the tensors of a variadic input are at the end

    def _check_presence(self, inputs: Sequence[KnownInput | None]) -> None:
        declared = self.op.inputs
        if len(inputs) > len(declared) and not (declared and declared[-1].variadic):
            raise SignatureMismatch(f"expected at most {len(declared)} inputs, got {len(inputs)}")
        for index, tensor in enumerate(declared):
            if not tensor.optional and (index >= len(inputs) or inputs[index] is None):
                raise SignatureMismatch(f"input '{tensor.name}' is required and absent")

    def _bind_type(self, tensor: Input, known: KnownInput) -> None:
        if known.dtype is None:
            return
        allowed = self.op.type_variables.get(tensor.type)
        if allowed is None:
            if known.dtype != tensor.type:
                raise self._mismatch(tensor, known)
        elif tensor.type in self._types:
            if known.dtype != self._types[tensor.type]:
                raise self._mismatch(tensor, known, f" with {tensor.type} = {self._types[tensor.type]}")
        elif known.dtype not in allowed:
            raise self._mismatch(tensor, known, f" with {tensor.type} one of {', '.join(allowed)}")
        else:
            self._types[tensor.type] = known.dtype

    def _bind_integers(self, inputs: Sequence[KnownInput | None], integers: Mapping[str, int | None]) -> None:
        """Binds the sizes that are integer attributes or integer scalars in host memory."""
        values = {name: integers.get(name) for name in self._attributes}
        for tensor, known in zip(self.op.inputs, inputs, strict=False):
            if tensor.const and not tensor.dims and known is not None:
                values[tensor.name] = known.value
        for name, size in values.items():
            if self._is_negative(size) and _stands_in_sizes(self.op, name):
                raise SignatureMismatch(f"'{name}' is a size: expected a number from 0, got {size}")
            self._bound[name] = size

    def _bind_dims(self, tensor: Input, known: KnownInput) -> None:
        self._has_source.update(dim["name"] for dim in tensor.dims if dim["kind"] == "name")
        if known.dims is None:
            return
        if not _rank_fits(tensor, len(known.dims)):
            raise self._mismatch(tensor, known)
        for dim, sizes in zip(tensor.dims, _split(tensor, known.dims), strict=True):
            if dim["kind"] == "ellipsis":
                self._bind_ellipsis(tensor, known, sizes)
            elif dim["kind"] == "name":
                name, bound = dim["name"], self._bound.get(dim["name"])
                self._bound[name] = self._merged(bound, sizes[0], tensor, known, name, bound)
        self._check_bytes(f"input '{tensor.name}'", known.dtype, known.dims)

    def _bind_ellipsis(self, tensor: Input, known: KnownInput, sizes: Sequence[Size]) -> None:
        before = self._ellipsis
        if before is None:
            self._ellipsis = tuple(sizes)
        elif len(before) != len(sizes):
            raise self._mismatch(tensor, known, f" with ... = {self._text_of_dims(before)}")
        else:
            pairs = zip(before, sizes, strict=True)
            self._ellipsis = tuple(self._merged(a, b, tensor, known, "...", before) for a, b in pairs)

    def _merged(self, a: Size, b: Size, tensor: Input, known: KnownInput, name: str, bound: Any) -> Size:
        """Takes two sizes that must be equal and returns the one that is known better.

        `bound` is the value that `name` had before; the error message shows it.
        """

        def wrong() -> SignatureMismatch:
            value = self._text_of_dims(bound) if isinstance(bound, tuple) else self._text(bound)
            return self._mismatch(tensor, known, f" with {name} = {value}")

        if a is None or b is None:
            return b if a is None else a
        merged = self._sizes.equal(a, b, lambda: str(wrong()))
        if merged is None:
            raise wrong()
        return merged[0]

    def _bind_defaults(self, inputs: Sequence[KnownInput | None]) -> None:
        for index, tensor in enumerate(self.op.inputs):
            if index < len(inputs) and inputs[index] is not None:
                continue
            for dim in tensor.dims:
                if "default" not in dim or dim["name"] in self._has_source:
                    continue
                name, size = dim["name"], self._evaluate_in("size", dim["name"], dim["default"])
                self._bound[name] = size
                self._has_source.add(name)
                if self._is_negative(size):
                    raise SignatureMismatch(f"size '{name}' is {size} for these inputs")

    def _check_expressions(self, tensor: Input, known: KnownInput) -> None:
        if not any(dim["kind"] == "expr" for dim in tensor.dims):
            return
        sizes_of = [[]] * len(tensor.dims) if known.dims is None else _split(tensor, known.dims)
        for dim, sizes in zip(tensor.dims, sizes_of, strict=True):
            if dim["kind"] != "expr":
                continue
            expr, expected = dim["expr"], self._evaluate_in("input", tensor.name, dim["expr"])
            why = "" if isinstance(expr, int) else f" with {text_of(expr)} = {self._text(expected)}"
            if expected is None or known.dims is None or sizes[0] is None:
                continue
            if self._sizes.equal(expected, sizes[0], lambda why=why: str(self._mismatch(tensor, known, why))) is None:  # type: ignore[misc]
                raise self._mismatch(tensor, known, why)

    def _mismatch(self, tensor: Input, known: KnownInput, why: str = "") -> SignatureMismatch:
        """Returns an error such as "input 'b': expected T[m] with T = f32, got i32[4]"."""
        came = "a tensor of shape " if known.dtype is None else known.dtype
        came += "" if known.dims is None else self._text_of_dims(known.dims)
        return SignatureMismatch(f"input '{tensor.name}': expected {text_of_input(tensor)}{why}, got {came}")

    def _text(self, size: Size) -> str:
        return "?" if size is None else self._sizes.text(size)

    def _text_of_dims(self, dims: Sequence[Size]) -> str:
        return f"[{', '.join(map(self._text, dims))}]"


def text_of(expr: Expr) -> str:
    """Returns an expression as messages show it, such as "max(n, 3)*2"."""
    if not isinstance(expr, list):
        return str(expr)
    operation, a, b = expr[0], text_of(expr[1]), text_of(expr[2])
    if operation in ("min", "max", "ceildiv"):
        return f"{operation}({a}, {b})"
    if operation in ("+", "-"):
        return f"({a} {operation} {b})"
    grouped = isinstance(expr[2], list) and expr[2][0] in ("*", "/", "%")
    return f"{a}{operation}({b})" if grouped else f"{a}{operation}{b}"


#: The kinds of a dim that stands for any number of dims, and how a signature writes them.
_MANY = {"ellipsis": "...", "any": "*"}


def text_of_input(tensor: Input) -> str:
    """Returns an input's type and dims as messages show them, such as "f32[n, 3]"."""
    dims = [
        _MANY[dim["kind"]] if dim["kind"] in _MANY else text_of(dim["name" if "name" in dim else "expr"])
        for dim in tensor.dims
    ]
    return f"{tensor.type}[{', '.join(dims)}]"


def _rank_fits(tensor: Input, rank: int) -> bool:
    if any(dim["kind"] in _MANY for dim in tensor.dims):
        return rank >= len(tensor.dims) - 1
    return rank == len(tensor.dims)


def _split(tensor: Input, sizes: Sequence[Size]) -> list[Sequence[Size]]:
    """Returns the sizes that each dim of the signature describes: any number for `...` and `*`, one for another
    dim."""
    sizes_of_dims, begin = [], 0
    for dim in tensor.dims:
        count = len(sizes) - len(tensor.dims) + 1 if dim["kind"] in _MANY else 1
        sizes_of_dims.append(sizes[begin : begin + count])
        begin += count
    return sizes_of_dims


def _stands_in_sizes(op: Op, name: str) -> bool:
    """Returns whether the dims of a tensor use a name. An integer that no dim uses may be negative."""

    def stands_in(expr: Expr) -> bool:
        return expr == name or (isinstance(expr, list) and any(stands_in(operand) for operand in expr[1:]))

    dims = [dim for tensor in op.inputs for dim in tensor.dims] + [dim for out in op.outputs for dim in out.dims]
    return any(stands_in(dim[key]) for dim in dims for key in ("name", "expr", "bound", "default") if key in dim)
