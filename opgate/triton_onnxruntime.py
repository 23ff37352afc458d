"""A backend for Triton, in Python: serves model.onnx with ONNX Runtime as Triton's own backend does.

Triton loads this file from the folder `onnxruntime` of its backends. It joins the requests of a batch along their first
dimension, flattens ragged inputs, computes the batch inputs, and splits the outputs. It loads the op library that the
config names. If a batch fails, each of its requests runs alone, so that only the one at fault fails.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

# Triton runs this file in an isolated Python, which ignores the variable.
sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]

import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
import triton_python_backend_utils as utils  # noqa: E402

# The folder of the models, for a model whose config Triton asks this backend to complete.
REPOSITORY = "OPGATE_TRITON_REPOSITORY"

_TYPES = {
    "tensor(bool)": "TYPE_BOOL", "tensor(uint8)": "TYPE_UINT8", "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32", "tensor(uint64)": "TYPE_UINT64", "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16", "tensor(int32)": "TYPE_INT32", "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16", "tensor(float)": "TYPE_FP32", "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING", "tensor(bfloat16)": "TYPE_BF16",
}  # fmt: skip
_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    0: ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}


def _parameter(config: dict[str, Any], key: str) -> int:
    return int(config.get("parameters", {}).get(key, {}).get("string_value", 0))


def _session(config: dict[str, Any], folder: Path) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = _parameter(config, "intra_op_thread_count")
    options.inter_op_num_threads = _parameter(config, "inter_op_thread_count")
    if _parameter(config, "execution_mode"):
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.graph_optimization_level = _LEVELS[config.get("optimization", {}).get("graph", {}).get("level", 0)]
    options.log_severity_level = 4  # errors come as exceptions
    for library in config.get("model_operations", {}).get("op_library_filename", []):
        options.register_custom_ops_library(library)
    file = folder / (config.get("default_model_filename") or "model.onnx")
    return ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


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


def _batch_input(target: dict[str, Any], parts: list[Any]) -> Any:
    """Returns the tensor that tells a model the sizes of the rows of a ragged input."""
    dtype = utils.triton_string_to_numpy(target["data_type"])
    kind = target["kind"]
    if kind.startswith("BATCH_ITEM_SHAPE"):
        shapes = np.array([part.shape[1:] for part in parts for _ in range(len(part))], dtype)
        return shapes.reshape(-1) if kind == "BATCH_ITEM_SHAPE_FLATTEN" else shapes
    sizes = [math.prod(part.shape[1:]) for part in parts for _ in range(len(part))]
    if kind == "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE":
        return np.zeros(max(sizes), dtype)
    if kind == "BATCH_ELEMENT_COUNT":
        return np.array(sizes, dtype)
    return np.cumsum([0, *sizes] if kind.endswith("WITH_ZERO") else sizes).astype(dtype)


class TritonPythonModel:
    """One instance of a model."""

    @staticmethod
    def auto_complete_config(completed: Any) -> Any:
        """Adds the inputs and outputs of the model file to a config that doesn't state them."""
        config = completed.as_dict()
        folder = Path(os.environ[REPOSITORY]) / config["name"]
        if config["input"] and config["output"]:
            return completed
        version = max(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
        session = _session(config, folder / str(version))
        batches = config["max_batch_size"] > 0
        computed = {name for target in config.get("batch_input", []) for name in target["target_name"]}
        for tensors, add in (
            (session.get_inputs(), completed.add_input),
            (session.get_outputs(), completed.add_output),
        ):
            for tensor in tensors:
                dims = [size if isinstance(size, int) else -1 for size in tensor.shape[1 if batches else 0 :]]
                stated = {"name": tensor.name, "data_type": _TYPES[tensor.type], "dims": dims or [1]}
                if tensor.name not in computed:
                    add(stated if dims else {**stated, "reshape": {"shape": []}})
        return completed

    def initialize(self, args: dict[str, str]) -> None:
        """Opens the model file."""
        config = json.loads(args["model_config"])
        self._session = _session(config, Path(args["model_repository"]) / args["model_version"])
        self._inputs = [tensor.name for tensor in self._session.get_inputs()]
        self._outputs = [tensor.name for tensor in self._session.get_outputs()]
        self._ragged = {tensor["name"] for tensor in config["input"] if tensor.get("allow_ragged_batch")}
        self._reshaped = {tensor["name"]: tensor for tensor in config["output"] if "reshape" in tensor}
        self._batch_inputs = config.get("batch_input", [])
        self._batches = config["max_batch_size"] > 0

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answers requests. Those that bring the same inputs run together if the model batches."""
        groups: dict[Any, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(self._names(request) if self._batches else i, []).append(i)
        responses: list[Any] = [None] * len(requests)
        for members in groups.values():
            for i, response in zip(members, self._answer([requests[i] for i in members]), strict=True):
                responses[i] = response
        return responses

    @staticmethod
    def _names(request: Any) -> frozenset[str]:
        return frozenset(tensor.name() for tensor in request.inputs())

    def _answer(self, requests: list[Any]) -> list[Any]:
        try:
            return self._run(requests)
        except Exception as error:
            if len(requests) > 1:
                return [self._answer([request])[0] for request in requests]
            return [utils.InferenceResponse(error=utils.TritonError(str(error)))]

    def _run(self, requests: list[Any]) -> list[Any]:
        parts = {
            tensor.name(): [_strings(utils.get_input_tensor_by_name(r, tensor.name()).as_numpy()) for r in requests]
            for tensor in requests[0].inputs()
        }
        feeds = {}
        for name, arrays in parts.items():
            flat = [array.reshape(-1) for array in arrays] if name in self._ragged else arrays
            feeds[name] = flat[0] if len(flat) == 1 else np.concatenate(flat)
        for target in self._batch_inputs:
            tensor = _batch_input(target, parts[target["source_input"][0]])
            feeds.update(dict.fromkeys(target["target_name"], tensor))
        wanted = set().union(*(request.requested_output_names() for request in requests))
        names = [name for name in self._outputs if name in wanted]
        outputs = [_bytes(array) for array in self._session.run(names, feeds)]
        counts = [len(part) for part in next(iter(parts.values()))] if self._batches else [0]
        responses, begin = [], 0
        for request, count in zip(requests, counts, strict=True):
            rows = slice(begin, begin + count) if self._batches else ...
            begin += count
            asked = request.requested_output_names()
            tensors = [
                utils.Tensor(name, self._outer(name, array[rows]))
                for name, array in zip(names, outputs, strict=True)
                if name in asked
            ]
            responses.append(utils.InferenceResponse(tensors))
        return responses

    def _outer(self, name: str, array: Any) -> Any:
        """Returns an output in the shape that the config states, where the model file has it in another."""
        tensor = self._reshaped.get(name)
        if tensor is None:
            return array
        inner = array.shape[1:] if self._batches else array.shape
        unknown = iter(
            [size for size, stated in zip(inner, tensor["reshape"].get("shape", []), strict=True) if int(stated) < 0]
        )
        dims = [next(unknown) if int(size) < 0 else int(size) for size in tensor["dims"]]
        return array.reshape((*array.shape[:1], *dims) if self._batches else dims)
