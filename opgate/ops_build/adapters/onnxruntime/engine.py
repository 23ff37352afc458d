"""Runs ops in ONNX Runtime, for verification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
import onnxruntime as ort

from opgate.ops_build.building.manifest import why_not_built
from opgate.ops_build.building.options import BuildOptions
from opgate.ops_build.building.toolchain import NO_GPU, gpus
from opgate.ops_build.case import Array, Case
from opgate.ops_build.engines.comparison import assert_same_with_constants
from opgate.ops_build.engines.engine import Absent, Engine
from opgate.ops_build.onnx.one_node_model import OneNodeModel, one_node_model
from opgate.ops_build.op_table import Op


def engines(options: BuildOptions) -> Iterator[Engine | Absent]:
    """Yields ONNX Runtime with the libraries of a build, on the CPU and on CUDA.

    For a device that can't be used it yields Absent, with the reason.
    """
    for name, device in (("onnxruntime", "cpu"), ("onnxruntime_cuda", "cuda")):
        library = options.library(name)
        if not library.is_file():
            yield Absent("onnxruntime", device, why_not_built(options, "onnxruntime" if device == "cpu" else "cuda"))
        elif device == "cuda" and "CUDAExecutionProvider" not in ort.get_available_providers():
            yield Absent(
                "onnxruntime", device, "this onnxruntime has no CUDA provider: install onnxruntime-gpu in its place"
            )
        elif device == "cuda" and not gpus():
            yield Absent("onnxruntime", device, NO_GPU)
        else:
            yield OnnxRuntimeEngine(library, device)


#: Older ones don't ask for the shapes of ops whose nodes may lack an input in the middle, see registration.cpp.
_ASKS_FOR_NO_SHAPES = tuple(int(number) for number in ort.__version__.split(".")[:2]) < (1, 24)


class OnnxRuntimeEngine:
    """Runs the ops of a library in ONNX Runtime, on the CPU or on CUDA.

    On CUDA no node may run on the CPU: the library for CUDA has CPU kernels too, and ONNX Runtime would use them
    without a word if its CUDA provider can't be loaded.
    """

    name = "onnxruntime"

    def __init__(self, library: Path, device: str = "cpu") -> None:
        self.device = device
        self._providers = ["CPUExecutionProvider"]
        self._options = ort.SessionOptions()
        self._options.log_severity_level = 4
        # Threads that wait for the next run would take half of the processor's time: few sessions here run twice.
        self._options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if device == "cuda":
            self._providers = ["CUDAExecutionProvider"]
            self._options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
            ort.preload_dlls()  # from the packages of CUDA and cuDNN, or from those of torch
        self._options.register_custom_ops_library(str(library.resolve()))

    def session(self, model: onnx.ModelProto) -> ort.InferenceSession:
        """Returns a session of the model on the engine's device. Raises RuntimeError if ONNX Runtime chose another."""
        session = ort.InferenceSession(model.SerializeToString(), self._options, providers=self._providers)
        if session.get_providers()[0] != self._providers[0]:
            raise RuntimeError(
                f"expected a session on {self._providers[0]}, ONNX Runtime made one on {session.get_providers()[0]}"
            )
        return session

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
            assert_same_with_constants(op, case, types, outputs, again)
        return outputs

    def _run(self, op: Op, node_model: OneNodeModel) -> dict[str, Array]:
        session = self.session(node_model.model)
        outputs = session.run(None, node_model.feeds)
        for inferred, output, tensor in zip(session.get_outputs(), outputs, op.outputs, strict=True):
            sizes = [size if isinstance(size, int) else None for size in inferred.shape]
            fits = len(sizes) == output.ndim and all(
                size in (None, actual) for size, actual in zip(sizes, output.shape, strict=True)
            )
            fits = fits or (_ASKS_FOR_NO_SHAPES and not sizes)  # nothing is known then
            assert fits, f"output '{tensor.name}': inferred shape {inferred.shape}, the run gave {list(output.shape)}"
        return {tensor.name: output for tensor, output in zip(op.outputs, outputs, strict=True)}
