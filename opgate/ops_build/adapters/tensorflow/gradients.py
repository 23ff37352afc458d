"""Registers the gradients of ops with TensorFlow. The gradient of an op X is the op XBackward, if the table has one, or
what its gradient.py states.

ops_build/op_gradients.py has the rules for the names of the one, ops_build/stated_gradient.py those of the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from opgate.ops_build.op_functions import functions_of
from opgate.ops_build.op_gradients import check_convention, inputs_of, may_be_float
from opgate.ops_build.op_table import Op
from opgate.ops_build.stated_gradient import StatedGradient, stated_gradient

if TYPE_CHECKING:
    from opgate.ops_build.adapters.tensorflow.library import OpLibrary


def register_gradient(library: OpLibrary, op: Op) -> None:
    """Registers the gradient of an op.

    If there is none, TensorFlow gets a function that raises LookupError. Raises ValueError if the gradient doesn't
    follow the rules.
    """
    backward = next((other for other in library.ops if other.name == f"{op.name}Backward"), None)
    stated = stated_gradient(op, backward)
    if not all(any(may_be_float(op, tensor.type) for tensor in side) for side in (op.inputs, op.outputs)):
        return  # TensorFlow knows by itself that integers have no gradient
    name = library.registered[op.name].type
    if stated is not None:
        tf.RegisterGradient(name)(_PythonGradient(library, op, stated))
    elif backward is not None:
        check_convention(op, backward)
        tf.RegisterGradient(name)(_TableGradient(library, op, backward))
    else:
        tf.RegisterGradient(name)(_refusal(op))


def _refusal(op: Op) -> Any:
    def gradient(node: Any, *gradients: Any) -> Any:
        raise LookupError(
            f"{op.domain}::{op.name} can't be differentiated: the op table has no {op.name}Backward. Call it on "
            "tf.stop_gradient(...) of its inputs, or state that op"
        )

    return gradient


class _Gradient:
    """Computes the gradients of a node of an op. TensorFlow passes the tensors of all inputs as one list, and those of
    all outputs."""

    def __init__(self, library: OpLibrary, op: Op, missing: str) -> None:
        """`missing` says of an input, {}, that it has no gradient."""
        self._library, self._op, self._missing = library, op, missing
        self._known = library.registered[op.name]

    def __call__(self, node: Any, *gradients: Any) -> list[Any]:
        inputs = self._by_name(node, self._op.inputs, self._known.input_lengths, node.inputs)
        outputs = self._by_name(node, self._op.outputs, self._known.output_lengths, node.outputs)
        by_output = self._by_name(node, self._op.outputs, self._known.output_lengths, gradients)
        attributes = {attribute.name: self._attribute(node, attribute.name) for attribute in self._op.attributes}
        return self._flat(node, inputs, self._by_input(inputs, outputs, by_output, attributes))

    def _by_input(
        self,
        inputs: Mapping[str, Any],
        outputs: dict[str, Any],
        by_output: Mapping[str, Any],
        attributes: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Returns the gradients of inputs by their names."""
        raise NotImplementedError

    def _by_name(
        self, node: Any, declared: Sequence[Any], lengths: Sequence[str], tensors: Sequence[Any]
    ) -> dict[str, Any]:
        """Returns the tensors by their names in the signature: None for an absent one, a list for a variadic input."""
        begin, found = 0, {}
        for tensor, length in zip(declared, lengths, strict=True):
            count = node.get_attr(length) if length else 1
            values = list(tensors[begin : begin + count])
            begin += count
            variadic = getattr(tensor, "variadic", False)
            found[tensor.name] = values if variadic else values[0] if values else None
        return found

    def _attribute(self, node: Any, name: str) -> Any:
        value = node.get_attr(self._known.attributes[name])
        if isinstance(value, list):
            return [element.decode() if isinstance(element, bytes) else element for element in value]
        return value.decode() if isinstance(value, bytes) else value

    def _flat(self, node: Any, inputs: Mapping[str, Any], by_input: Mapping[str, Any]) -> list[Any]:
        """Returns a gradient for each tensor of the node, or None."""
        skipped = getattr(node, "skip_input_indices", None)  # only a tape tells which gradients nobody wants
        flat: list[Any] = []
        for tensor in self._op.inputs:
            value = inputs[tensor.name]
            count = len(value) if tensor.variadic else int(value is not None)
            if tensor.name in by_input:
                flat += [by_input[tensor.name]] * count
                continue
            wanted = skipped is not None and not {*range(len(flat), len(flat) + count)}.issubset(skipped)
            if wanted and may_be_float(self._op, tensor.type):
                raise LookupError(  # TensorFlow would read None as an input that nothing depends on
                    f"{self._op.domain}::{self._op.name} can't be differentiated by its input '{tensor.name}': "
                    f"{self._missing.format(tensor.name)}"
                )
            flat += [None] * count
        return flat


class _TableGradient(_Gradient):
    """Calls the backward op."""

    def __init__(self, library: OpLibrary, op: Op, backward: Op) -> None:
        super().__init__(library, op, f"{backward.name} has no output grad_{{}}")
        self._backward = backward
        forward = {attribute.name for attribute in op.attributes}
        self._attributes = [a.name for a in backward.attributes if a.name in forward]

    def _by_input(
        self,
        inputs: Mapping[str, Any],
        outputs: dict[str, Any],
        by_output: Mapping[str, Any],
        attributes: Mapping[str, Any],
    ) -> dict[str, Any]:
        self._recompute(inputs, outputs, attributes)
        arguments = {f"grad_{name}": self._gradient(name, value, outputs) for name, value in by_output.items()}
        arguments = (
            outputs | dict(inputs) | arguments
        )  # an input and an output of one name: the gradient is told by the input
        return self._run(inputs, arguments, attributes)

    def _recompute(self, inputs: Mapping[str, Any], outputs: dict[str, Any], attributes: Mapping[str, Any]) -> None:
        """Adds the optional outputs that the gradient needs and the node doesn't have."""
        needed = {tensor.name for tensor in self._backward.inputs if not tensor.optional}
        missing = {name for name, value in outputs.items() if value is None and name in needed and name not in inputs}
        if missing:
            again = self._library.run(self._op, inputs, attributes, missing)
            outputs.update(
                (output.name, value)
                for output, value in zip(self._op.outputs, again, strict=True)
                if output.name in missing
            )

    def _gradient(self, name: str, value: Any, outputs: Mapping[str, Any]) -> Any:
        """Returns the gradient of an output. One that nothing depends on is zero, or absent if it may be."""
        declared = next((tensor for tensor in self._backward.inputs if tensor.name == f"grad_{name}"), None)
        if value is not None or declared is None or declared.optional:
            return value
        return tf.zeros_like(outputs[name])

    def _run(
        self, inputs: Mapping[str, Any], arguments: Mapping[str, Any], attributes: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Returns the gradients of inputs by their names."""
        names = [inputs_of(output.name, inputs) for output in self._backward.outputs]
        wanted = {
            output.name
            for output, of in zip(self._backward.outputs, names, strict=True)
            if any(inputs[name] is not None for name in of)
        }
        taken = {tensor.name: arguments.get(tensor.name) for tensor in self._backward.inputs}
        own = {name: attributes[name] for name in self._attributes}
        outputs = self._library.run(self._backward, taken, own, wanted)
        return {name: output for of, output in zip(names, outputs, strict=True) for name in of}


class _PythonGradient(_Gradient):
    """Calls what a gradient.py states."""

    def __init__(self, library: OpLibrary, op: Op, stated: StatedGradient) -> None:
        super().__init__(library, op, "its gradient.py gives none")
        self._stated, self._functions = stated, Functions(library)

    def _by_input(
        self,
        inputs: Mapping[str, Any],
        outputs: dict[str, Any],
        by_output: Mapping[str, Any],
        attributes: Mapping[str, Any],
    ) -> dict[str, Any]:
        tensors = {**outputs, **inputs}
        for name, gradient in by_output.items():
            there = gradient is not None or outputs[name] is None
            tensors[f"grad_{name}"] = gradient if there else tf.zeros_like(outputs[name])
        return self._stated(self._functions, tensors, attributes)


class Functions:
    """The functions of the ops of a library, by their names."""

    def __init__(self, library: OpLibrary) -> None:
        self._library = library
        self._ops = {name: (op, returned) for op in library.ops for name, returned in functions_of(op)}

    def __getattr__(self, name: str) -> Any:
        if name not in self._ops:
            raise AttributeError(f"the library has no op {name}")
        op, returned = self._ops[name]

        def call(*tensors: Any, **attributes: Any) -> Any:
            given = dict(zip((tensor.name for tensor in op.inputs), tensors, strict=False))
            wanted = frozenset(output.name for output in returned.outputs)
            outputs = self._library.run(op, given, attributes, wanted)[: len(returned.outputs)]
            return outputs[0] if len(outputs) == 1 else tuple(outputs)

        return call
