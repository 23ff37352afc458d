"""What torch knows of an op without running it: the outputs' shapes, dtypes and strides, from the signature, with
torch's symbols for sizes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ops_build.dtypes import DTYPES
from ops_build.table import Expr, Input, Op
from ops_build.walk import KnownInput, SignatureMismatch, Size, Walk

#: Torch's dtypes by the name in a signature.
TORCH_DTYPES: Mapping[str, torch.dtype] = {
    dtype.name: getattr(torch, dtype.torch) for dtype in DTYPES.values() if dtype.torch
}
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


class TorchSizes:
    """Integers, and torch's symbols for them (torch.SymInt): the algebra of a walk while torch traces."""

    _OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        "/": lambda a, b: a // b,
        "%": lambda a, b: a % b,
        # Python's min and max would decide between two symbols, and bind the trace to the sizes at hand.
        "min": torch.sym_min,
        "max": torch.sym_max,
        "ceildiv": lambda a, b: -(-a // b),
    }

    def number(self, size: Size) -> int | None:
        """The size where it is no symbol."""
        return size if isinstance(size, int) else None

    def equal(self, a: Size, b: Size, message: Callable[[], str]) -> tuple[Size] | None:
        """Of two equal sizes the one that says more; None where they can't be equal. Of symbols torch is told that they
        are equal: where they turn out not to be it raises with the message."""
        holds = a == b
        if holds is False:
            return None
        if holds is not True:
            torch._check(holds, message)
        return (b if isinstance(b, int) else a,)

    def apply(self, operation: str, a: Size, b: Size) -> Size:
        """A symbol for the result."""
        return self._OPERATIONS[operation](a, b)

    def text(self, size: Size) -> str:
        """The number, or the symbol's name."""
        return str(size)


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
        walk = Walk(op, TorchSizes())
        try:
            device = _device(op, call)
            walk.bind([_known_input(tensor) for tensor in call.tensors], _integers(op, call))
            shapes = _shapes(walk)
        except SignatureMismatch as error:
            raise ValueError(f"{op.domain}::{op.name}: {error}") from error
        like = _dense_tensor(call) if op.elementwise else None
        made = []
        for output, shape in zip(op.outputs, shapes, strict=True):
            dtype = TORCH_DTYPES[walk.type_of(output) or ""]
            if like is None:
                made.append(torch.empty(shape, dtype=dtype, device=device))
            else:
                made.append(torch.empty_strided(shape, like.stride(), dtype=dtype, device=device))
        return made[0] if len(made) == 1 else tuple(made)

    return fake


def _known_input(tensor: torch.Tensor | None) -> KnownInput | None:
    return None if tensor is None else KnownInput(_NAMES.get(tensor.dtype, str(tensor.dtype)), tensor.shape)


def _integers(op: Op, call: Call) -> dict[str, Any]:
    return {a.name: call.attributes[a.name] for a in op.attributes if a.kind == "int" and not a.list}


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
            raise SignatureMismatch(
                f"input '{declared.name}': expected a tensor on {device}, as the others, got one on {tensor.device}"
            )
    return device or torch.device("cpu")


def _dense_tensor(call: Call) -> torch.Tensor | None:
    """The tensor that gives an elementwise op its layout (layout.cpp): the first one without gaps and overlaps. None
    where the outputs are contiguous."""
    for tensor in call.tensors:
        if tensor is None:
            continue
        if tensor.is_contiguous():
            return None
        if torch._prims_common.is_non_overlapping_and_dense_or_false(tensor):
            return tensor
    return None


def _shapes(walk: Walk) -> list[tuple[Any, ...]]:
    """The outputs' shapes. A size that the kernel binds, or that an input's data says, becomes a symbol of its own, the
    same wherever it stands."""
    for name in walk.kernel_sizes:
        walk.set_kernel_size(name, _new_size(walk.bound_of(name)))
    made: dict[str, Any] = {}

    def unknown(expr: Expr) -> Any:
        key = json.dumps(expr)
        if key not in made:
            made[key] = _new_size(None)
        return made[key]

    shapes = []
    for output in walk.op.outputs:
        shape = walk.output_dims(output, unknown)
        assert shape is not None  # torch knows every rank
        for size in shape:
            if not isinstance(size, int):
                torch._check(size >= 0, lambda size=size: f"size {size} of an output is negative")
        shapes.append(shape)
    return shapes


def _new_size(bound: Any) -> Any:
    """A symbol for a size of at most `bound`; None: of any size."""
    if isinstance(bound, int):
        return torch.library.get_ctx().new_dynamic_size(min=0, max=bound) if bound else 0
    size = torch.library.get_ctx().new_dynamic_size()
    if bound is not None:
        torch._check(size <= bound)
    return size
