"""Runs ops in ONNX Runtime, for verification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import onnxruntime as ort

from ops_build.building.manifest import why_not_built
from ops_build.building.options import BuildOptions
from ops_build.building.toolchain import NO_GPU, gpus
from ops_build.case import Array, Case
from ops_build.onnx.one_node_model import OneNodeModel, one_node_model
from ops_build.table import Op
from ops_build.verification.comparison import difference, tolerance
from ops_build.verification.engine import Absent, Engine


def engines(options: BuildOptions) -> Iterator[Engine | Absent]:
    """Yields ONNX Runtime with the libraries of a build, on the CPU and on CUDA.

    For a device that can't be used it yields Absent, with the reason.
    """
    for name, device in (("onnxruntime", "cpu"), ("onnxruntime_cuda", "cuda")):
        library = options.library(name)
        if not library.is_file():
            yield Absent("onnxruntime", device, why_not_built(options, "onnxruntime" if device == "cpu" else "cuda"))
        elif device == "cuda" and "CUDAExecutionProvider" not in ort.get_available_providers():
            yield Absent("onnxruntime", device, "this onnxruntime has no CUDA provider: pip install onnxruntime-gpu")
        elif device == "cuda" and not gpus():
            yield Absent("onnxruntime", device, NO_GPU)
        else:
            yield OnnxRuntimeEngine(library, device)


class OnnxRuntimeEngine:
    """Runs the ops of a library in ONNX Runtime, on the CPU or on CUDA."""

    name = "onnxruntime"

    def __init__(self, library: Path, device: str = "cpu") -> None:
        self.device = device
        self._providers = ["CPUExecutionProvider"]
        self._options = ort.SessionOptions()
        self._options.log_severity_level = 4
        if device == "cuda":
            self._providers.insert(0, "CUDAExecutionProvider")
        self._options.register_custom_ops_library(str(library.resolve()))

    def refusal(self, op: Op, types: Mapping[str, str]) -> str | None:
        return None

    def run(self, op: Op, case: Case, types: Mapping[str, str]) -> dict[str, Array]:
        """Returns the outputs by name, as NumPy arrays; bf16 comes as f32.

        An op that prepares runs a second time, with all inputs but the first as constants of the model.

        Raises AssertionError if an output doesn't have the shape that ONNX Runtime inferred before the run, or if the
        second run computes something else. If the op refuses the case, it raises an exception of ONNX Runtime.
        """
        outputs = self._run(op, one_node_model(op, case, types))
        if self.device in op.prepares and len(case.inputs) > 1:
            again = self._run(op, one_node_model(op, case, types, constants=True))
            for tensor in op.outputs:
                allowed = tolerance(case, tensor.name, types.get(tensor.type, tensor.type))
                failure = difference(again[tensor.name], outputs[tensor.name], allowed)
                assert failure is None, f"output '{tensor.name}' with constant inputs: {failure}"
        return outputs

    def _run(self, op: Op, node_model: OneNodeModel) -> dict[str, Array]:
        session = ort.InferenceSession(node_model.model.SerializeToString(), self._options, providers=self._providers)
        outputs = session.run(None, node_model.feeds)
        for inferred, output, tensor in zip(session.get_outputs(), outputs, op.outputs, strict=True):
            sizes = [size if isinstance(size, int) else None for size in inferred.shape]
            fits = len(sizes) == output.ndim and all(
                size in (None, actual) for size, actual in zip(sizes, output.shape, strict=True)
            )
            assert fits, f"output '{tensor.name}': inferred shape {inferred.shape}, the run gave {list(output.shape)}"
        return {tensor.name: output for tensor, output in zip(op.outputs, outputs, strict=True)}
