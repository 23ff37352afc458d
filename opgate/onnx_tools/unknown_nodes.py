"""The nodes of a model that neither ONNX nor opgate knows, and the engines that could run them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import onnx

from opgate.ops_build.onnx.nodes import is_standard, nodes_of

#: Who runs the ops of a domain.
ENGINES = {
    "ai.graphcore": "Graphcore's PopART and PopRT",
    "ai.onnx.contrib": "ONNX Runtime with the library of onnxruntime-extensions",
    "com.microsoft": "ONNX Runtime",
    "com.microsoft.nchwc": "ONNX Runtime",
    "mmcv": "ONNX Runtime or TensorRT with the op library of mmcv 1 or mmdeploy",
    "mmdeploy": "ONNX Runtime or TensorRT with the op library of mmdeploy",
    "org.openvinotoolkit": "OpenVINO",
    "org.pytorch.aten": "PyTorch's own build of ONNX Runtime",
    "aten": "PyTorch's own build of ONNX Runtime",
    "trt": "TensorRT",
    "TRT": "TensorRT",
}


@dataclass(frozen=True, slots=True)
class Unknown:
    """An op that opgate doesn't know: its name, the number of its nodes, and which engine could run it."""

    name: str
    count: int
    engines: str


def unknown_ops(model: onnx.ModelProto, known: Collection[tuple[str, str]]) -> list[Unknown]:
    """Returns the ops of a model that neither ONNX nor one of `known` (domain and type) nor a function of the model
    defines, in the order of the model."""
    functions = {(function.domain, function.name) for function in model.functions}
    counts: Counter[tuple[str, str]] = Counter()
    for node in nodes_of(model):
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) not in functions and (domain, node.op_type) not in known:
            counts[domain, node.op_type] += not is_standard(node)
    return [
        Unknown(f"{domain}::{op_type}", count, engines_of(domain, op_type))
        for (domain, op_type), count in counts.items()
        if count
    ]


def engines_of(domain: str, op_type: str) -> str:
    """Returns which engines could run an op of somebody else, as a report says it."""
    if "TRT" in op_type:
        return "TensorRT with a plugin of this name"
    if domain in ENGINES:
        return ENGINES[domain]
    return "an engine with an op library that has it: ONNX Runtime (name it with --custom-library), or TensorRT"
