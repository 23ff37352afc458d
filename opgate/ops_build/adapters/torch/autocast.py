"""What an op does under torch.autocast.

It does what torch.cat and others of torch's own ops do, which need tensors of one dtype: floating-point tensors are
cast to the widest dtype among them. Here these are the tensors of one type of the signature. If the op doesn't take
that dtype, or if the signature states f32, they are cast to f32. As everywhere in autocast, f64 stays as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from opgate.ops_build.adapters.torch.fake import TORCH_DTYPES
from opgate.ops_build.op_table import Input, Op

#: The dtypes that autocast casts.
_CAST = (torch.float16, torch.bfloat16, torch.float32)


def register_autocast(op: Op, overload: Any, library: torch.library.Library) -> None:
    """Registers the kernels of an op for autocast, if it may have tensors to cast."""
    if not any(_may_cast(op, tensor) for tensor in op.inputs):
        return
    for device in op.devices:
        key = f"Autocast{device.upper()}"
        library.impl(overload, _autocast_kernel(op, overload, key), key)


def _may_cast(op: Op, tensor: Input) -> bool:
    """Returns whether an input has a floating-point type that another tensor shares or that some floats don't have."""
    allowed = _dtypes(op, tensor.type)
    if not set(allowed) & set(_CAST):
        return False
    shared = tensor.variadic or sum(other.type == tensor.type for other in op.inputs) > 1
    return shared or not set(_CAST) <= set(allowed)


def _dtypes(op: Op, type_name: str) -> list[torch.dtype]:
    return [TORCH_DTYPES[name] for name in op.type_variables.get(type_name, (type_name,)) if name in TORCH_DTYPES]


def _autocast_kernel(op: Op, overload: Any, key: str) -> Callable[..., Any]:
    keyset = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    allowed = {tensor.type: _dtypes(op, tensor.type) for tensor in op.inputs}

    def kernel(*inputs: Any, **attributes: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keyset):
            declared = op.inputs[: len(inputs)]
            of_type: dict[str, list[torch.Tensor]] = {tensor.type: [] for tensor in declared}
            for tensor, value in zip(declared, inputs, strict=True):
                of_type[tensor.type] += value if tensor.variadic else [] if value is None else [value]
            target = {name: _target(tensors, allowed[name]) for name, tensors in of_type.items()}
            cast = [_cast(value, target[tensor.type]) for tensor, value in zip(declared, inputs, strict=True)]
            return overload(*cast, **attributes)

    return kernel


def _target(tensors: Sequence[torch.Tensor], allowed: Sequence[torch.dtype]) -> torch.dtype | None:
    """Returns the dtype for all tensors of one type, or None if they stay as they are."""
    dtypes = {tensor.dtype for tensor in tensors}
    if not dtypes or not dtypes <= set(_CAST):
        return None
    widest = functools.reduce(torch.promote_types, dtypes)
    return next((dtype for dtype in (widest, torch.float32) if dtype in allowed), None)


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    if value is None or dtype is None:
        return value
    return [tensor.to(dtype) for tensor in value] if isinstance(value, (list, tuple)) else value.to(dtype)
