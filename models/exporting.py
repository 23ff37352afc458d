"""Exports modules of PyTorch with ops of opgate as the ONNX files of the model repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import torch
from onnx import TensorProto
from torch import Tensor, nn

import opgate.torch
from models.graph_builder import IR_VERSION

OPSET = 18


def export_module(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    dynamic: Mapping[str, Mapping[int, str]],
    outputs: Mapping[str, Sequence[int | str]],
    path: Path,
) -> None:
    """Writes a module as an ONNX file.

    `inputs` are example inputs by name, in the order of `forward`. `dynamic` names their open dims. `outputs` are the
    names of the outputs with the dims that the file states.
    """
    program = torch.onnx.export(
        module.eval(),
        tuple(inputs.values()),
        dynamo=True,
        opset_version=OPSET,
        input_names=list(inputs),
        output_names=list(outputs),
        dynamic_shapes=[dict.fromkeys(dynamic.get(name, {}), torch.export.Dim.DYNAMIC) for name in inputs],
        custom_translation_table=opgate.torch.onnx_translation_table(),
        verbose=False,
    )
    assert program is not None
    model = program.model_proto
    _name_dims(model.graph.input, {name: dict(dynamic.get(name, {})) for name in inputs})
    _name_dims(model.graph.output, {name: dict(enumerate(dims)) for name, dims in outputs.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(_without_traces(model), path)


def _name_dims(values: Sequence[onnx.ValueInfoProto], names: Mapping[str, Mapping[int, int | str]]) -> None:
    """Gives the dims of inputs or outputs readable names, or sizes that the exporter doesn't know."""
    for value in values:
        dims = value.type.tensor_type.shape.dim
        for axis, name in names[value.name].items():
            if isinstance(name, int):
                dims[axis].dim_value = name
            else:
                dims[axis].dim_param = name


def _without_traces(model: onnx.ModelProto) -> onnx.ModelProto:
    """Leaves out what the exporter notes about the source files, and the shapes between the nodes, whose symbols are no
    longer those of the inputs."""
    model.ir_version, model.producer_name, model.producer_version = IR_VERSION, "opgate", ""
    del model.metadata_props[:]
    del model.graph.metadata_props[:]
    del model.graph.value_info[:]
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        del value.metadata_props[:]
    assert all(tensor.data_type != TensorProto.UNDEFINED for tensor in model.graph.initializer)
    onnx.checker.check_model(model)
    return model
