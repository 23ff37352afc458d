"""The kernel of an op at torch's dispatch key Autograd.

Torch calls it first for every call outside torch.inference_mode. `torch.library.register_autograd` would do, but it
fails inside the transforms of torch.func, ignores tangents, and makes a small call take half as long again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from opgate.ops_build.adapters.torch.derivatives import Gradient
from opgate.ops_build.op_table import Op

_BELOW_AUTOGRAD = torch._C._after_autograd_keyset


class _Modes(NamedTuple):
    """Whether a call may be asked for gradients and for tangents."""

    reverse: bool
    forward: bool


def autograd_kernel(overload: Any, record: Callable[..., Any], outputs: int, returned: int) -> Callable[..., Any]:
    """Returns the kernel of a function that returns the first `returned` of the `outputs` of an op.

    It runs the function. If a gradient or a tangent may be asked for, it calls `record` instead, which runs the op with
    all outputs, because the gradient may need them.
    """
    redispatch = overload._handle.redispatch_boxed
    reverse_mode, any_requires_grad = torch._C.is_grad_enabled, torch._C._any_requires_grad

    def kernel(keyset: Any, *inputs: Any, **attributes: Any) -> Any:
        if forward_ad._current_level < 0 and not (any_requires_grad(*inputs) and reverse_mode()):
            return redispatch(keyset & _BELOW_AUTOGRAD, *inputs, **attributes)
        found = record(keyset & _BELOW_AUTOGRAD, inputs, attributes)
        return found if returned == outputs else found[0] if returned == 1 else found[:returned]

    return kernel


def recorder(op: Op, overload: Any, gradient: Gradient) -> Callable[..., Any]:
    """Returns a function that runs an op and records its gradient, with a torch.autograd.Function.

    The Function gets each tensor as an argument, because torch finds no tensor in a list: those of a variadic input
    come last.
    """
    redispatch = overload._handle.redispatch_boxed
    variadic = bool(op.inputs[-1].variadic)
    single = len(op.inputs) - variadic

    def nested(flat: tuple[Any, ...]) -> Sequence[Any]:
        return [*flat[:single], list(flat[single:])] if variadic else flat

    def forward(ctx: Any, keyset: Any, attributes: dict[str, Any], modes: _Modes | None, *flat: Any) -> Any:
        inputs = nested(flat)
        ctx.modes = modes
        if modes is None:
            outputs = redispatch(keyset, *inputs, **attributes)
        else:
            # Torch turns gradients and tangents off in this function, and the next transform of torch.func needs them.
            with torch.set_grad_enabled(modes.reverse), forward_ad._set_fwd_grad_enabled(modes.forward):
                outputs = redispatch(keyset, *inputs, **attributes)
        gradient.save(ctx, inputs, attributes, outputs)
        return outputs

    def backward(ctx: Any, *gradients: Any) -> Any:
        found = gradient.backward(ctx, gradients, nested(ctx.needs_input_grad[3:]))
        return (None, None, None, *found[:single], *(found[single] if variadic else ()))

    def jvp(ctx: Any, *tangents: Any) -> Any:
        # Torch turns tangents off here too, and would give zero for the tangent of a tangent.
        with forward_ad._set_fwd_grad_enabled(ctx.modes is None or ctx.modes.forward):
            return gradient.jvp(ctx, nested(tangents[3:]))

    members = {"forward": forward, "backward": backward, "jvp": jvp}
    function: Any = type(
        op.name, (torch.autograd.Function,), {name: staticmethod(member) for name, member in members.items()}
    )
    # Function.apply is for callers above torch's dispatcher: it would call every transform of torch.func again.
    apply = super(torch.autograd.Function, function).apply

    def record(keyset: Any, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
        flat = [*inputs[:single], *(inputs[single] if variadic else [None] * (single - len(inputs)))]
        if not torch._C._are_functorch_transforms_active():
            return apply(keyset, attributes, None, *flat)
        modes = _Modes(torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled())
        with enable_single_level_autograd_function():
            return apply(keyset, attributes, modes, *flat)

    return record
