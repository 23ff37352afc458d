"""Exports the ops from PyTorch to ONNX: each call of an op becomes one node. This works with both exporters of PyTorch:

torch.onnx.export(module, inputs, dynamo=True, custom_translation_table=translation_table(ops))

register_symbolics(ops)
torch.onnx.export(module, inputs, file, dynamo=False)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.onnx import symbolic_helper

from opgate.ops_build.adapters.torch.fake import TORCH_DTYPES
from opgate.ops_build.adapters.torch.names import namespace_of
from opgate.ops_build.onnx import schema
from opgate.ops_build.onnx.nodes import node_attributes
from opgate.ops_build.op_functions import functions_of
from opgate.ops_build.op_table import Attribute, Op
from opgate.ops_build.signature_walk import KnownInput, Walk

_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}

#: The first opset for which the symbolic functions of the legacy exporter are registered.
LEGACY_OPSET = 9


def translation_table(ops: Iterable[Op]) -> dict[Any, Callable[..., Any]]:
    """Returns a table for `torch.onnx.export(..., dynamo=True, custom_translation_table=...)`.

    It has, for each op of a loaded library, the function that creates the ONNX node. This also registers the schemas of
    the ops with onnx.
    """
    ops = list(ops)
    schema.register(ops)
    table: dict[Any, Callable[..., Any]] = {}
    for op in ops:
        for name, function in functions_of(op):
            packet = getattr(getattr(torch.ops, namespace_of(op.domain)), name, None)
            if packet is not None:
                table[packet.default] = _translation(function)
    return table


def _translation(op: Op) -> Callable[..., Any]:
    from onnxscript import values  # it brings sympy, which takes seconds

    node = values.Op(values.Opset(op.domain, op.since_version), op.name, schema.schema(op))
    signature = _signature(op)

    def translate(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        inputs = _flat_inputs(op, bound.arguments)
        return node(*inputs, **_node_attributes(op, bound.arguments))

    translate.__name__ = op.name
    translate.__signature__ = signature  # type: ignore[attr-defined]
    return translate


def _signature(op: Op) -> inspect.Signature:
    """Returns the signature of the op in PyTorch: inputs by position, attributes by name."""
    kinds = inspect.Parameter
    parameters = [
        kinds(tensor.name, kinds.POSITIONAL_OR_KEYWORD, default=None if tensor.optional else kinds.empty)
        for tensor in op.inputs
    ]
    parameters += [
        kinds(attribute.name, kinds.KEYWORD_ONLY, default=kinds.empty if attribute.required else attribute.default)
        for attribute in op.attributes
    ]
    return inspect.Signature(parameters)


def _flat_inputs(op: Op, arguments: Mapping[str, Any]) -> list[Any]:
    """Returns the inputs of the node. Each tensor of a variadic input is one; absent inputs at the end are left out."""
    inputs: list[Any] = []
    for tensor in op.inputs:
        value = arguments[tensor.name]
        inputs += value if tensor.variadic else [value]
    while inputs and inputs[-1] is None:
        inputs.pop()
    return inputs


def _node_attributes(op: Op, arguments: Mapping[str, Any]) -> dict[str, Any]:
    for attribute in op.attributes:
        value = arguments[attribute.name]
        if not isinstance(value, (int, float, str, bool, list, tuple)):
            raise ValueError(
                f"{op.domain}::{op.name}: attribute '{attribute.name}' is computed in the graph, and an ONNX node's "
                "attributes are constants: give it a number"
            )
    return node_attributes(op, {attribute.name: arguments[attribute.name] for attribute in op.attributes})


def register_symbolics(ops: Iterable[Op], opset: int = LEGACY_OPSET) -> None:
    """Registers symbolic functions for the legacy exporter, `torch.onnx.export(..., dynamo=False)`. They apply to the
    opsets from `opset` on."""
    for op in ops:
        for name, function in functions_of(op):
            torch.onnx.register_custom_op_symbolic(f"{namespace_of(op.domain)}::{name}", _symbolic(function), opset)


def _symbolic(op: Op) -> Callable[..., Any]:
    def symbolic(graph: Any, *args: Any) -> Any:
        inputs = list(args[: len(op.inputs)])
        if op.inputs and op.inputs[-1].variadic:
            inputs[-1:] = symbolic_helper._unpack_list(inputs[-1])
        while inputs and symbolic_helper._is_none(inputs[-1]):
            inputs.pop()
        attribute_values = args[len(op.inputs) :]
        attributes = {a.name: _constant(op, a, value) for a, value in zip(op.attributes, attribute_values, strict=True)}
        named = {
            f"{name}_{_SUFFIXES[type(value[0] if isinstance(value, list) else value)]}": value
            for name, value in node_attributes(op, attributes).items()
            if value != []
        }
        outputs = graph.op(f"{op.domain}::{op.name}", *inputs, outputs=len(op.outputs), **named)
        _set_types(op, inputs, attributes, [outputs] if len(op.outputs) == 1 else list(outputs))
        return outputs

    return symbolic


def _set_types(op: Op, inputs: Sequence[Any], attributes: Mapping[str, Any], outputs: Sequence[Any]) -> None:
    """Tells the legacy exporter the dtypes and shapes of the outputs."""
    known: list[KnownInput | None] = []
    for value in inputs:
        if symbolic_helper._is_none(value):
            known.append(None)
            continue
        scalar = symbolic_helper._try_get_scalar_type(value)
        dtype = None if scalar is None else _NAMES.get(scalar.dtype(), str(scalar.dtype()))
        known.append(KnownInput(dtype, symbolic_helper._get_tensor_sizes(value)))
    walk = Walk(op, schema.GraphSizes())
    walk.bind(known, {a.name: attributes[a.name] for a in op.attributes if a.kind == "int" and not a.list})
    for output, shape, value in zip(op.outputs, schema.infer_shapes(walk), outputs, strict=True):
        dtype = walk.type_of(output)
        if dtype is not None and shape is not None:
            value.setType(torch._C.TensorType.get().with_dtype(TORCH_DTYPES[dtype]).with_sizes(list(shape)))


#: The suffix that the legacy exporter adds to the name of an attribute, by the type of its value.
_SUFFIXES = {int: "i", float: "f", str: "s"}


def _constant(op: Op, attribute: Attribute, value: Any) -> Any:
    """Returns the value of an attribute in the traced graph, where None stands for the default.

    Raises ValueError if the value is not a constant.
    """
    if symbolic_helper._is_none(value):
        return attribute.default
    letter = {"int": "i", "float": "f", "bool": "b"}.get(attribute.kind, "s")
    if attribute.list and letter == "s":
        return [symbolic_helper._maybe_get_const(v, "s") for v in symbolic_helper._unpack_list(value)]
    constant = symbolic_helper._maybe_get_const(value, {"b": "i"}.get(letter, letter) + "s" * attribute.list)
    if isinstance(constant, torch._C.Value):
        raise ValueError(
            f"{op.domain}::{op.name}: attribute '{attribute.name}' is computed in the graph, and an ONNX node's "
            "attributes are constants: give it a number"
        )
    convert: Callable[[Any], Any] = {"i": int, "f": float, "b": bool, "s": str}[letter]
    return [convert(v) for v in _elements(constant)] if attribute.list else convert(constant)


def _elements(values: Any) -> Sequence[Any]:
    listed: Sequence[Any] = values.tolist() if isinstance(values, torch.Tensor) else values
    return listed
