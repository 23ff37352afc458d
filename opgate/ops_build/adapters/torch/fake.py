"""The fake kernels of ops. They tell torch the shapes, dtypes and strides of the outputs without running the op.

The shapes come from the signature. A size may be a symbol of torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.op_table import Expr, Input, Op
from opgate.ops_build.signature_walk import KnownInput, SignatureMismatch, Size, Walk

#: The dtypes of torch by their names in signatures.
TORCH_DTYPES: Mapping[str, torch.dtype] = {
    dtype.name: getattr(torch, dtype.torch) for dtype in DTYPES.values() if dtype.torch
}
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


class TorchSizes:
    """The algebra of sizes while torch traces: a size is an integer or a symbol of torch (torch.SymInt)."""

    _OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        "/": lambda a, b: a // b,
        "%": lambda a, b: a % b,
        # Python's min and max would compare the symbols now, and the trace would fit only the sizes of this call.
        "min": torch.sym_min,
        "max": torch.sym_max,
        "ceildiv": lambda a, b: -(-a // b),
    }

    def number(self, size: Size) -> int | None:
        """Returns the size, or None if it is a symbol."""
        return size if isinstance(size, int) else None

    def equal(self, a: Size, b: Size, message: Callable[[], str]) -> tuple[Size] | None:
        """Returns the size that is known better, an integer if there is one. Returns None if the sizes can't be equal.

        If that depends on symbols, torch is told that they are equal. When they turn out to differ, torch raises an
        error with `message`.
        """
        equal = a == b
        if equal is False:
            return None
        if equal is not True:
            torch._check(equal, message)
        return (b if isinstance(b, int) else a,)

    def apply(self, operation: str, a: Size, b: Size) -> Size:
        """Returns a symbol for the result."""
        return self._OPERATIONS[operation](a, b)

    def text(self, size: Size) -> str:
        """Returns the number or the symbol as text."""
        return str(size)


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call.

    `tensors` are in the signature's order, with None for an absent input. The tensors of a variadic input are at the
    end.
    """

    tensors: Sequence[torch.Tensor | None]
    attributes: Mapping[str, Any]


def call_of(op: Op, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Call:
    """Returns all arguments of a call. Torch leaves out arguments that equal their default; this adds them."""
    tensors: list[torch.Tensor | None] = []
    for index, tensor in enumerate(op.inputs):
        argument: Any = arguments[index] if index < len(arguments) else keywords.get(tensor.name)
        if tensor.variadic:
            tensors.extend(argument)
        else:
            tensors.append(argument)
    values = {a.name: keywords.get(a.name) for a in op.attributes}
    return Call(tensors, {a.name: a.default if values[a.name] is None else values[a.name] for a in op.attributes})


def fake_kernel(op: Op) -> Callable[..., Any]:
    """Returns a function that runs the op on tensors without data. It raises ValueError if the inputs contradict the
    signature."""

    def fake(*arguments: Any, **keywords: Any) -> Any:
        call = call_of(op, arguments, keywords)
        walk = Walk(op, TorchSizes())
        try:
            for attribute in op.attributes:
                attribute.check(call.attributes[attribute.name])
            device = _device(op, call)
            walk.bind([_known_input(tensor) for tensor in call.tensors], _integers(op, call))
            shapes = _shapes(walk)
        except ValueError as error:
            raise ValueError(f"{op.domain}::{op.name}: {error}") from error
        like = _dense_tensor(call) if op.elementwise else None
        outputs = []
        for output, shape in zip(op.outputs, shapes, strict=True):
            dtype = TORCH_DTYPES[walk.type_of(output) or ""]
            if like is None:
                outputs.append(torch.empty(shape, dtype=dtype, device=device))
            else:
                outputs.append(torch.empty_strided(shape, like.stride(), dtype=dtype, device=device))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return fake


def _known_input(tensor: torch.Tensor | None) -> KnownInput | None:
    return None if tensor is None else KnownInput(_NAMES.get(tensor.dtype, str(tensor.dtype)), tensor.shape)


def _integers(op: Op, call: Call) -> dict[str, Any]:
    return {a.name: call.attributes[a.name] for a in op.attributes if a.kind == "int" and not a.list}


def _input_at(op: Op, index: int) -> Input:
    return op.inputs[min(index, len(op.inputs) - 1)]


def _device(op: Op, call: Call) -> torch.device:
    """Returns the device of the inputs that are not `const`. Raises SignatureMismatch if their devices differ."""
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


def is_dense(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor has neither gaps nor overlaps, False if its symbols don't say. PyTorch 2.10 has another
    name for the function."""
    names = ("is_non_overlapping_and_dense_or_false", "_is_non_overlapping_and_dense_or_false")
    function = next(filter(None, (getattr(torch._prims_common, name, None) for name in names)))
    return bool(function(tensor))


def _dense_tensor(call: Call) -> torch.Tensor | None:
    """Returns the tensor whose layout the outputs of an elementwise op get: the first one without gaps and overlaps.

    Returns None if the outputs are contiguous. layout.cpp does the same.
    """
    for tensor in call.tensors:
        if tensor is None:
            continue
        if torch._prims_common.is_contiguous_or_false(tensor):
            return None
        if is_dense(tensor):
            return tensor
    return None


def _shapes(walk: Walk) -> list[tuple[Any, ...]]:
    """Returns the shapes of the outputs.

    A size that only the kernel or the data of an input tells becomes a new symbol. Dims with the same expression get
    the same symbol.
    """
    for name in walk.kernel_sizes:
        walk.set_kernel_size(name, _new_size(walk.bound_of(name)))
    symbols: dict[str, Any] = {}

    def unknown(expr: Expr) -> Any:
        key = json.dumps(expr)
        if key not in symbols:
            symbols[key] = _new_size(None)
        return symbols[key]

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
    """Returns a symbol for a size of at most `bound`, or for any size if `bound` is None.

    It is a symbol also where only 0 is possible. Torch would make a CUDA graph of a call whose sizes it knows, but the
    kernel finds this one on the host.
    """
    if isinstance(bound, int):
        return torch.library.get_ctx().new_dynamic_size(min=0, max=max(bound, 1))
    size = torch.library.get_ctx().new_dynamic_size()
    if bound is not None:
        torch._check(size <= bound)
    return size
