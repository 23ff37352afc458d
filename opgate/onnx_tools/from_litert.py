"""Converts models of LiteRT to ONNX with tf2onnx, and gives them the nodes of op libraries."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ai_edge_litert
import onnx
from ai_edge_litert.interpreter import Interpreter, load_delegate
from tf2onnx import convert

from opgate.onnx_tools.conversion import ConversionError, Converted, quiet
from opgate.onnx_tools.from_tensorflow import (
    LITERT_PREFIX,
    OPSET,
    TF2ONNX,
    convert_or_raise,
    with_ops,
)
from opgate.onnx_tools.sessions import one_line
from opgate.ops_build.adapters.litert.engine import value_of
from opgate.ops_build.adapters.tensorflow.names import type_of
from opgate.ops_build.case import Array
from opgate.ops_build.onnx.nodes import bodies_of
from opgate.ops_build.op_table import Op


def convert_litert(file: Path, ops: Sequence[Op], delegates: Sequence[Path]) -> Converted:
    """Converts the first graph of a model. TensorFlow has loaded the libraries of `ops`; `delegates` are libraries for
    LiteRT. Raises ConversionError."""
    with quiet():
        try:
            interpreter = Interpreter(
                str(file), experimental_delegates=[load_delegate(str(path.resolve())) for path in delegates]
            )
        except (ValueError, RuntimeError) as error:
            raise ConversionError(f"LiteRT doesn't load {file}: {one_line(error)}") from None
        custom = {f"{LITERT_PREFIX}{type_of(op)}": op.domain for op in ops}
        made, _ = convert_or_raise(lambda: convert.from_tflite(str(file), opset=OPSET, custom_ops=custom))
        model = with_ops(made, ops, complete=False)
        _refuse_without_delegate(interpreter)
    results = [value.name for value in model.graph.output]
    if len({*results} - {value.name for value in model.graph.input}) < len(results):
        raise ConversionError(f"{file}: expected outputs that nodes compute, got an input or one tensor twice")
    names = rename(model, _signature_names(interpreter))

    def run(feeds: Mapping[str, Array]) -> list[Array]:
        details = interpreter.get_input_details()
        values = [feeds[names.get(detail["name"], detail["name"])] for detail in details]
        for detail, value in zip(details, values, strict=True):
            interpreter.resize_tensor_input(detail["index"], value.shape)
        interpreter.allocate_tensors()
        for detail, value in zip(details, values, strict=True):
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()
        outputs = {names.get(d["name"], d["name"]): value_of(interpreter, d) for d in interpreter.get_output_details()}
        return [outputs[value.name] for value in model.graph.output]

    return Converted(model, f"LiteRT {ai_edge_litert.__version__}", TF2ONNX, run)


def _refuse_without_delegate(interpreter: Any) -> None:
    """Raises ConversionError if LiteRT lacks an op of the model. Sizes that it doesn't take concern the comparison."""
    try:
        interpreter.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        if unknown := re.search(r"unresolved custom op: (\S+?)\.", str(error)):
            raise ConversionError(
                f"LiteRT has no {unknown[1]}, and the ONNX model is compared with LiteRT: expected "
                "lib<domain>_litert.so beside the other libraries. opgate build writes it, or says what it needs"
            ) from None


def _signature_names(interpreter: Any) -> dict[str, str]:
    """Returns the names of inputs and outputs in the model's signature by those of its tensors."""
    if len(interpreter.get_signature_list()) != 1:
        return {}
    signature = interpreter.get_signature_runner()
    details = (signature.get_input_details(), signature.get_output_details())
    return {detail["name"]: name for tensors in details for name, detail in tensors.items()}


def rename(model: onnx.ModelProto, wanted: Mapping[str, str]) -> dict[str, str]:
    """Renames tensors of a model, in place, as far as the names are free. Returns the new names by the old ones."""
    taken = {name for body in bodies_of(model) for node in body.node for name in (*node.input, *node.output)}
    names = {}
    for old, new in wanted.items():
        if new not in taken:
            names[old] = new
            taken.add(new)
    for body in bodies_of(model):
        for node in body.node:
            for tensors in (node.input, node.output):
                tensors[:] = [names.get(name, name) for name in tensors]
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        value.name = names.get(value.name, value.name)
    return names
