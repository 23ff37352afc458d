"""Running an op in ONNX Runtime, for verification."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnxruntime as ort

from ops_build.case import Array, Case
from ops_build.onnx_model import one_node_model
from ops_build.table import Op


class OnnxRuntimeEngine:
    """One op library in ONNX Runtime's CPU provider."""

    name = "onnxruntime"

    def __init__(self, library: Path) -> None:
        self._options = ort.SessionOptions()
        self._options.log_severity_level = 4
        self._options.register_custom_ops_library(str(library.resolve()))

    def run(self, op: Op, case: Case, types: Mapping[str, str]) -> dict[str, Array]:
        """The outputs by name, as NumPy arrays; bf16 comes as f32.

        Raises AssertionError where the shapes or types that ONNX Runtime inferred before the run are not those that
        came, and ONNX Runtime's own exceptions where the op refuses the case.
        """
        one = one_node_model(op, case, types)
        session = ort.InferenceSession(one.model.SerializeToString(), self._options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, one.feeds)
        for inferred, output, tensor in zip(session.get_outputs(), outputs, op.outputs, strict=True):
            sizes = [size if isinstance(size, int) else None for size in inferred.shape]
            fits = len(sizes) == output.ndim and all(
                size in (None, actual) for size, actual in zip(sizes, output.shape, strict=True)
            )
            assert fits, f"output '{tensor.name}': inferred shape {inferred.shape}, the run gave {list(output.shape)}"
        return {tensor.name: output for tensor, output in zip(op.outputs, outputs, strict=True)}
