"""Registers the gradients of ops. The gradient of an op X is the op XBackward, if the table has one, or what its
gradient.py states.

ops_build/op_gradients.py has the rules for the names of the one, ops_build/stated_gradient.py those of the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from opgate.ops_build.adapters.torch.autograd import autograd_kernel, recorder
from opgate.ops_build.adapters.torch.derivatives import Gradient
from opgate.ops_build.adapters.torch.names import namespace_of, overload
from opgate.ops_build.op_functions import functions_of
from opgate.ops_build.op_gradients import check_convention, inputs_of, may_be_float
from opgate.ops_build.op_table import Op, snake_case
from opgate.ops_build.stated_gradient import GradientError, StatedGradient, stated_gradient


def register_gradient(op: Op, ops: Mapping[str, Op], library: torch.library.Library) -> None:
    """Registers the gradient of the functions of `op`, one of `ops`.

    If there is none, torch gets functions that raise NotImplementedError. Raises ValueError if the gradient doesn't
    follow the rules.
    """
    backward = ops.get(f"{op.name}Backward")
    stated = stated_gradient(op, backward)
    if not any(may_be_float(op, tensor.type) for tensor in op.inputs):
        return
    if backward is not None:
        check_convention(op, backward)
    name = f"{namespace_of(op.domain)}::{snake_case(op.name)}"
    gradient: Gradient = _NoGradient(op, name)
    if stated is not None:
        gradient = _PythonGradient(op, stated, Functions(ops), name)
    elif backward is not None:
        gradient = _TableGradient(op, backward, name)
    if not any(may_be_float(op, tensor.type) for tensor in op.outputs):
        return  # torch knows by itself that integers have no gradient
    record = recorder(op, overload(op), gradient)
    for short, function in functions_of(op):
        kernel = autograd_kernel(overload(op, short), record, len(op.outputs), len(function.outputs))
        library.impl(short, kernel, "Autograd", with_keyset=True)


class _NoGradient(Gradient):
    def backward(self, ctx: Any, gradients: Sequence[torch.Tensor], needed: Sequence[Any]) -> list[Any]:
        raise NotImplementedError(
            f"{self.name} can't be differentiated: the op table has no {self.op.name}Backward. Call it under "
            "torch.no_grad() or on detached tensors, or state that op"
        )

    def jvp(self, ctx: Any, tangents: Sequence[Any]) -> Any:
        elementwise = len(self.op.outputs) == 1 and self.op.elementwise
        raise NotImplementedError(
            f"{self.name} can't be differentiated in forward mode: the op table has no {self.op.name}Backward. Call it "
            "on tensors without tangents" + (", or state that op" if elementwise else "")
        )


class Functions:
    """The functions of the ops, by their names."""

    def __init__(self, ops: Mapping[str, Op]) -> None:
        self._ops = {name: op for op in ops.values() for name, _ in functions_of(op)}

    def __getattr__(self, name: str) -> Any:
        if name not in self._ops:
            raise AttributeError(f"the library has no op {name}")
        return overload(self._ops[name], name)


class _PythonGradient(Gradient):
    def __init__(self, op: Op, stated: StatedGradient, functions: Functions, name: str) -> None:
        super().__init__(op, name)
        self.stated, self.functions = stated, functions
        if op.inputs[-1].variadic:
            raise GradientError(f"{name}: an op with a list of tensors has no gradient.py")
        inputs, outputs = [tensor.name for tensor in op.inputs], [tensor.name for tensor in op.outputs]
        self.places = [(0, inputs.index(n)) if n in inputs else (1, outputs.index(n)) for n in stated.tensors]
        self.defaults = {attribute.name: attribute.default for attribute in op.attributes}

    def save(self, ctx: Any, inputs: Sequence[Any], attributes: Mapping[str, Any], outputs: Any) -> None:
        super().save(ctx, inputs, attributes, outputs)
        tensors = inputs, outputs if isinstance(outputs, tuple) else (outputs,)
        ctx.save_for_backward(*(tensors[side][index] for side, index in self.places))
        ctx.attributes = {**self.defaults, **{name: value for name, value in attributes.items() if value is not None}}
        ctx.present = [tensor is not None for tensor in inputs]

    def backward(self, ctx: Any, gradients: Sequence[torch.Tensor], needed: Sequence[Any]) -> list[Any]:
        tensors = dict(zip(self.stated.tensors, ctx.saved_tensors, strict=True))
        tensors |= {f"grad_{t.name}": gradient for t, gradient in zip(self.op.outputs, gradients, strict=True)}
        found = self.stated(self.functions, tensors, ctx.attributes)
        for tensor, wanted in zip(self.op.inputs, needed, strict=True):
            if wanted and tensor.name not in found:  # torch would read None as a gradient of zero
                raise NotImplementedError(
                    f"{self.name} can't be differentiated by its input '{tensor.name}': its gradient.py gives none"
                )
        return [
            found.get(tensor.name) if there else None for tensor, there in zip(self.op.inputs, ctx.present, strict=True)
        ]

    def jvp(self, ctx: Any, tangents: Sequence[Any]) -> Any:
        raise NotImplementedError(
            f"{self.name} can't be differentiated in forward mode: its gradient.py states the reverse mode. Call it on "
            "tensors without tangents"
        )


class _TableGradient(Gradient):
    def __init__(self, op: Op, backward: Op, name: str) -> None:
        super().__init__(op, name)
        self.gradient_op = backward
        inputs, outputs = [tensor.name for tensor in op.inputs], [tensor.name for tensor in op.outputs]
        self.saved = [tensor.name for tensor in backward.inputs if tensor.name in {*inputs, *outputs}]
        # An input and an output of one name: the gradient is told by the input.
        self.places = [(0, inputs.index(n)) if n in inputs else (1, outputs.index(n)) for n in self.saved]
        self.variadic = op.inputs[-1].variadic
        forward = {attribute.name: attribute.default for attribute in op.attributes}
        self.attributes = {a.name: forward[a.name] for a in backward.attributes if a.name in forward}
        self.gradients = [inputs_of(output.name, inputs) for output in backward.outputs]
        types = {*op.tensor_types}
        self.has_tangents = op.elementwise and len(op.outputs) == 1 and len(types) == 1 and not self.variadic

    def save(self, ctx: Any, inputs: Sequence[Any], attributes: Mapping[str, Any], outputs: Any) -> None:
        super().save(ctx, inputs, attributes, outputs)
        if self.has_tangents:
            ctx.set_materialize_grads(False)  # or an input without a tangent would have one of zeros
        tensors = inputs, outputs if isinstance(outputs, tuple) else (outputs,)
        kept = [tensors[side][index] for side, index in self.places]
        # The number of tensors of a variadic input. Any other tensor has none.
        ctx.lengths = [len(value) if isinstance(value, list) else None for value in kept] if self.variadic else None
        if self.variadic:
            kept = [tensor for value in kept for tensor in (value if isinstance(value, list) else [value])]
        ctx.save_for_backward(*kept)
        if forward_ad._current_level >= 0:
            ctx.save_for_forward(*kept)
        ctx.attributes = {
            name: default if attributes.get(name) is None else attributes[name]
            for name, default in self.attributes.items()
        }
        # A bool for each input, or the number of tensors of a variadic one.
        ctx.present = [len(value) if isinstance(value, list) else value is not None for value in inputs]

    def backward(self, ctx: Any, gradients: Sequence[torch.Tensor], needed: Sequence[Any]) -> list[Any]:
        if self.has_tangents and gradients[0] is None:
            return [None] * len(self.op.inputs)
        by_output = dict(zip((tensor.name for tensor in self.op.outputs), gradients, strict=True))
        by_input = self._call(ctx, by_output, self._saved_of(ctx, ctx.saved_tensors))
        return [self._gradient_of(ctx, index, by_input, needed[index]) for index in range(len(self.op.inputs))]

    def jvp(self, ctx: Any, tangents: Sequence[Any]) -> Any:
        """Element i of the output of an elementwise op depends on the elements i of the inputs alone. So its Jacobian
        by an input is diagonal, and the product with a tangent is the product with a gradient."""
        if not self.has_tangents:
            raise NotImplementedError(
                f"{self.name} can't be differentiated in forward mode: {self.gradient_op.name} tells its tangents only "
                "for an elementwise op with one output and one type. Call it on tensors without tangents, or use "
                "reverse mode"
            )
        # Without their tangents: those of this level are in `tangents`.
        saved = self._saved_of(ctx, [forward_ad.unpack_dual(tensor).primal for tensor in ctx.saved_tensors])
        parts = []
        for index, tangent in enumerate(tangents):
            if tangent is not None:
                by_input = self._call(ctx, {self.op.outputs[0].name: tangent}, saved)
                parts.append(self._gradient_of(ctx, index, by_input, True))
        return sum(parts[1:], parts[0])

    def _call(self, ctx: Any, gradients: Mapping[str, Any], saved: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Calls the backward op. Returns the gradients of inputs by the name of the input."""
        arguments = {f"grad_{name}": gradient for name, gradient in gradients.items()} | saved
        outputs = overload(self.gradient_op)(
            *(arguments[tensor.name] for tensor in self.gradient_op.inputs), **ctx.attributes
        )
        listed = outputs if isinstance(outputs, tuple) else (outputs,)
        return {name: output for names, output in zip(self.gradients, listed, strict=True) for name in names}

    def _saved_of(self, ctx: Any, saved_tensors: Sequence[Any]) -> dict[str, Any]:
        if ctx.lengths is None:
            return dict(zip(self.saved, saved_tensors, strict=True))
        tensors = iter(saved_tensors)
        return {
            name: next(tensors) if length is None else [next(tensors) for _ in range(length)]
            for name, length in zip(self.saved, ctx.lengths, strict=True)
        }

    def _gradient_of(self, ctx: Any, index: int, by_input: Mapping[str, torch.Tensor], needed: Any) -> Any:
        declared = self.op.inputs[index]
        if declared.name in by_input:
            return by_input[declared.name] if ctx.present[index] else None
        if any(needed) if isinstance(needed, Sequence) else needed:
            # Torch would read None as a gradient of zero.
            raise NotImplementedError(
                f"{self.name} can't be differentiated by its input '{declared.name}': {self.gradient_op.name} has no "
                f"output grad_{declared.name}"
            )
        return [None] * ctx.present[index] if declared.variadic else None
