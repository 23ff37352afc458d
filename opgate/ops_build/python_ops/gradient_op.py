"""Makes the op of a gradient from an op with a formula."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opgate.ops_build.op_table import Attribute, Input, Op, Output
from opgate.ops_build.python_ops import layout
from opgate.ops_build.python_ops.derivative import gradients
from opgate.ops_build.python_ops.expression import Node, Over
from opgate.ops_build.python_ops.formula_source import Choice
from opgate.ops_build.python_ops.python_op import PythonOp, place_of
from opgate.ops_build.python_ops.traced import FormulaError, Trace, Traced
from opgate.ops_build.python_ops.tracing import Formula, called, choices_of, formula_of, kept

#: The dtypes that have a gradient.
FLOATS = frozenset({"f16", "bf16", "f32", "f64"})


def gradient_op(op: Op, python: PythonOp) -> tuple[Op, list[Choice]] | None:
    """Returns the op of the gradient and its traced formula: the author's, or the derivative of the op's formula.
    None if no input has a gradient. Raises FormulaError."""
    floats = [dtype for dtypes in op.type_variables.values() for dtype in dtypes if dtype in FLOATS]
    if not floats:
        return None
    (variable,) = op.type_variables
    known: dict[str, Input | Output] = {tensor.name: tensor for tensor in op.inputs}
    known |= {tensor.name: tensor for tensor in op.outputs}
    gradient_inputs = [_as_input(op, output, f"grad_{output.name}") for output in op.outputs]
    like_output = [_as_output(op, tensor, f"grad_{tensor.name}") for tensor in op.inputs]
    named = named_by(python.gradient_function, op) if python.gradient_function else [t.name for t in op.inputs]
    taken = [_as_input(op, known[name], name) for name in named]
    whole = replace(
        op,
        name=f"{op.name}Backward",
        doc=f"The gradient of {op.name}.",
        type_variables={variable: tuple(floats)},
        inputs=(*gradient_inputs, *taken),
        outputs=tuple(like_output),
    )
    formula = _stated_gradient(op, python) if python.gradient_function else _derived_gradient(op, python)
    choices = choices_of(whole, formula)
    # One output for inputs with one gradient, and none for those whose gradient is 0.
    groups: dict[tuple[object, ...], list[int]] = {}
    for place in range(len(op.inputs)):
        same = [id(results[place]) for choice in choices for results in choice.results.values()]
        key = (*layout.texts(op.inputs[place]), *same)
        groups.setdefault(key, []).append(place)
    kept_groups = [
        places
        for places in groups.values()
        if not all(_is_zero(results[places[0]]) for choice in choices for results in choice.results.values())
    ]
    if not kept_groups:
        return None
    outputs = [
        replace(like_output[places[0]], name="grad_" + "_and_".join(op.inputs[place].name for place in places))
        for places in kept_groups
    ]
    choices = [
        replace(
            choice,
            results={
                dtype: [results[places[0]] for places in kept_groups] for dtype, results in choice.results.items()
            },
        )
        for choice in choices
    ]
    used = {*kept([*(t.name for t in whole.inputs), *(a.name for a in op.attributes)], choices)}
    # The sizes of the outputs are those of inputs.
    for dim in dict.fromkeys(dim for output in outputs for dim in layout.texts(output)):
        having = [tensor.name for tensor in whole.inputs if dim in layout.texts(tensor)]
        if having and used.isdisjoint(having):
            used.add(having[0])
    backward = replace(
        whole,
        inputs=tuple(tensor for tensor in whole.inputs if tensor.name in used),
        attributes=tuple(attribute for attribute in op.attributes if attribute.name in used),
        outputs=tuple(outputs),
    )
    return replace(backward, signature=_signature(backward)), choices


def _as_input(op: Op, tensor: Input | Output, name: str) -> Input:
    dims = [{"kind": "name", "name": dim["expr"]} if isinstance(dim.get("expr"), str) else dim for dim in tensor.dims]
    return replace(op.inputs[0], name=name, dims=dims)


def _as_output(op: Op, tensor: Input, name: str) -> Output:
    dims = [{"kind": "expr", "expr": dim["name"]} if dim["kind"] == "name" else dim for dim in tensor.dims]
    return replace(op.outputs[0], name=name, dims=dims)


def _is_zero(node: Node) -> bool:
    return node.what == "number" and node.value == 0


def _derived_gradient(op: Op, python: PythonOp) -> Formula:
    assert python.formula_function is not None
    forward = formula_of(python.formula_function)

    def formula(trace: Trace, inputs: Mapping[str, Traced], attributes: Mapping[str, Any]) -> Sequence[object]:
        own = {tensor.name: inputs[tensor.name] for tensor in op.inputs}
        results = [trace.wrap(result).node for result in forward(trace, own, attributes)]
        of_results: list[Any] = [inputs[f"grad_{output.name}"] for output in op.outputs]
        nodes = [value.node for value in own.values()]
        if len(results) > 1 or trace.rows:
            over = [layout.over(op, output) for output in op.outputs]
            kept = [Traced(trace, gradient.node) for gradient in of_results]
            found = gradients(trace, results, kept, nodes, over)
            return [Traced(trace, g.node, value.flat) for g, value in zip(found, own.values(), strict=True)]
        # The slope times the gradient: what overflows in the gradient then spoils nothing of the slope.
        slopes = gradients(trace, results, [trace.wrap(1.0)], nodes, [Over.ELEMENT])
        return [slope if _is_zero(slope.node) else of_results[0] * slope for slope in slopes]

    return formula


def _stated_gradient(op: Op, python: PythonOp) -> Formula:
    function = python.gradient_function
    assert function is not None

    def formula(trace: Trace, inputs: Mapping[str, Traced], attributes: Mapping[str, Any]) -> Sequence[object]:
        takes = inspect.signature(function).parameters
        given = [inputs[name] for name in takes if name in inputs]
        own = {name: value for name, value in attributes.items() if name in takes}
        results = called(function, given, own)
        parts = results if isinstance(results, tuple) else (results,)
        if len(parts) != len(op.inputs):
            raise FormulaError(
                f"{place_of(function)}: expected {len(op.inputs)} gradients, one for each input, got {len(parts)}"
            )
        return [0.0 if part is None else part for part in parts]

    return formula


def named_by(function: Callable[..., Any], op: Op) -> list[str]:
    """Returns the inputs and outputs of the op that its gradient names. Raises FormulaError."""
    known = [t.name for t in op.inputs] + [t.name for t in op.outputs]
    others = [*(f"grad_{t.name}" for t in op.outputs), *(a.name for a in op.attributes)]
    for name in inspect.signature(function).parameters:
        if name not in known and name not in others:
            raise FormulaError(
                f"{place_of(function)}: a gradient takes {', '.join([*others, *known])}, and there is no {name}"
            )
    return [name for name in known if name in inspect.signature(function).parameters]


def _signature(op: Op) -> str:
    ((variable, dtypes),) = op.type_variables.items()
    inputs, outputs = (
        ", ".join(f"{tensor.name}: {variable}[{', '.join(layout.texts(tensor))}]" for tensor in tensors)
        for tensors in (op.inputs, op.outputs)
    )
    attributes = ", ".join(map(attribute_text, op.attributes))
    return f"<{variable}: {'|'.join(dtypes)}> {op.name}({inputs}{'; ' * bool(attributes)}{attributes}) -> ({outputs})"


def attribute_text(attribute: Attribute) -> str:
    """Returns an attribute as a signature writes it."""
    kind = "{" + "|".join(attribute.choices) + "}" if attribute.choices else attribute.kind
    if attribute.list:
        kind += f"[{'' if attribute.length is None else attribute.length}]"
    if attribute.required:
        return f"{attribute.name}: {kind}"
    values = attribute.default if attribute.list else [attribute.default]
    texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
    return f"{attribute.name}: {kind}={'[' * attribute.list}{', '.join(texts)}{']' * attribute.list}"
