"""Converts models of TensorFlow to ONNX with tf2onnx, and gives them the nodes of op libraries."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import tensorflow as tf
import tf2onnx
from onnx import AttributeProto, NodeProto, helper
from tensorflow.python.framework import op_def_registry
from tf2onnx import convert

from opgate.onnx_tools.agreement import complete_outputs
from opgate.onnx_tools.conversion import ConversionError, Converted, quiet
from opgate.onnx_tools.sessions import one_line
from opgate.onnx_tools.unknown_nodes import unknown_ops
from opgate.ops_build.adapters.tensorflow.engine import to_numpy
from opgate.ops_build.adapters.tensorflow.names import type_of
from opgate.ops_build.case import Array
from opgate.ops_build.onnx import schema
from opgate.ops_build.onnx.nodes import node_attributes, nodes_of
from opgate.ops_build.op_table import Attribute, Op

#: The operator set of a converted model. The decompositions of the ops need it.
OPSET = 18
#: What tf2onnx puts before the name of an op of LiteRT.
LITERT_PREFIX = "TFL_"
#: The signature of a SavedModel that is converted if nobody names one.
SIGNATURE = "serving_default"
TF2ONNX = f"tf2onnx {tf2onnx.__version__}"


def convert_saved_model(folder: Path, ops: Sequence[Op], signature: str = "") -> Converted:
    """Converts a signature of a SavedModel. TensorFlow has loaded the libraries of `ops`. Raises ConversionError."""
    if not tf.saved_model.contains_saved_model(str(folder)):
        raise ConversionError(f"{folder} is no SavedModel: expected a folder with saved_model.pb")
    with quiet():
        try:
            loaded = tf.saved_model.load(str(folder))
        except Exception as error:  # the classes of TensorFlow's exceptions share no other base
            raise _not_loaded(folder, error) from None
        function = _signature(loaded.signatures, signature, folder)
        specs = function.structured_input_signature[1]
        # In ONNX an input and an output can't have one name.
        names = {f"{name}_out" if name in specs else name: name for name in function.structured_outputs}

        def named(*tensors: Any) -> Any:
            results = function(**dict(zip(specs, tensors, strict=True)))
            return {new: results[name] for new, name in names.items()}

        custom = {type_of(op): op.domain for op in ops}
        traced = tf.function(named, autograph=False)
        made, _ = convert_or_raise(
            lambda: convert.from_function(traced, list(specs.values()), opset=OPSET, custom_ops=custom)
        )
    model = with_ops(made, ops, complete=True)
    # A signature has no order of its own, and TensorFlow gives another one each time.
    ordered = sorted(model.graph.input, key=lambda value: value.name)
    del model.graph.input[:]
    model.graph.input.extend(ordered)

    def run(feeds: Mapping[str, Array]) -> list[Array]:
        outputs = function(**{name: tf.constant(feeds[name], spec.dtype) for name, spec in specs.items()})
        return [to_numpy(outputs[names[value.name]]) for value in model.graph.output]

    return Converted(model, f"TensorFlow {tf.__version__}", TF2ONNX, run)


def _signature(signatures: Mapping[str, Any], name: str, folder: Path) -> Any:
    chosen = name or (SIGNATURE if SIGNATURE in signatures else next(iter(signatures), "") * (len(signatures) == 1))
    if chosen not in signatures:
        had = ", ".join(signatures) or "none"
        raise ConversionError(f"{folder}: expected a signature '{name or SIGNATURE}', the model has {had}")
    return signatures[chosen]


def _not_loaded(folder: Path, error: Exception) -> ConversionError:
    if unknown := re.search(r"Op type not registered '([^']+)'", str(error)):
        return nobody_knows(unknown[1])
    return ConversionError(f"TensorFlow doesn't load {folder}: {one_line(error)}")


def nobody_knows(op: str) -> ConversionError:
    """Returns what is to be raised for an op that neither tf2onnx nor a loaded library has."""
    return ConversionError(
        f"nobody knows the op {op}: neither tf2onnx nor a library has it. opgate build makes the library for "
        "TensorFlow. For ops of your own, name lib<domain>_onnxruntime.so with --custom-library, and have "
        "lib<domain>_tensorflow.so beside it"
    )


def convert_or_raise(run: Callable[[], Any]) -> Any:
    """Calls tf2onnx. Raises ConversionError if it fails."""
    try:
        return run()
    except Exception as error:  # tf2onnx raises what it comes upon
        raise ConversionError(f"{TF2ONNX} doesn't convert the model: {one_line(error)}") from error


def with_ops(model: onnx.ModelProto, ops: Sequence[Op], *, complete: bool) -> onnx.ModelProto:
    """Returns a model of tf2onnx with nodes as ONNX Runtime's op libraries have them.

    `complete` says that a node has all attributes, as it does in TensorFlow. Raises ConversionError if it has not, and
    if the model has an op that nobody knows.
    """
    by_type = {f"{prefix}{type_of(op)}": op for op in ops for prefix in ("", LITERT_PREFIX)}
    domains = {}
    for node in nodes_of(model):
        op = by_type.get(node.op_type)
        if op is not None:
            node.CopyFrom(_node(op, node, complete=complete))
            domains[op.domain] = op.since_version
    model.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in domains.items())
    schema.register(ops)
    if unknown := unknown_ops(model, {(op.domain, op.name) for op in ops}):
        raise nobody_knows(", ".join(op.name.removeprefix("::").removeprefix(LITERT_PREFIX) for op in unknown))
    complete_outputs(model)
    return model


def _node(op: Op, node: NodeProto, *, complete: bool) -> NodeProto:
    """Returns the node of an op. In TensorFlow an optional tensor is a list whose length is an attribute, and some
    attributes have another name."""
    definition = op_def_registry.get(type_of(op))
    stated = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    attributes = {}
    for attribute, defined in zip(op.attributes, definition.attr, strict=False):
        if defined.name in stated:
            attributes[attribute.name] = _plain(attribute, stated[defined.name])
        elif complete:
            raise ConversionError(
                f"{type_of(op)} (node '{node.name}'): tf2onnx has lost the attribute '{defined.name}'"
            )
    inputs, outputs = list(node.input), list(node.output)
    ordered = [
        _take(inputs, tensor.optional, stated.get(arg.number_attr, 1))
        for tensor, arg in zip(op.inputs, definition.input_arg, strict=True)
        if not tensor.variadic
    ]
    made = NodeProto(
        op_type=op.name,
        domain=op.domain,
        name=node.name,
        input=_trimmed([*ordered, *inputs]),
        output=_trimmed([_take(outputs, tensor.optional, stated.get(arg.number_attr, 1))
                         for tensor, arg in zip(op.outputs, definition.output_arg, strict=True)]),
    )  # fmt: skip
    for name, value in node_attributes(op, attributes).items():
        empty = {"int": AttributeProto.INTS, "bool": AttributeProto.INTS, "float": AttributeProto.FLOATS}
        kind = next(attribute.kind for attribute in op.attributes if attribute.name == name)
        is_empty = isinstance(value, list) and not value
        made.attribute.append(helper.make_attribute(name, value, attr_type=empty[kind] if is_empty else None))
    return made


def _take(names: list[str], optional: bool, length: int) -> str:
    """Takes the name of a tensor from the front of a list, or "" if the tensor is absent."""
    return names.pop(0) if names and (length or not optional) else ""


def _trimmed(names: list[str]) -> list[str]:
    while names and not names[-1]:
        names.pop()
    return names


def _plain(attribute: Attribute, value: Any) -> Any:
    """Returns the value of an attribute as the signature has it."""
    if attribute.list:
        return [element.decode() if isinstance(element, bytes) else element for element in value]
    return value.decode() if isinstance(value, bytes) else value
