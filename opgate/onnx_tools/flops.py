"""Counts the floating-point operations of nodes. A product and a sum are two.

A node of an op that has a decomposition counts as that does, by its standard operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from onnx import ModelProto, NodeProto, helper
from onnx.inliner import inline_local_functions

from opgate.onnx_tools.values import Values
from opgate.ops_build.onnx.decompose import DecompositionError, decompose
from opgate.ops_build.onnx.nodes import element_type, node_attributes
from opgate.ops_build.op_table import Op

#: The operators that compute one operation, or one function, for each element of their output.
_ELEMENTWISE = frozenset({
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitwiseAnd", "BitwiseNot", "BitwiseOr",
    "BitwiseXor", "Ceil", "Clip", "Cos", "Cosh", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Greater",
    "GreaterOrEqual", "HardSigmoid", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mod", "Mul",
    "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Sqrt", "Sub", "Sum", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor", "BitShift", "IsNaN", "IsInf",
    "HardSwish", "Softsign", "Celu", "Mish", "Gelu", "Swish",
})  # fmt: skip
#: Those that move or make data.
_MOVES = frozenset({
    "Cast", "CastLike", "Compress", "Concat", "Constant", "ConstantOfShape", "DepthToSpace", "Dropout", "Expand",
    "EyeLike", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "NonZero", "OneHot", "Pad", "Range",
    "Reshape", "ScatterElements", "ScatterND", "Shape", "Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile",
    "Transpose", "Trilu", "Unsqueeze", "ReverseSequence",
})  # fmt: skip
#: Those that compute so many operations for each element of their input.
_BY_INPUT = {
    **dict.fromkeys(("ArgMax", "ArgMin", "CumSum", "GlobalAveragePool", "GlobalMaxPool"), 1),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"), 1),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare"), 2),
    **dict.fromkeys(("Softmax", "LogSoftmax"), 5),
    "BatchNormalization": 2,  # a product and a sum, with the statistics folded
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization", "LayerNormalization"), 8),
    "RMSNormalization": 4,
}


def flops_of(node: NodeProto, values: Values, ops: Mapping[tuple[str, str], Op], folders: Sequence[Path]) -> int | None:
    """Returns the operations of a node, or None if they can't be counted: a size is not known, or nobody has said what
    the op computes."""
    if op := ops.get((node.domain, node.op_type)):
        return _of_op(node, op, values, folders)
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in _MOVES:
        return 0
    shapes = [_numbers(values, name) for name in (*node.input, *node.output)]
    inputs, output = shapes[: len(node.input)], shapes[len(node.input)] if node.output else None
    if node.op_type in _ELEMENTWISE:
        operands = len(node.input) - 1 if node.op_type in ("Max", "Mean", "Min", "Sum") else 1
        return None if output is None else prod(output) * max(1, operands)
    if node.op_type in _BY_INPUT:
        return None if inputs[0] is None else prod(inputs[0]) * _BY_INPUT[node.op_type]
    count = _COUNTS.get(node.op_type)
    if count is None or output is None or any(shape is None for shape in inputs[:2]):
        return None
    return count(node, inputs, output)


def _numbers(values: Values, name: str) -> list[int] | None:
    shape = values.shape(name) if name else None
    if shape is None:
        return None
    sizes = [size for size in shape if isinstance(size, int)]
    return sizes if len(sizes) == len(shape) else None


def _attribute(node: NodeProto, name: str, default: Any) -> Any:
    found = next((attribute for attribute in node.attribute if attribute.name == name), None)
    return default if found is None else helper.get_attribute_value(found)


def _conv(node: NodeProto, inputs: Sequence[Any], output: Sequence[int]) -> int:
    """Each output element sums the products of a filter [out, in / group, ...]; the bias is one more."""
    return int(prod(output) * (2 * prod(inputs[1][1:]) + (len(inputs) > 2)))


def _conv_transpose(node: NodeProto, inputs: Sequence[Any], output: Sequence[int]) -> int:
    """Each input element is multiplied with a filter [in, out / group, ...]."""
    return int(prod(inputs[0]) * 2 * prod(inputs[1][1:]) + prod(output) * (len(inputs) > 2))


def _matmul(node: NodeProto, inputs: Sequence[Any], output: Sequence[int]) -> int:
    return int(2 * prod(output) * (inputs[0][-1] if inputs[0] else 1))


def _gemm(node: NodeProto, inputs: Sequence[Any], output: Sequence[int]) -> int:
    inner = inputs[0][0 if _attribute(node, "transA", 0) else 1]
    return int(prod(output) * (2 * inner + (len(inputs) > 2)))


def _pool(node: NodeProto, inputs: Sequence[Any], output: Sequence[int]) -> int:
    return int(prod(output) * prod(_attribute(node, "kernel_shape", [1])))


def _recurrent(gates: int) -> Callable[[NodeProto, Sequence[Any], Sequence[int]], int]:
    def count(node: NodeProto, inputs: Sequence[Any], output: Sequence[int]) -> int:
        steps, batch, width = inputs[0]
        directions, hidden = inputs[1][0], inputs[1][1] // gates
        return int(2 * steps * batch * directions * gates * hidden * (width + hidden))

    return count


#: What an operator counts, from its node, the shapes of its inputs and that of its first output.
_COUNTS: Mapping[str, Callable[[NodeProto, Sequence[Any], Sequence[int]], int]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _recurrent(1),
}


def _of_op(node: NodeProto, op: Op, values: Values, folders: Sequence[Path]) -> int | None:
    """Counts the operators of an op's decomposition for the shapes of a node."""
    model = _alone(node, op, values)
    try:
        if model is None or op.name in decompose(model, [op], folders).left:
            return None
        inlined = inline_local_functions(model)
    except (DecompositionError, FileNotFoundError, RuntimeError):
        return None
    inner = Values(inlined)
    counts = [flops_of(inside, inner, {}, ()) for inside in inlined.graph.node]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _alone(node: NodeProto, op: Op, values: Values) -> ModelProto | None:
    """Returns a model with the node alone, None if a shape or a dtype isn't known."""
    inputs = []
    for name in dict.fromkeys(name for name in node.input if name):
        shape, dtype = _numbers(values, name), values.dtype(name)
        if shape is None or dtype is None:
            return None
        inputs.append(helper.make_tensor_value_info(name, element_type(dtype), shape))
    outputs = [
        helper.make_tensor_value_info(name, element_type(values.dtype(name) or "f32"), None)
        for name in node.output
        if name
    ]
    copy = NodeProto()
    copy.CopyFrom(node)
    stated = {attribute.name for attribute in node.attribute}
    defaults = {a.name: a.default for a in op.attributes if not a.required and a.name not in stated}
    for name, value in node_attributes(op, defaults).items():  # the inliner doesn't put in the defaults of a function
        if value not in ([], ""):
            copy.attribute.append(helper.make_attribute(name, value))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(op.domain, op.since_version)]
    constants = [
        helper.make_tensor(name, element_type(values.dtype(name) or "f32"), array.shape, array.ravel().tolist())
        for name in node.input
        if name and (array := values.constant(name)) is not None and array.size <= 64
    ]
    graph = helper.make_graph([copy], op.name, inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
