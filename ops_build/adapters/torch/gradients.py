"""Registers the gradients of ops. The gradient of an op X is the op XBackward, if the table has one.

An input of XBackward is called grad_<output> and gets the gradient of that output of X, or it is called like an input
or output of X and gets that tensor. An attribute gets the value of the attribute of X with the same name. An output is
called grad_<input> and is the gradient of that input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from opgate.ops_build.table import Op, snake_case

_FLOATS = frozenset({"f16", "bf16", "f32", "f64"})


def register_gradient(op: Op, backward: Op | None, name: str, library: torch.library.Library) -> None:
    """Registers the gradient of `op`, whose name in torch is `name`.

    If `backward` is None, torch gets a function that raises NotImplementedError. Raises ValueError if `backward`
    doesn't follow the naming rules above.
    """
    if not any(_may_be_float(op, tensor.type) for tensor in op.inputs):
        return
    if backward is None:
        gradient: _Gradient = _NoGradient(op, name)
    else:
        _check_convention(op, backward)
        gradient = _TableGradient(op, backward, name)
    torch.library.register_autograd(name, gradient.backward, setup_context=gradient.setup_context, lib=library)


def _may_be_float(op: Op, type_name: str) -> bool:
    return not _FLOATS.isdisjoint(op.type_variables.get(type_name, (type_name,)))


def _check_convention(op: Op, backward: Op) -> None:
    inputs = {tensor.name for tensor in op.inputs}
    outputs = {tensor.name for tensor in op.outputs}
    known = {f"grad_{name}" for name in outputs} | inputs | outputs
    for tensor in backward.inputs:
        if tensor.name not in known:
            raise ValueError(
                f"{backward.name}: input '{tensor.name}' is neither an input or output of {op.name} nor grad_<output>"
            )
    for output in backward.outputs:
        if output.name not in {f"grad_{name}" for name in inputs}:
            raise ValueError(f"{backward.name}: output '{output.name}' is not grad_<input> of {op.name}")
    attributes = {attribute.name for attribute in op.attributes}
    for attribute in backward.attributes:
        if attribute.required and attribute.name not in attributes:
            raise ValueError(f"{backward.name}: attribute '{attribute.name}' is required and {op.name} has none such")


class _Gradient:
    def __init__(self, op: Op, name: str) -> None:
        self.op = op
        self.name = name

    def setup_context(self, ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
        """Torch calls this after the forward run, with all arguments including the defaults."""
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.mark_non_differentiable(*(tensor for tensor in outputs if not tensor.is_floating_point()))

    def backward(self, ctx: Any, *gradients: torch.Tensor) -> Any:
        raise NotImplementedError


class _NoGradient(_Gradient):
    def backward(self, ctx: Any, *gradients: torch.Tensor) -> Any:
        raise NotImplementedError(
            f"{self.name} can't be differentiated: the op table has no {self.op.name}Backward. Call it under "
            "torch.no_grad() or on detached tensors, or state that op"
        )


class _TableGradient(_Gradient):
    def __init__(self, op: Op, backward: Op, name: str) -> None:
        super().__init__(op, name)
        self.gradient_op = backward
        self.saved = [tensor.name for tensor in backward.inputs if not self._is_gradient(tensor.name)]
        forward = {attribute.name for attribute in op.attributes}
        self.attributes = [a.name for a in backward.attributes if a.name in forward]
        self.gradients = [output.name.removeprefix("grad_") for output in backward.outputs]

    def _is_gradient(self, name: str) -> bool:
        return name not in {tensor.name for tensor in self.op.inputs} | {tensor.name for tensor in self.op.outputs}

    def setup_context(self, ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
        super().setup_context(ctx, inputs, output, keyword_only_inputs)
        outputs = output if isinstance(output, tuple) else (output,)
        tensors = dict(zip((tensor.name for tensor in self.op.outputs), outputs, strict=True))
        tensors |= dict(zip((tensor.name for tensor in self.op.inputs), inputs, strict=True))
        kept = [tensors[name] for name in self.saved]
        # A variadic input is a list; any other tensor has no length.
        ctx.lengths = [len(value) if isinstance(value, Sequence) else None for value in kept]
        ctx.save_for_backward(*(t for value in kept for t in (value if isinstance(value, Sequence) else (value,))))
        ctx.attributes = {name: (keyword_only_inputs or {})[name] for name in self.attributes}
        # A bool for each input, or the number of tensors of a variadic one.
        ctx.present = [len(value) if isinstance(value, Sequence) else value is not None for value in inputs]

    def backward(self, ctx: Any, *gradients: torch.Tensor) -> Any:
        arguments = dict(zip((f"grad_{tensor.name}" for tensor in self.op.outputs), gradients, strict=True))
        arguments |= self._saved_of(ctx)
        call = getattr(getattr(torch.ops, self.name.split("::")[0]), snake_case(self.gradient_op.name)).default
        outputs = call(*(arguments[tensor.name] for tensor in self.gradient_op.inputs), **ctx.attributes)
        by_name = dict(zip(self.gradients, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))
        return tuple(self._gradient_of(ctx, index, by_name) for index in range(len(self.op.inputs)))

    def _saved_of(self, ctx: Any) -> dict[str, Any]:
        tensors = iter(ctx.saved_tensors)
        return {
            name: next(tensors) if length is None else [next(tensors) for _ in range(length)]
            for name, length in zip(self.saved, ctx.lengths, strict=True)
        }

    def _gradient_of(self, ctx: Any, index: int, by_name: dict[str, torch.Tensor]) -> Any:
        declared = self.op.inputs[index]
        needed = ctx.needs_input_grad[index] if index < len(ctx.needs_input_grad) else False
        if declared.name in by_name:
            return by_name[declared.name] if ctx.present[index] else None
        if any(needed) if isinstance(needed, Sequence) else needed:
            # Torch would read None as a gradient of zero.
            raise NotImplementedError(
                f"{self.name} can't be differentiated by its input '{declared.name}': {self.gradient_op.name} has no "
                f"output grad_{declared.name}"
            )
        return [None] * ctx.present[index] if declared.variadic else None
