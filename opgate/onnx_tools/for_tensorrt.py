"""Rewrites ONNX models so that TensorRT's ONNX parser can read them.

The parser creates a layer for each node whose op type is the name of a plugin. It has three limits. It doesn't support
an absent input before a present one. A node must have exactly as many outputs as the plugin. An input that is read on
the host must be listed in an attribute of the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import AttributeProto, NodeProto, helper
from onnx.shape_inference import InferenceError, infer_shapes

from opgate.onnx_tools.unknown_nodes import Unknown, unknown_ops
from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.onnx.decompose import load_to_rewrite
from opgate.ops_build.onnx.nodes import bodies_of, element_type, node_attributes, nodes_of
from opgate.ops_build.onnx.schema import register
from opgate.ops_build.op_table import Op

GIVEN_INPUTS = "opgate_inputs"  # the attribute that lists the present inputs; fields.h has the same name
SHAPE_INPUTS = "tensorrt_plugin_shape_input_indices"  # an attribute of TensorRT's parser


class NothingToRewrite(ValueError):
    """A model has no node of the ops."""


def for_tensorrt(model: onnx.ModelProto, ops: Iterable[Op]) -> onnx.ModelProto:
    """Returns a copy of the model for TensorRT's parser and a plugin library with these ops.

    In the copy, each node of the ops has every output of its plugin: also the optional outputs, and the sizes that only
    the kernel knows. Its input list has no absent inputs. Attributes say which inputs are present and which are read on
    the host, and state the default values. Functions that stand in for the ops are removed, so that the parser uses the
    plugins. A node that was rewritten before stays as it is.
    """
    by_name = {(op.domain, op.name): op for op in ops}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    functions = [f for f in copy.functions if (f.domain, f.name) not in by_name]
    del copy.functions[:]
    copy.functions.extend(functions)
    bodies = list(bodies_of(copy))
    used = {name for body in bodies for node in body.node for name in (*node.input, *node.output)}
    for body in bodies:
        nodes = list(body.node)
        del body.node[:]
        for node in nodes:
            op = by_name.get((node.domain, node.op_type))
            if op and not any(attribute.name == GIVEN_INPUTS for attribute in node.attribute):
                body.node.extend(_flattened_host_inputs(node, op, used))
                _rewrite(node, op, used)
            body.node.append(node)
    return copy


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What became of a model's nodes: the number of each op that is a plugin now, and the ops that neither ONNX nor the
    table knows, whose nodes stay as they were."""

    counts: dict[str, int]
    left: list[Unknown]


def rewrite_file(source: Path, target: Path, ops: Iterable[Op]) -> Rewritten:
    """Runs `for_tensorrt` on the file `source` and writes `target`.

    Weights in separate files stay in those files. Raises ValueError if there is nothing to rewrite, an op has no plugin
    or a tensor of one has a dtype that no plugin takes, and OSError.
    """
    model = load_to_rewrite(source, target)
    known = {(op.domain, op.name): op for op in ops}
    counts: dict[str, int] = {}
    for node in nodes_of(model):
        if op := known.get((node.domain, node.op_type)):
            if "cuda" not in op.devices:
                raise ValueError(
                    f"{source} has a node of {op.name}, which has no CUDA kernel in this build and so no plugin: "
                    "opgate ops says which have"
                )
            counts[op.name] = counts.get(op.name, 0) + 1
    left = unknown_ops(model, known)
    if not counts:
        domains = ", ".join(sorted({op.domain for op in known.values()}))
        others = "".join(f"; {unknown.name} is no op of them" for unknown in left)
        raise NothingToRewrite(f"{source} has no node of the ops of {domains}: there is nothing to rewrite{others}")
    _check_dtypes(source, model, known)
    onnx.save(for_tensorrt(model, known.values()), target)
    return Rewritten(counts, left)


def _check_dtypes(source: Path, model: onnx.ModelProto, ops: Mapping[tuple[str, str], Op]) -> None:
    """Raises ValueError if a node of the ops has a tensor of a dtype that TensorRT passes to no plugin, as far as the
    signature or onnx's inference tells it."""
    register(ops.values())
    try:
        inferred = infer_shapes(model).graph
    except InferenceError as error:
        raise ValueError(f"{source}: {error}") from None
    values = [*inferred.input, *inferred.value_info, *inferred.output]
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    names = {element_type(name): name for name in DTYPES}
    taken = " ".join(dtype.name for dtype in DTYPES.values() if dtype.tensorrt)
    for node in model.graph.node:
        op = ops.get((node.domain, node.op_type))
        if op is None:
            continue
        stated = [op.inputs[min(i, len(op.inputs) - 1)].type for i in range(len(node.input))]
        stated += [output.type for output in op.outputs]
        for name, type_name in zip((*node.input, *node.output), stated, strict=False):
            dtype = names.get(types.get(name, 0)) or type_name
            if name and dtype in DTYPES and DTYPES[dtype].tensorrt is None:
                raise ValueError(
                    f"{source}: tensor '{name}' of {op.name} is {dtype}, and TensorRT passes only {taken} to a plugin. "
                    "Cut the model there, and run that part elsewhere"
                )


def _flattened_host_inputs(node: NodeProto, op: Op, used: set[str]) -> Iterator[NodeProto]:
    """Yields nodes that reshape the inputs that are read on the host to rank 1: the parser takes no other rank."""
    for index, name in enumerate(node.input):
        if not name or index >= len(op.inputs) or not op.inputs[index].const:
            continue
        shape, flat = _fresh(f"{name}_shape", used), _fresh(f"{name}_flat", used)
        yield helper.make_node("Constant", [], [shape], value_ints=[-1])
        yield helper.make_node("Reshape", [name, shape], [flat])
        node.input[index] = flat


def _rewrite(node: NodeProto, op: Op, used: set[str]) -> None:
    """Changes a node of an op in place as for_tensorrt says."""
    present = [index for index, name in enumerate(node.input) if name]
    host = [position for position, index in enumerate(present) if index < len(op.inputs) and op.inputs[index].const]
    inputs = [node.input[index] for index in present]
    indices = [index for index in present if index < len(op.inputs)]
    node.attribute.append(helper.make_attribute(GIVEN_INPUTS, indices, attr_type=AttributeProto.INTS))
    del node.input[:]
    node.input.extend(inputs)
    if host:
        _set(node, {SHAPE_INPUTS: host})
    stated = {attribute.name for attribute in node.attribute}
    defaults = {a.name: a.default for a in op.attributes if not a.required and a.name not in stated}
    _set(node, {name: value for name, value in node_attributes(op, defaults).items() if value != []})
    node.overload = ""
    names = [*node.output, *[""] * (len(op.outputs) - len(node.output))]
    sizes = [dim["name"] for output in op.outputs for dim in output.dims if dim["kind"] == "bounded"]
    del node.output[:]
    for output, name in zip(op.outputs, names, strict=True):
        node.output.append(name or _fresh(f"{node.op_type}_{output.name}", used))
    for size in dict.fromkeys(sizes):
        node.output.append(_fresh(f"{node.op_type}_{size}", used))


def _set(node: NodeProto, attributes: Mapping[str, object]) -> None:
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())


def _fresh(stem: str, used: set[str]) -> str:
    """Returns a name that the model doesn't use yet, and adds it to `used`."""
    name, count = stem, 0
    while name in used:
        count += 1
        name = f"{stem}_{count}"
    used.add(name)
    return name
