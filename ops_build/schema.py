"""The op table as `onnx.defs` schemas, so that onnx.checker and shape inference know the ops."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx
import onnx.shape_inference
from onnx import TypeProto, helper
from onnx.defs import OpSchema

from ops_build.onnx_model import ELEMENT_TYPES
from ops_build.shapes import Given, ShapeError, Size, bind, output_shapes
from ops_build.table import Attribute, Input, Op, Output

_TYPE_NAMES = {
    "f16": "tensor(float16)",
    "bf16": "tensor(bfloat16)",
    "f32": "tensor(float)",
    "f64": "tensor(double)",
    "i8": "tensor(int8)",
    "u8": "tensor(uint8)",
    "i32": "tensor(int32)",
    "i64": "tensor(int64)",
    "bool": "tensor(bool)",
    "str": "tensor(string)",
}


def register(ops: Iterable[Op]) -> None:
    """Registers the ops' schemas with onnx, in place of ones registered before."""
    for op in ops:
        if onnx.defs.has(op.name, op.domain):
            onnx.defs.deregister_schema(op.name, op.since_version, op.domain)
        onnx.defs.register_schema(schema(op))


def schema(op: Op) -> OpSchema:
    """The schema of one op, with type and shape inference from its signature."""
    made = OpSchema(
        op.name,
        op.domain,
        op.since_version,
        doc=f"{op.doc}\n\n{op.signature}",
        inputs=[_parameter(op, tensor, variadic=tensor.variadic) for tensor in op.inputs],
        outputs=[_parameter(op, tensor, variadic=False) for tensor in op.outputs],
        type_constraints=[
            (name, [_TYPE_NAMES[dtype] for dtype in dtypes], "") for name, dtypes in op.type_variables.items()
        ],
        attributes=[_attribute(attribute) for attribute in op.attributes],
    )
    made.set_type_and_shape_inference_function(lambda context: _infer(op, context))
    return made


def _parameter(op: Op, tensor: Input | Output, *, variadic: bool) -> OpSchema.FormalParameter:
    option = OpSchema.FormalParameterOption
    kind = option.Variadic if variadic else option.Optional if tensor.optional else option.Single
    type_text = tensor.type if tensor.type in op.type_variables else _TYPE_NAMES[tensor.type]
    return OpSchema.FormalParameter(tensor.name, type_text, param_option=kind, min_arity=0 if tensor.optional else 1)


def _attribute(attribute: Attribute) -> OpSchema.Attribute:
    kinds = OpSchema.AttrType
    lines = attribute.kind == "str" and attribute.list
    kind = {
        ("int", False): kinds.INT,
        ("int", True): kinds.INTS,
        ("bool", False): kinds.INT,
        ("bool", True): kinds.INTS,
        ("float", False): kinds.FLOAT,
        ("float", True): kinds.FLOATS,
    }.get((attribute.kind, attribute.list), kinds.STRING)
    description = " | ".join(attribute.choices) if attribute.choices else "An element a line." if lines else ""
    if attribute.required:
        return OpSchema.Attribute(attribute.name, kind, description, required=True)
    default: Any = attribute.default
    if lines:
        default = "\n".join(default)
    elif attribute.kind == "bool":
        default = [int(v) for v in default] if attribute.list else int(default)
    if default == []:
        return OpSchema.Attribute(attribute.name, kind, description, required=False)
    return OpSchema.Attribute(attribute.name, helper.make_attribute(attribute.name, default), description)


def _infer(op: Op, context: Any) -> None:
    """Fills in the types and shapes of a node's outputs. Raises where its inputs contradict the signature."""
    types: dict[str, int] = {}
    inputs: list[Given | None] = []
    for index in range(context.get_num_inputs()):
        tensor = op.inputs[min(index, len(op.inputs) - 1)]
        given = context.get_input_type(index)
        if given is None or not given.HasField("tensor_type"):
            inputs.append(None)
            continue
        types.setdefault(tensor.type, given.tensor_type.elem_type)
        inputs.append(Given(_sizes(given.tensor_type)))
    integers = {
        attribute.name: value
        for attribute in op.attributes
        if attribute.kind == "int" and not attribute.list and (value := _integer(context, attribute)) is not None
    }
    try:
        inferred = output_shapes(op, bind(op, inputs, integers))
    except ShapeError as error:
        raise onnx.shape_inference.InferenceError(f"{op.domain}::{op.name}: {error}") from error
    for index, (output, shape) in enumerate(zip(op.outputs, inferred, strict=True)):
        if index >= context.get_num_outputs():
            break
        element = types.get(output.type) if output.type in op.type_variables else ELEMENT_TYPES[output.type]
        if element:
            context.set_output_type(index, helper.make_tensor_type_proto(element, shape))


def _sizes(tensor_type: TypeProto.Tensor) -> list[Size] | None:
    if not tensor_type.HasField("shape"):
        return None
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor_type.shape.dim]


def _integer(context: Any, attribute: Attribute) -> int | None:
    node_attribute = context.get_attribute(attribute.name)
    value: int | None = attribute.default if node_attribute is None else node_attribute.i
    return value
