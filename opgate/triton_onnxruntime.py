"""A backend for Triton, in Python: serves model.onnx with ONNX Runtime as Triton's own backend does.

Triton loads this file from the folder `onnxruntime` of its backends. It joins the requests of a batch along their first
dimension and splits the outputs. It loads the op library that the config names.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

# Triton runs this file in an isolated Python, which ignores the variable.
sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]

import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
import triton_python_backend_utils as utils  # noqa: E402


def _strings(array: Any) -> Any:
    """Returns BYTES as ONNX Runtime takes them."""
    if array.dtype != object:
        return array
    texts = [value.decode() if isinstance(value, bytes) else value for value in array.reshape(-1)]
    return np.array(texts, object).reshape(array.shape)


def _bytes(array: Any) -> Any:
    if array.dtype != object:
        return array
    return np.array([value.encode() for value in array.reshape(-1)], object).reshape(array.shape)


class TritonPythonModel:
    """One instance of a model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Opens the model file."""
        config = json.loads(args["model_config"])
        options = ort.SessionOptions()
        options.intra_op_num_threads = int(
            config.get("parameters", {}).get("intra_op_thread_count", {}).get("string_value", 0)
        )
        for library in config.get("model_operations", {}).get("op_library_filename", []):
            options.register_custom_ops_library(library)
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._inputs = [tensor.name for tensor in self._session.get_inputs()]
        self._outputs = [tensor.name for tensor in self._session.get_outputs()]
        self._batches = config["max_batch_size"] > 0

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answers requests, together if the model batches."""
        if not self._batches:
            return [self._answer([request])[0] for request in requests]
        return self._answer(requests)

    def _answer(self, requests: list[Any]) -> list[Any]:
        inputs: dict[str, list[Any]] = {}
        for request in requests:
            for name in self._inputs:
                tensor = utils.get_input_tensor_by_name(request, name)
                if tensor is not None:
                    inputs.setdefault(name, []).append(_strings(tensor.as_numpy()))
        try:
            feeds = {name: parts[0] if len(parts) == 1 else np.concatenate(parts) for name, parts in inputs.items()}
            outputs = [_bytes(array) for array in self._session.run(self._outputs, feeds)]
        except Exception as error:
            return [utils.InferenceResponse(error=utils.TritonError(str(error))) for _ in requests]
        responses = []
        begin = 0
        rows = [len(part) for part in next(iter(inputs.values()))]
        for request, count in zip(requests, rows, strict=True):
            part = slice(begin, begin + count) if len(requests) > 1 else slice(None)
            begin += count
            wanted = request.requested_output_names()
            tensors = [
                utils.Tensor(name, array[part] if array.ndim else array)
                for name, array in zip(self._outputs, outputs, strict=True)
                if name in wanted
            ]
            responses.append(utils.InferenceResponse(tensors))
        return responses
