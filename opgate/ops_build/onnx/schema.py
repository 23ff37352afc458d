"""Registers the ops as `onnx.defs` schemas, so that onnx.checker and onnx's shape inference know them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import onnx
import onnx.reference.op_run  # its import fails once an op is registered that has the name of one of ONNX's
import onnx.shape_inference
from onnx import TensorProto, TypeProto, helper
from onnx.defs import OpSchema

from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.onnx.nodes import element_type
from opgate.ops_build.op_table import Attribute, Input, Op, Output
from opgate.ops_build.signature_walk import KnownInput, SignatureMismatch, Size, Walk


def register(ops: Iterable[Op]) -> None:
    """Registers the schemas of ops with onnx. They replace schemas that were registered before."""
    for op in ops:
        if onnx.defs.has(op.name, op.domain):
            registered = onnx.defs.get_schema(op.name, domain=op.domain)
            onnx.defs.deregister_schema(op.name, registered.since_version, op.domain)
        onnx.defs.register_schema(schema(op))


def schema(op: Op) -> OpSchema:
    """Returns the schema of an op. It infers types and shapes from the op's signature."""
    op_schema = OpSchema(
        op.name,
        op.domain,
        op.since_version,
        doc=f"{op.doc}\n\n{op.signature}",
        inputs=[_parameter(op, tensor, variadic=tensor.variadic) for tensor in op.inputs],
        outputs=[_parameter(op, tensor, variadic=False) for tensor in op.outputs],
        type_constraints=[
            (name, [DTYPES[dtype].onnx_type for dtype in dtypes], "") for name, dtypes in op.type_variables.items()
        ],
        attributes=[_attribute(attribute) for attribute in op.attributes],
    )
    op_schema.set_type_and_shape_inference_function(lambda context: _infer(op, context))
    return op_schema


def _parameter(op: Op, tensor: Input | Output, *, variadic: bool) -> OpSchema.FormalParameter:
    option = OpSchema.FormalParameterOption
    kind = option.Variadic if variadic else option.Optional if tensor.optional else option.Single
    type_text = tensor.type if tensor.type in op.type_variables else DTYPES[tensor.type].onnx_type
    return OpSchema.FormalParameter(tensor.name, type_text, param_option=kind, min_arity=0 if tensor.optional else 1)


def _attribute(attribute: Attribute) -> OpSchema.Attribute:
    kinds = OpSchema.AttrType
    one_string_of_lines = attribute.kind == "str" and attribute.list
    kind = {
        ("int", False): kinds.INT,
        ("int", True): kinds.INTS,
        ("bool", False): kinds.INT,
        ("bool", True): kinds.INTS,
        ("float", False): kinds.FLOAT,
        ("float", True): kinds.FLOATS,
    }.get((attribute.kind, attribute.list), kinds.STRING)
    description = (
        " | ".join(attribute.choices) if attribute.choices else "An element a line." if one_string_of_lines else ""
    )
    if attribute.required:
        return OpSchema.Attribute(attribute.name, kind, description, required=True)
    default: Any = attribute.default
    if one_string_of_lines:
        default = "\n".join(default)
    elif attribute.kind == "bool":
        default = [int(v) for v in default] if attribute.list else int(default)
    if default == []:
        return OpSchema.Attribute(attribute.name, kind, description, required=False)
    return OpSchema.Attribute(attribute.name, helper.make_attribute(attribute.name, default), description)


class GraphSizes:
    """The algebra of the sizes in an ONNX graph: numbers, names of dims, and None for unknown sizes.

    signature/symbols.h is the same in C++.
    """

    def number(self, size: Size) -> int | None:
        """Returns the size if it is a number, else None."""
        return size if isinstance(size, int) else None

    def equal(self, a: Size, b: Size, message: Callable[[], str]) -> tuple[Size] | None:
        """Returns the size that is known better, a number if there is one. Returns None for two different numbers."""
        if isinstance(a, int) and isinstance(b, int) and a != b:
            return None
        return (b if isinstance(b, int) else a,)

    def apply(self, operation: str, a: Size, b: Size) -> Size:
        """Returns None: the result of an operation on a name is unknown."""
        return None

    def text(self, size: Size) -> str:
        """Returns the number or the name as text."""
        return str(size)


def infer_shapes(walk: Walk) -> list[tuple[Size, ...] | None]:
    """Returns the shapes of the outputs, with None for an unknown rank. `walk` must have bound its inputs. Raises
    SignatureMismatch."""
    for name in walk.kernel_sizes:
        walk.bound_of(name)  # raises SignatureMismatch if the bound is negative
    return [walk.output_dims(output) for output in walk.op.outputs]


def _infer(op: Op, context: Any) -> None:
    """Sets the types and shapes of a node's outputs. Raises InferenceError if its inputs contradict the signature."""
    integers = {
        attribute.name: _integer(context, attribute)
        for attribute in op.attributes
        if attribute.kind == "int" and not attribute.list
    }
    walk = Walk(op, GraphSizes())
    try:
        walk.bind([_known_input(op, context, index) for index in range(context.get_num_inputs())], integers)
        shapes = infer_shapes(walk)
    except SignatureMismatch as error:
        raise onnx.shape_inference.InferenceError(f"{op.domain}::{op.name}: {error}") from error
    for index, (output, shape) in enumerate(zip(op.outputs, shapes, strict=True)):
        dtype = walk.type_of(output)
        if dtype is not None and index < context.get_num_outputs():
            context.set_output_type(index, helper.make_tensor_type_proto(element_type(dtype), shape))


_NAMES = {dtype.onnx: dtype.name for dtype in DTYPES.values()}


def _known_input(op: Op, context: Any, index: int) -> KnownInput:
    """Returns what the graph tells about an input.

    onnx doesn't tell whether an input without a type is absent or of an unknown type, so nothing is known of it. An
    absent input at the end of the list is not asked for.
    """
    tensor = op.inputs[min(index, len(op.inputs) - 1)]
    input_type = context.get_input_type(index)
    if input_type is None or not input_type.HasField("tensor_type"):
        return KnownInput(None, None)
    onnx_name = TensorProto.DataType.Name(input_type.tensor_type.elem_type)
    dtype = None if onnx_name == "UNDEFINED" else _NAMES.get(onnx_name, onnx_name.lower())
    return KnownInput(dtype, _sizes(input_type.tensor_type), _scalar(tensor, context, index))


def _sizes(tensor_type: TypeProto.Tensor) -> Sequence[Size] | None:
    if not tensor_type.HasField("shape"):
        return None
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor_type.shape.dim]


def _scalar(tensor: Input, context: Any, index: int) -> int | None:
    """Returns the value of an integer scalar in host memory if it is a constant of the graph, else None."""
    if not tensor.const or tensor.dims:
        return None
    data = context.get_input_data(index)
    if data is None or data.dims:  # the walk refuses a tensor that is no scalar
        return None
    value = onnx.numpy_helper.to_array(data)
    return int(value) if value.dtype.kind in "iu" else None


def _integer(context: Any, attribute: Attribute) -> int | None:
    node_attribute = context.get_attribute(attribute.name)
    value: int | None = attribute.default if node_attribute is None else node_attribute.i
    return value
