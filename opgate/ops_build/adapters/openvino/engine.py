"""Runs ops in OpenVINO, for verification."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import openvino as ov

from opgate.ops_build.adapters.numpy.library import load
from opgate.ops_build.adapters.openvino.extension import OpenVinoOps
from opgate.ops_build.case import Array, Case
from opgate.ops_build.onnx.one_node_model import one_node_model
from opgate.ops_build.op_table import Op

_COMPUTED_OTHERWISE = frozenset({"f16", "bf16", "f64", "i64"})


class OpenVinoEngine:
    """Runs the ops of a library in OpenVINO in this process, on the CPU. It reads them from ONNX models."""

    name = "openvino"
    device = "cpu"

    def __init__(self, library: Path) -> None:
        self._ops = OpenVinoOps(load(library))
        self._core = ov.Core()
        self._core.add_extension(self._ops.extensions())

    def refusal(self, op: Op, types: Mapping[str, str]) -> str | None:
        """Says why OpenVINO can't have the op, None if it can."""
        if others := sorted(_COMPUTED_OTHERWISE.intersection({*types.values(), *op.tensor_types})):
            return f"OpenVINO's plugin for the CPU computes {', '.join(others)} in f32 or i32"
        reason = self._ops.left_out.get(op.name)
        return reason and f"OpenVINO can't have the op: {reason}"

    def run(self, op: Op, case: Case, types: Mapping[str, str]) -> dict[str, Array]:
        """Returns the outputs by name; bf16 comes as f32. Raises what OpenVINO raises if the op refuses the case."""
        one = one_node_model(op, case, types)
        model = self._core.read_model(one.model.SerializeToString(), b"")
        compiled = self._core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        names = [value.name for value in one.model.graph.input]
        found = compiled([np.ascontiguousarray(one.feeds[name]).reshape(one.feeds[name].shape) for name in names])
        return {tensor.name: np.array(found[index]) for index, tensor in enumerate(op.outputs)}


#: What verification makes of a library.
engine = OpenVinoEngine
